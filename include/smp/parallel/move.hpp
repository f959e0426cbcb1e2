// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Moves between distributions over the tensor-parallel ranks: the only thing that changes a tag. There is one function
/// from a pair of tags to what has to be done, and no list of duals: the backward of `Move<From, To>` is the move from
/// the gradient of `To` to the gradient of `From`. (Column- and row-parallel layers are Shoeybi et al.: Megatron-LM,
/// 2019, section 3; the sequence-sharded moves Korthikanti et al.: Reducing Activation Recomputation in Large
/// Transformer Models, 2022, section 4.2.)
///
/// Slices along `batch` and `sequence` are consecutive rows in memory, so that they are gathered and scattered without
/// rearrangement; the shape says which dimension is shorter. Slices along `features` are pieces of each row.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/comm/communicator.hpp>
#include <smp/distribution.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What a move has to do.
enum class MoveKind : unsigned char {
  illegal,
  nothing,
  all_reduce,
  all_gather,
  reduce_scatter,
  slice,
  pad,
  all_to_all
};

/// The dimension that is cut: of Varying, the batch.
[[nodiscard]] constexpr Dim cut_dim(SpreadOn on) noexcept { return on.kind == Spread::varying ? Dim::batch : on.dim; }

/// What has to be done to get from one distribution to the other.
[[nodiscard]] constexpr MoveKind move_kind(SpreadOn from, SpreadOn to) noexcept {
  const auto whole = [](SpreadOn s) { return s.kind == Spread::invariant || s.kind == Spread::replicated; };
  const auto cut = [](SpreadOn s) { return s.kind == Spread::shard || s.kind == Spread::varying; };
  if (from == to) return MoveKind::nothing;
  if (from.kind == Spread::invariant && to.kind == Spread::replicated) return MoveKind::nothing;
  if (from.kind == Spread::partial && whole(to)) return MoveKind::all_reduce;
  if (from.kind == Spread::partial && cut(to)) return MoveKind::reduce_scatter;
  if (cut(from) && whole(to)) return MoveKind::all_gather;
  if (whole(from) && cut(to)) return MoveKind::slice;
  if (cut(from) && to.kind == Spread::partial) return MoveKind::pad;
  if (cut(from) && cut(to)) return cut_dim(from) == cut_dim(to) ? MoveKind::nothing : MoveKind::all_to_all;
  return MoveKind::illegal;
}

/// The distribution of the gradient of what is distributed as `on`.
[[nodiscard]] constexpr SpreadOn gradient_of(SpreadOn on) noexcept {
  return on == Replicated::on ? Partial::on : on == Partial::on ? Replicated::on : on;
}

/// A move is legal exactly if the move of its gradient is.
consteval bool closed_under_duality() {
  constexpr SpreadOn all[] = {Invariant::on,
                              Replicated::on,
                              Partial::on,
                              Varying::on,
                              Shard<Dim::batch>::on,
                              Shard<Dim::sequence>::on,
                              Shard<Dim::features>::on};
  for (const SpreadOn from : all) {
    for (const SpreadOn to : all) {
      const bool legal = move_kind(from, to) != MoveKind::illegal;
      if (legal != (move_kind(gradient_of(to), gradient_of(from)) != MoveKind::illegal)) return false;
    }
  }
  return true;
}
static_assert(closed_under_duality());

/// The place of a dimension in a shape: features last, batch first, sequence before the features.
[[nodiscard]] inline int place_of(Dim dim, const Shape& shape) {
  const int rank = static_cast<int>(shape.rank());
  if (dim == Dim::batch) return 0;
  return dim == Dim::features ? rank - 1 : rank > 2 ? rank - 2 : 0;
}

/// The shape of one of `ranks` slices.
/// @throws ConfigError if the dimension does not divide
[[nodiscard]] inline Shape slice_shape(const Shape& whole, Dim dim, int ranks) {
  const int d = place_of(dim, whole);
  if (whole.rank() == 0 || whole[d] % ranks != 0) {
    throw ConfigError("a tensor of shape " + to_string(whole) + " cannot be cut into " + std::to_string(ranks) +
                      " equal slices along dimension " + std::to_string(d));
  }
  return whole.with(d, whole[d] / ranks);
}
/// The shape of what `ranks` slices make.
[[nodiscard]] inline Shape joined_shape(const Shape& slice, Dim dim, int ranks) {
  const int d = place_of(dim, slice);
  return slice.with(d, slice[d] * ranks);
}

/// Enqueues a copy of `rows` pieces of `bytes`, which lie `from_stride` and `to_stride` bytes apart.
template <class Stream>
void copy_rows(Stream& stream, const void* from, std::size_t from_stride, void* to, std::size_t to_stride,
               std::size_t bytes, std::size_t rows) {
  stream.enqueue([=] {
    const auto* f = static_cast<const std::byte*>(from);
    auto* t = static_cast<std::byte*>(to);
    for (std::size_t r = 0; r < rows; ++r, f += from_stride, t += to_stride) std::memcpy(t, f, bytes);
  });
}

/// Moves the local part of a value from one distribution to another over the ranks of a communicator.
/// @tparam T a tensor type with `TensorTraits`
/// @throws ConfigError if a size does not divide by the ranks
template <DistributionTag From, DistributionTag To, class T, class Stream, class Comm>
class Mover {
  static constexpr MoveKind kind = move_kind(From::on, To::on);
  static constexpr Dim from_dim = cut_dim(From::on), to_dim = cut_dim(To::on);
  static_assert(
      kind != MoveKind::illegal,
      "smp::Move: there is no such move: a whole value does not become summands, and what is counted once per "
      "rank does not become counted once");
  using Traits = TensorTraits<T>;
  static constexpr std::size_t element_bytes = sizeof(typename Traits::element);

 public:
  /// @param purpose what the communication is counted as
  Mover(Stream& stream, Memory& memory, Comm& comm, Purpose purpose)
      : stream_(stream), memory_(memory), comm_(comm), purpose_(purpose) {}

  /// The value as `To` says. A sole owner's elements may be used again.
  [[nodiscard]] T operator()(T x) const {
    if (kind == MoveKind::nothing || comm_.size() == 1) return x;
    if constexpr (kind == MoveKind::all_reduce) return all_reduce(std::move(x));
    if constexpr (kind == MoveKind::all_gather) return all_gather(x);
    if constexpr (kind == MoveKind::reduce_scatter) return reduce_scatter(x);
    if constexpr (kind == MoveKind::slice) return slice(x);
    if constexpr (kind == MoveKind::pad) return pad(x);
    if constexpr (kind == MoveKind::all_to_all) return all_to_all(x);
    return x;
  }

 private:
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(comm_.size()); }
  [[nodiscard]] T make(const Shape& shape) const { return Traits::make(memory_, shape); }
  [[nodiscard]] TensorOf<std::byte> buffer(std::size_t bytes) const {
    return {memory_, {static_cast<std::int64_t>(bytes)}, MemoryUse::buffer};
  }

  [[nodiscard]] T all_reduce(T x) const {
    if constexpr (requires { Traits::sole(x); }) {
      if (!Traits::sole(x)) {
        T y = make(Traits::shape(x));
        comm_.all_reduce(stream_, Traits::data(std::as_const(x)), Traits::data(y), sum, purpose_);
        return y;
      }
    }
    comm_.all_reduce(stream_, Traits::data(x), Traits::data(x), sum, purpose_);
    return x;
  }

  // Rows of one rank are consecutive; of the pieces of rows, each rank has its column of blocks.
  [[nodiscard]] T all_gather(const T& x) const {
    T y = make(joined_shape(Traits::shape(x), from_dim, comm_.size()));
    if constexpr (from_dim != Dim::features) {
      comm_.all_gather(stream_, Traits::data(x), Traits::data(y), purpose_);
    } else {
      T blocks = make(Traits::shape(y));
      comm_.all_gather(stream_, Traits::data(x), Traits::data(blocks), purpose_);
      join_columns(blocks, y);
    }
    return y;
  }

  [[nodiscard]] T reduce_scatter(const T& x) const {
    T y = make(slice_shape(Traits::shape(x), to_dim, comm_.size()));
    if constexpr (to_dim != Dim::features) {
      comm_.reduce_scatter(stream_, Traits::data(x), Traits::data(y), sum, purpose_);
    } else {
      T blocks = make(Traits::shape(x));
      cut_columns(x, blocks);
      comm_.reduce_scatter(stream_, Traits::data(std::as_const(blocks)), Traits::data(y), sum, purpose_);
    }
    return y;
  }

  [[nodiscard]] T slice(const T& x) const {
    T y = make(slice_shape(Traits::shape(x), to_dim, comm_.size()));
    const Pieces p = pieces<to_dim>(Traits::shape(x));
    copy_rows(stream_, bytes_of(x) + p.bytes * rank(), p.stride, bytes_of(y), p.bytes, p.bytes, p.rows);
    return y;
  }

  [[nodiscard]] T pad(const T& x) const {
    T y = make(joined_shape(Traits::shape(x), from_dim, comm_.size()));
    const Pieces p = pieces<from_dim>(Traits::shape(y));
    stream_.enqueue([to = bytes_of(y), n = Traits::data(y).size_bytes()] { std::memset(to, 0, n); });
    copy_rows(stream_, bytes_of(x), p.bytes, bytes_of(y) + p.bytes * rank(), p.stride, p.bytes, p.rows);
    return y;
  }

  // One of the two dimensions is the features, or both are rows, which need nothing.
  [[nodiscard]] T all_to_all(const T& x) const {
    T y = make(joined_shape(slice_shape(Traits::shape(x), to_dim, comm_.size()), from_dim, comm_.size()));
    if constexpr (to_dim != Dim::features && from_dim != Dim::features) {
      // Rows that are cut in another dimension are the same rows in memory.
      copy_rows(stream_, bytes_of(x), 0, bytes_of(y), 0, Traits::data(x).size_bytes(), 1);
    } else if constexpr (to_dim == Dim::features) {
      T blocks = make(Traits::shape(x));
      cut_columns(x, blocks);
      comm_.all_to_all(stream_, Traits::data(std::as_const(blocks)), Traits::data(y), purpose_);
    } else {
      T blocks = make(Traits::shape(y));
      comm_.all_to_all(stream_, Traits::data(x), Traits::data(blocks), purpose_);
      join_columns(blocks, y);
    }
    return y;
  }

  /// How one rank's slice lies in the whole: `rows` pieces of `bytes`, `stride` bytes apart.
  struct Pieces {
    std::size_t bytes, stride, rows;
  };
  template <Dim D>
  [[nodiscard]] Pieces pieces(const Shape& whole) const {
    const std::size_t all = whole.elements() * element_bytes;
    if constexpr (D != Dim::features) return {all / ranks(), all, 1};
    const std::size_t row = static_cast<std::size_t>(whole[-1]) * element_bytes;
    return {row / ranks(), row, row == 0 ? 0 : all / row};
  }
  void cut_columns(const T& x, T& blocks) const {
    const Pieces p = pieces<Dim::features>(Traits::shape(x));
    for (std::size_t r = 0; r < ranks(); ++r) {
      copy_rows(stream_, bytes_of(x) + r * p.bytes, p.stride, bytes_of(blocks) + r * p.bytes * p.rows, p.bytes, p.bytes,
                p.rows);
    }
  }
  void join_columns(const T& blocks, T& y) const {
    const Pieces p = pieces<Dim::features>(Traits::shape(y));
    for (std::size_t r = 0; r < ranks(); ++r) {
      copy_rows(stream_, bytes_of(blocks) + r * p.bytes * p.rows, p.bytes, bytes_of(y) + r * p.bytes, p.stride, p.bytes,
                p.rows);
    }
  }
  static const std::byte* bytes_of(const T& x) { return reinterpret_cast<const std::byte*>(Traits::data(x).data()); }
  static std::byte* bytes_of(T& x) { return reinterpret_cast<std::byte*>(Traits::data(x).data()); }
  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(comm_.rank()); }

  Stream& stream_;
  Memory& memory_;
  Comm& comm_;
  Purpose purpose_;
};

/// Moves a value over the tensor-parallel ranks, in a stream of the caller's.
/// @param purpose what the communication is counted as
template <DistributionTag To, class Ctx, class T, DistributionTag From, DistributionTag Cp, class Stream>
[[nodiscard]] Dist<T, To, Cp> move_to(Ctx& ctx, Dist<T, From, Cp> x, Stream& stream,
                                      Purpose purpose = Purpose::activation) {
  auto& comm = ctx.groups()[Group::tp];
  using Comm = std::remove_reference_t<decltype(comm)>;
  const Mover<From, To, T, Stream, Comm> mover(stream, ctx.memory(), comm, purpose);
  return {mover(std::move(x.local))};
}
/// Moves a value over the tensor-parallel ranks.
template <DistributionTag To, class Ctx, class T, DistributionTag From, DistributionTag Cp>
[[nodiscard]] Dist<T, To, Cp> move_to(Ctx& ctx, Dist<T, From, Cp> x) {
  return move_to<To>(ctx, std::move(x), ctx.stream());
}

/// The same value with every `Dist` in it moved to `To`. With a stream as the last argument, in that.
template <DistributionTag To, class X, class... Stream>
[[nodiscard]] auto moved(auto& ctx, X x, Stream&... stream) {
  if constexpr (is_dist<X>) {
    return move_to<To>(ctx, std::move(x), stream...);
  } else if constexpr (requires { std::tuple_size<X>::value; }) {
    return std::apply(
        [&](auto&... each) {
          return std::tuple<decltype(moved<To>(ctx, std::move(each), stream...))...>{
              moved<To>(ctx, std::move(each), stream...)...};
        },
        x);
  } else {
    return x;
  }
}

/// True if a move to `To` sums a value of type `X` over the ranks without scratch memory, so that it can be done in
/// another stream than the one in which the memory is used next.
template <DistributionTag To, class X>
inline constexpr bool sums_in_place = false;
/// A `Dist`.
template <DistributionTag To, class T, DistributionTag From, DistributionTag Cp>
inline constexpr bool sums_in_place<To, Dist<T, From, Cp>> =
    move_kind(From::on, To::on) == MoveKind::all_reduce ||
    (move_kind(From::on, To::on) == MoveKind::reduce_scatter && cut_dim(To::on) != Dim::features);
/// What is moved as one.
template <DistributionTag To, class... Xs>
inline constexpr bool sums_in_place<To, std::tuple<Xs...>> =
    (sizeof...(Xs) > 0) && ((sums_in_place<To, Xs> || std::is_same_v<Xs, NoGrad>)&&...);

/// `moved<To>(ctx, x)` and `meanwhile()`, which enqueues work that has nothing to do with `x`: at the same time, if the
/// move sums over the ranks and the context has a second stream. The bits are the same.
template <DistributionTag To, class Ctx, class X, class F>
[[nodiscard]] auto moved_beside(Ctx& ctx, X x, F&& meanwhile) {
  using Stream = std::remove_reference_t<decltype(ctx.stream())>;
  if constexpr (sums_in_place<To, X> && requires { typename Stream::Event; }) {
    if (ctx.beside != nullptr && ctx.groups()[Group::tp].size() > 1) {
      // A sole owner's elements become the result. Others are kept here until the computation has waited.
      bool sole = true;
      for_each_tensor(x, [&](const auto& t) {
        using Traits = TensorTraits<std::remove_cvref_t<decltype(t)>>;
        if constexpr (requires { Traits::sole(t); }) sole = sole && Traits::sole(t);
      });
      const bool scatters = !std::is_same_v<To, Invariant> && !std::is_same_v<To, Replicated>;
      const X held = sole && !scatters ? X{} : x;
      decltype(moved<To>(ctx, std::move(x))) y{};
      ctx.beside->run(
          ctx.stream(), [&](Stream& stream) { y = moved<To>(ctx, std::move(x), stream); }, std::forward<F>(meanwhile));
      return y;
    }
  }
  auto y = moved<To>(ctx, std::move(x));
  std::forward<F>(meanwhile)();
  return y;
}

/// A move as a module, to stand in a `Sequential`. Keeps nothing.
/// @tparam T the tensor type
template <class T, DistributionTag From, DistributionTag To>
struct Move {
  using Input = Dist<T, From>;  ///< as it arrives
  using Output = Dist<T, To>;   ///< as it goes on
  /// Nothing.
  struct Saved {};

  /// The move.
  Output forward(auto& ctx, const Input& x, Saved&) const { return move_to<To>(ctx, x); }
  /// The move of the gradient.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved&) { return move_to<GradOn<From>>(ctx, std::move(dy)); }
};

template <class T>
using AllReduce = Move<T, Partial, Invariant>;  ///< sums; its backward does nothing
template <class T>
using AllReduceReplicated = Move<T, Partial, Replicated>;  ///< sums; its backward too
template <class T>
using Replicate = Move<T, Invariant, Replicated>;  ///< nothing; its backward sums
template <class T, Dim D>
using ReduceScatter = Move<T, Partial, Shard<D>>;  ///< sums and keeps a slice; its backward gathers
template <class T, Dim D>
using AllGather = Move<T, Shard<D>, Replicated>;  ///< joins the slices; its backward reduce-scatters
template <class T, Dim D>
using AllGatherInvariant = Move<T, Shard<D>, Invariant>;  ///< joins the slices; its backward takes one
template <class T, Dim D>
using Slice = Move<T, Invariant, Shard<D>>;  ///< takes a slice; its backward joins them
template <class T, Dim D>
using SliceReplicated = Move<T, Replicated, Shard<D>>;  ///< takes a slice; its backward pads with zeros
template <class T, Dim From, Dim To>
using AllToAll = Move<T, Shard<From>, Shard<To>>;  ///< cuts another dimension; its backward cuts the first again

}  // namespace smp
