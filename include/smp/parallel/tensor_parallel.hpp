// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tensor parallelism: a module cut over ranks by a rule of a few lines (`TensorParallelTraits`). All communication
/// follows from the types: what arrives is moved to what a part takes, what a part returns to what goes on.

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/degrees.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/parallel/cuts.hpp>
#include <smp/parallel/in_place_of.hpp>
#include <smp/parallel/move.hpp>
#include <smp/tags.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// Nothing is applied after the sum.
template <class X>
struct NothingAfter {
  using Input = X;   ///< what arrives
  using Output = X;  ///< the same
  /// Nothing.
  struct Saved {};
  static constexpr auto fields() { return smp::fields(); }
  /// Every slice is left as it is.
  static constexpr bool works_on_slices_of(Dim) { return true; }
  /// The same.
  Output forward(auto&, const Input& x, Saved&) const { return x; }
  /// The same.
  GradOf<Input> backward(auto&, GradOf<Output> dy, Saved&) { return dy; }
};

/// The module that is applied after the sum.
template <class M, class Traits>
struct AfterT {
  using type = NothingAfter<typename M::Output>;  ///< none
};
template <class M, class Traits>
  requires requires { typename Traits::After; }
struct AfterT<M, Traits> {
  using type = typename Traits::After;
};

/// The rule of a module that is left whole, if it has none.
struct WholeRule {
  using input = Invariant;                              ///< as it arrives
  using output = Partial;                               ///< ends as it begins
  static constexpr auto cuts() { return smp::cuts(); }  ///< none
};
/// The rule by which `M` is cut, if it is.
template <class M, Split S, int Enabled>
struct RuleT {
  using type = TensorParallelTraits<M, S>;  ///< that of the module
};
template <class M, Split S>
  requires(!requires { typename TensorParallelTraits<M, S>::output; })
struct RuleT<M, S, 0> {
  using type = WholeRule;
};

/// Says in words what is wrong with a rule, if it is one.
template <class M, class Traits>
consteval bool expect_rule() {
  if constexpr (!std::is_same_v<Traits, WholeRule>) return expect_traits<M, Traits>();
  return true;
}

/// True for a module of which each rank has a part, or that has such a member.
template <class M>
[[nodiscard]] consteval bool holds_cut() {
  if constexpr (requires { M::cuts_over_tp; }) {
    return M::cuts_over_tp;
  } else if constexpr (HasFields<M>) {
    return []<class... F>(std::tuple<F...>*) {
      return (holds_cut<typename F::type>() || ...);
    }(static_cast<decltype(FieldsOf<M>::fields())*>(nullptr));
  } else {
    return false;
  }
}
/// Says in words why a module cannot be cut as one.
template <class M>
consteval bool expect_outermost() {
  constexpr bool is_outermost = is_plain<M> && !holds_cut<M>();
  static_assert(is_outermost,
                "smp::TensorParallel: a module in this one is cut already, and only the outermost is: a part does not "
                "know of other ranks; leave the inner one plain");
  return true;
}

/// One part of `M` on each tensor-parallel rank. Adds no name to a path.
/// @tparam S in which way it is cut
/// @tparam At how the values around it are distributed, which is what makes a layout: Invariant (`speed`: every rank
/// has all activations), Shard<Dim::sequence> (`memory`: nothing is stored twice), Varying (each rank its own samples).
/// A part that ends with a pending sum ends distributed as it began; one that ends with slices stays so.
/// @tparam Enabled 1: it is cut; 0: every rank has all of it; `dynamic`: as the constructor is told. The types of
/// what goes in and out are the same. A whole module takes values as they arrive, if it can treat slices alone;
/// else they are gathered before it.
template <class M, Split S = Split::usual, DistributionTag At = Invariant, int Enabled = 1>
class TensorParallel {
  static_assert(Enabled == 0 || Enabled == 1 || Enabled == dynamic,
                "smp::TensorParallel: the fourth argument is 1, 0 or smp::dynamic");
  using Traits = typename RuleT<M, S, Enabled>::type;
  static_assert(expect_rule<M, Traits>());
  static_assert(expect_outermost<M>());
  using In = typename Traits::input;
  using Out = typename Traits::output;
  static constexpr bool sum_pending = Out::on.kind == Spread::partial;
  using End = std::conditional_t<sum_pending, At, Out>;
  using After = typename AfterT<M, Traits>::type;
  using PartInput = SpreadAs<typename M::Input, Tags<In>>;
  using PartOutput = SpreadAs<typename M::Output, Tags<Out>>;
  using Last = Joint<After, Tags<End>>;

 public:
  using Input = SpreadAs<typename M::Input, Tags<At>>;     ///< as the module's
  using Output = SpreadAs<typename M::Output, Tags<End>>;  ///< as the module's
  static constexpr bool cuts_over_tp = true;               ///< may be cut

 private:
  // Ids are equal on all ranks where the values that are made of them are slices.
  static constexpr bool takes_what_arrives =
      plain_takes<M, At> && !(At::on.kind == Spread::shard && std::is_same_v<TagsOf<Input>, NoTags>);
  /// How values are distributed around a module that is left whole.
  using Where = std::conditional_t<takes_what_arrives, At, Invariant>;
  using Whole = Joint<M, Tags<Where>>;
  /// The part keeps what was gathered for it only until forward is done, if a slice of it is kept anyway.
  static constexpr bool gathers_again =
      move_kind(At::on, In::on) == MoveKind::all_gather && !std::is_same_v<TagsOf<Input>, NoTags>;
  static constexpr std::size_t inputs = [] {
    if constexpr (requires { std::tuple_size<Input>::value; }) return std::tuple_size_v<Input>;
    return std::size_t{1};
  }();

 public:
  /// What the part has saved. Where its input is gathered, the slice that arrived instead of it.
  struct Saved {
    Input slice{};  ///< what arrived, if it is gathered again
    /// Which of the part's tensors are the gathered ones: for each input, a bit for each.
    std::array<std::uint64_t, inputs> gathered{};
    typename M::Saved part{};       ///< of the part
    typename After::Saved after{};  ///< of what is applied after the sum
    static constexpr auto fields() {
      return smp::fields(field("slice", &Saved::slice), field("part", &Saved::part), field("after", &Saved::after));
    }
  };

  /// Part `rank` of `ranks` of `whole`, whose parameters are declared, not made.
  /// @throws ConfigError if a size does not divide by the ranks
  TensorParallel(const M& whole, int rank, int ranks)
    requires(Enabled != dynamic)
      : TensorParallel(whole, Cut{0, rank, Enabled == 1 ? ranks : 1}) {}
  /// The same if `enabled`, else all of it.
  /// @throws ConfigError if a size does not divide by the ranks
  TensorParallel(const M& whole, int rank, int ranks, bool enabled)
    requires(Enabled == dynamic)
      : TensorParallel(whole, Cut{0, rank, enabled ? ranks : 1}) {
    enabled_ = enabled;
  }

  /// Calls `f(module, around)` for the part, and for what is applied after the sum.
  template <class F>
  void parts(F&& f) {
    if (!enabled()) {
      if constexpr (Enabled != 1) f(part_, Around<Tags<Where>>{});
    } else if constexpr (Enabled != 0) {
      f(part_, AroundPart<Tags<In>>{});
      f(after_, Around<Tags<End>>{});
    }
  }
  /// This rank's part.
  [[nodiscard]] M& part() noexcept { return part_; }
  /// Whether ranks have parts.
  [[nodiscard]] bool enabled() const noexcept { return Enabled == dynamic ? enabled_ : Enabled == 1; }
  /// Which part this rank has, of how many.
  [[nodiscard]] const Cut& cut() const noexcept { return cut_; }

  /// Moves in, the part, moves out, what is applied once.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    static_assert(expect_module<M, Ctx>());
    if constexpr (Enabled == 0) {
      return forward_whole(ctx, x, saved);
    } else {
      if constexpr (Enabled == dynamic) {
        if (!enabled_) return forward_whole(ctx, x, saved);
      }
      const PartInput whole = moved<In>(ctx, x);
      PartOutput y = spread<PartOutput>(part_.forward(ctx, local<typename M::Input>(whole), saved.part));
      if constexpr (gathers_again) forget(whole, x, saved);
      return Last::forward(after_, ctx, moved<End>(ctx, std::move(y)), saved.after);
    }
  }
  /// The same backward. If the context has a second stream, the gradient of the input is summed over the ranks while
  /// those of the parameters are computed.
  template <class Ctx>
  GradOf<Input> backward(Ctx& ctx, GradOf<Output> dy, Saved& saved) {
    if constexpr (Enabled != 0) {
      if (enabled()) {
        return moved_beside<GradOn<At>>(ctx, gradient_of_part(ctx, std::move(dy), saved),
                                        [&] { backward_params(ctx, saved); });
      }
    }
    GradOf<Input> dx = backward_input(ctx, std::move(dy), saved);
    backward_params(ctx, saved);
    return dx;
  }
  /// The first part of backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    if constexpr (Enabled == 0) {
      return backward_whole(ctx, std::move(dy), saved);
    } else {
      if constexpr (Enabled == dynamic) {
        if (!enabled_) return backward_whole(ctx, std::move(dy), saved);
      }
      return moved<GradOn<At>>(ctx, gradient_of_part(ctx, std::move(dy), saved));
    }
  }
  /// The second part of backward.
  void backward_params(auto& ctx, Saved& saved) {
    Last::backward_params(after_, ctx, saved.after);
    smp::backward_params(part_, ctx, saved.part);
    saved.part = typename M::Saved{};
  }

 private:
  // One rank's part is the module itself: nothing is left to apply after the sum.
  TensorParallel(const M& whole, const Cut& cut)
      : part_(cut.parts == 1 ? whole : part_of<Traits>(whole, cut.part, cut.parts)),
        after_(make_after(cut.parts == 1 ? part_of<Traits>(whole, 0, 1) : whole)),
        cut_(cut) {}

  static After make_after(const M& whole) {
    if constexpr (requires { Traits::after(whole); }) {
      return Traits::after(whole);
    } else {
      return After{};
    }
  }

  Output forward_whole(auto& ctx, const Input& x, Saved& saved) const {
    return moved<End>(ctx, Whole::forward(part_, ctx, moved<Where>(ctx, x), saved.part));
  }
  GradOf<Input> backward_whole(auto& ctx, GradOf<Output> dy, Saved& saved) {
    auto d = moved<GradOn<Where>>(ctx, std::move(dy));
    return moved<GradOn<At>>(ctx, Whole::backward_input(part_, ctx, std::move(d), saved.part));
  }

  /// The gradient of what the part takes, before it is moved.
  GradOf<PartInput> gradient_of_part(auto& ctx, GradOf<Output> dy, Saved& saved) {
    if constexpr (gathers_again) remember(ctx, saved);
    const GradOf<PartOutput> d = moved<GradOn<Out>>(ctx, Last::backward_input(after_, ctx, std::move(dy), saved.after));
    return spread<GradOf<PartInput>>(smp::backward_input(part_, ctx, local<GradOf<typename M::Output>>(d), saved.part));
  }

  /// Calls `f(place, tensor)` for each tensor of the part's Saved that has elements like `T`.
  template <class T, class F>
  static void for_each_like(typename M::Saved& saved, F&& f) {
    unsigned place = 0;
    for_each_tensor(saved, [&](auto& t) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(t)>, T>) f(place, t);
      ++place;
    });
  }
  /// Calls `f(i, tensor, slice)` for each tensor with a distribution of what was gathered and of what arrived.
  template <class F, std::size_t I = 0>
  static void for_each_gathered(const PartInput& whole, const Input& x, F&& f) {
    if constexpr (is_dist<PartInput>) {
      f(std::size_t{0}, whole.local, x.local);
    } else if constexpr (I < std::tuple_size_v<PartInput>) {
      if constexpr (is_dist<std::tuple_element_t<I, PartInput>>) f(I, std::get<I>(whole).local, std::get<I>(x).local);
      for_each_gathered<F, I + 1>(whole, x, std::forward<F>(f));
    }
  }
  void forget(const PartInput& whole, const Input& x, Saved& saved) const {
    saved.gathered = {};
    for_each_gathered(whole, x, [&]<class T>(std::size_t i, const T& gathered, const T& slice) {
      if (gathered.data() == slice.data()) return;  // one rank
      for_each_like<T>(saved.part, [&](unsigned place, T& t) {
        if (t.data() != gathered.data() || place >= 64) return;
        saved.gathered[i] |= std::uint64_t{1} << place;
        t = T{};
      });
      if (saved.gathered[i] != 0) saved.slice = x;
    });
  }
  void remember(auto& ctx, Saved& saved) const {
    if (saved.gathered == std::array<std::uint64_t, inputs>{}) return;
    const PartInput whole = moved<In>(ctx, std::exchange(saved.slice, Input{}));
    for_each_gathered(whole, Input{}, [&]<class T>(std::size_t i, const T& gathered, const T&) {
      for_each_like<T>(saved.part, [&](unsigned place, T& t) {
        if ((saved.gathered[i] >> place & 1) != 0) t = gathered;
      });
    });
    saved.gathered = {};
  }

  M part_;
  After after_;
  Cut cut_;
  [[no_unique_address]] bool enabled_ = Enabled == 1;
};

}  // namespace smp
