// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The communicator contract, and the typed operations that every communicator has.
///
/// A communicator stands for this rank's place in one group of ranks. Every operation takes a stream first and is
/// performed there, in order; the buffers belong to the operation until an event behind it, or the stream, has been
/// waited for. All ranks of a group call the same operations in the same order; a communicator is used by one stream
/// at a time.

#include <concepts>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/agreement.hpp>
#include <smp/comm/call.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>

namespace smp::comm {

/// The members of a group, and which of them this rank is.
struct Membership {
  std::string name;              ///< what messages and counters call it: "WORLD", "TP", ...
  std::vector<int> world_ranks;  ///< by rank in the group
  int rank = 0;                  ///< this rank's place in the group

  /// Number of ranks.
  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_ranks.size()); }
};

/// "TP group (world ranks 4,5,6,7), rank 2"
[[nodiscard]] inline std::string describe(const Membership& group) {
  std::string text = group.name + " group (world rank" + (group.size() == 1 ? " " : "s ");
  for (int i = 0; i < group.size(); ++i) {
    if (i >= 8 && i < group.size() - 1) continue;  // a sentence, not a page, at ten thousand ranks
    if (i > 0) text += i == group.size() - 1 && group.size() > 9 ? ",...," : ",";
    text += std::to_string(group.world_ranks[static_cast<std::size_t>(i)]);
  }
  return text + "), rank " + std::to_string(group.rank);
}

/// "all_reduce of 12 float (sum) at train.cpp:80 on TP group (world ranks 0,1), rank 1"
[[nodiscard]] inline std::string describe(const Call& call, const Membership& group) {
  return summary(signature(call)) + " on " + describe(group);
}

/// A contiguous range of elements whose memory an operation can use directly. To have `data()` and `size()` is not
/// enough: strided views have them, a row of a matrix of Eigen for one.
template <class R>
concept ContiguousBuffer = requires(R& range) {
  std::size(range);
  requires std::is_pointer_v<decltype(std::data(range))>;
  requires std::contiguous_iterator<decltype(std::begin(range))>;
};

/// A communicator: a rank in a group, which performs calls in a stream and can be cut into parts.
template <class C>
concept Communicator =
    std::copy_constructible<C> && requires(C& c, const C& k, typename C::Stream& stream, const Call& call) {
      { k.group() } -> std::same_as<const Membership&>;
      { k.rank() } -> std::same_as<int>;
      { k.size() } -> std::same_as<int>;
      c.enqueue(stream, call);
      { c.split(0, 0, std::string()) } -> std::same_as<C>;
    };

/// A communicator whose operations run on the host: `execute` performs a call on the calling thread and returns when
/// this rank's part is done. Transports also have `execute(call, gate)` for calls that send or receive (see OpenGate).
template <class C>
concept HostCommunicator = Communicator<C> && requires(C& c, const Call& call) { c.execute(call); };

/// True if streams with a worker can use `c`: all communicators but an MPI that was not initialised for threads.
template <Communicator C>
[[nodiscard]] bool works_in_any_thread(C& c) noexcept {
  if constexpr (requires { c.any_thread(); }) {
    return c.any_thread();
  } else if constexpr (requires { c.inner(); }) {
    return works_in_any_thread(c.inner());
  } else {
    return true;
  }
}

/// What a caller may say about an operation: its purpose. Remembers where it was called.
struct Tag {
  Purpose purpose;  ///< what the operation is for
  CallSite where;   ///< where it was called
  /// Implicit, so that a plain `Purpose::gradient` can be passed.
  constexpr Tag(Purpose p = Purpose::other, CallSite w = CallSite::current()) noexcept : purpose(p), where(w) {}
};

/// The typed operations of a communicator, made of its `enqueue`. A base of every communicator `Self`.
///
/// Buffers are contiguous ranges (spans, vectors, arrays); a strided view does not compile. In place: pass the buffer
/// twice, or for a gather or a scatter the own piece of the other buffer. Sizes are checked before anything is sent.
/// Sums keep the order of the ranks: ((x0 + x1) + x2) + ..., so results are equal on all ranks and transports.
template <class Self, class StreamType = HostStream>
class Operations {
 public:
  using Stream = StreamType;  ///< what the operations are enqueued in

  /// This rank's place in the group.
  [[nodiscard]] int rank() const noexcept { return self().group().rank; }
  /// Number of ranks in the group.
  [[nodiscard]] int size() const noexcept { return self().group().size(); }

  /// Returns when all ranks have called it.
  void barrier(Stream& stream, Tag tag = {}) { enqueue(stream, make<std::byte>(Operation::barrier, tag)); }

  /// Gives every rank the contents that `buffer` has on rank `root`.
  template <class Buffer>
  void broadcast(Stream& stream, Buffer&& buffer, int root, Tag tag = {}) {
    const auto data = output(buffer);
    Call call = make<typename decltype(data)::value_type>(Operation::broadcast, tag);
    set(call, data, data, data.size());
    call.peer = checked_rank(call, root);
    enqueue(stream, call);
  }

  /// Reduces `in` over the ranks into `out` of rank `root`; `out` is ignored elsewhere and may be empty there.
  template <class In, class Out, class Op>
  void reduce(Stream& stream, const In& in, Out&& out, Op, int root, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_reduction<Op>(Operation::reduce, source, target, tag);
    set(call, source, target, source.size());
    call.peer = checked_rank(call, root);
    if (rank() == root) {
      expect_sizes(call, target.size(), source.size(), "output", "the input's");
      expect_apart(call, source, target, call.input);
    }
    enqueue(stream, call);
  }

  /// Reduces `in` over the ranks into `out` of every rank. Both have the same size on all ranks.
  template <class In, class Out, class Op>
  void all_reduce(Stream& stream, const In& in, Out&& out, Op, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_reduction<Op>(Operation::all_reduce, source, target, tag);
    set(call, source, target, source.size());
    expect_sizes(call, target.size(), source.size(), "output", "the input's");
    expect_apart(call, source, target, call.input);
    enqueue(stream, call);
  }

  /// Reduces `in`, which has a piece for each rank, and gives each rank its piece: `in` is `size()` times `out`.
  template <class In, class Out, class Op>
  void reduce_scatter(Stream& stream, const In& in, Out&& out, Op, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_reduction<Op>(Operation::reduce_scatter, source, target, tag);
    set(call, source, target, target.size());
    expect_sizes(call, source.size(), ranks() * target.size(), "input", "the group's size times the output's");
    expect_apart(call, source, target, own_piece(call, call.input));
    enqueue(stream, call);
  }

  /// The same with pieces of different sizes: `counts` has the elements of each rank's piece, equal on all ranks, and
  /// must live until the operation has run.
  template <class In, class Out, class Op>
  void reduce_scatter_v(Stream& stream, const In& in, Out&& out, std::span<const std::size_t> counts, Op,
                        Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_reduction<Op>(Operation::reduce_scatter_v, source, target, tag);
    set(call, source, target, target.size());
    set_counts(call, counts, target.size(), source.size(), "output", "input");
    expect_apart(call, source, target, own_piece(call, call.input));
    enqueue(stream, call);
  }

  /// Joins the `in` of all ranks, in the order of the ranks, into `out` of every rank: `out` is `size()` times `in`.
  template <class In, class Out>
  void all_gather(Stream& stream, const In& in, Out&& out, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_move(Operation::all_gather, source, target, tag);
    set(call, source, target, source.size());
    expect_sizes(call, target.size(), ranks() * source.size(), "output", "the group's size times the input's");
    expect_apart(call, target, source, own_piece(call, call.output));
    enqueue(stream, call);
  }

  /// The same with pieces of different sizes: `counts` has the elements of each rank's `in`, equal on all ranks, and
  /// must live until the operation has run.
  template <class In, class Out>
  void all_gather_v(Stream& stream, const In& in, Out&& out, std::span<const std::size_t> counts, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_move(Operation::all_gather_v, source, target, tag);
    set(call, source, target, source.size());
    set_counts(call, counts, source.size(), target.size(), "input", "output");
    expect_apart(call, target, source, own_piece(call, call.output));
    enqueue(stream, call);
  }

  /// Sends piece `j` of `in` to rank `j`, where it becomes piece `rank()` of `out`. All pieces have one size.
  template <class In, class Out>
  void all_to_all(Stream& stream, const In& in, Out&& out, Tag tag = {}) {
    const auto source = input(in);
    const auto target = output(out);
    Call call = make_move(Operation::all_to_all, source, target, tag);
    set(call, source, target, source.size() / ranks());
    expect_sizes(call, source.size(), ranks() * call.count, "input", "a multiple of the group's size:");
    expect_sizes(call, target.size(), source.size(), "output", "the input's");
    expect_apart(call, source, target, call.input);
    enqueue(stream, call);
  }

  /// Sends `buffer` to rank `peer`, which receives it. May wait for the receiver. Messages of a pair keep their order.
  template <class Buffer>
  void send(Stream& stream, const Buffer& buffer, int peer, Tag tag = {}) {
    const auto data = input(buffer);
    Call call = make<typename decltype(data)::value_type>(Operation::send, tag);
    set(call, data, std::span<std::byte>{}, data.size());
    call.peer = checked_rank(call, peer);
    enqueue(stream, call);
  }

  /// Receives into `buffer` what rank `source` sends; the sizes must be equal.
  template <class Buffer>
  void recv(Stream& stream, Buffer&& buffer, int source, Tag tag = {}) {
    const auto data = output(buffer);
    Call call = make<typename decltype(data)::value_type>(Operation::recv, tag);
    set(call, std::span<const std::byte>{}, data, 0);
    call.recv_count = data.size();
    call.source = checked_rank(call, source);
    enqueue(stream, call);
  }

  /// Sends `out` to rank `peer` and receives `in` from rank `source` at the same time: neither waits for the other.
  template <class Out, class In>
  void send_recv(Stream& stream, const Out& out, int peer, In&& in, int source, Tag tag = {}) {
    const auto sent = input(out);
    const auto received = output(in);
    Call call = make_move(Operation::send_recv, sent, received, tag);
    set(call, sent, received, sent.size());
    call.recv_count = received.size();
    call.peer = checked_rank(call, peer);
    call.source = checked_rank(call, source);
    expect_apart(call, sent, received, nullptr);
    enqueue(stream, call);
  }

  /// Any number of sends and receives at the same time. `transfers` and what it points to must live until it has run.
  void exchange(Stream& stream, std::span<const Transfer> transfers, Tag tag = {}) {
    Call call = make<std::byte>(Operation::exchange, tag);
    call.transfers = transfers;
    for (const Transfer& t : transfers) checked_rank(call, t.peer);
    enqueue(stream, call);
  }

 private:
  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
  [[nodiscard]] const Self& self() const noexcept { return static_cast<const Self&>(*this); }
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }
  void enqueue(Stream& stream, const Call& call) { self().enqueue(stream, call); }

  template <class R>
  static auto input(const R& range) {
    static_assert(ContiguousBuffer<const R>,
                  "smp: a contiguous buffer is needed here (std::span, std::vector, std::array); copy a strided view "
                  "into one first");
    return std::span<std::add_const_t<std::remove_pointer_t<decltype(std::data(range))>>>(std::data(range),
                                                                                          std::size(range));
  }

  template <class R>
  static auto output(R&& range) {
    static_assert(ContiguousBuffer<R>,
                  "smp: a contiguous buffer is needed here (std::span, std::vector, std::array); copy a strided view "
                  "into one first");
    using T = std::remove_pointer_t<decltype(std::data(range))>;
    static_assert(!std::is_const_v<T>,
                  "smp: this operation writes to the buffer; pass one whose elements are not const");
    return std::span<std::remove_const_t<T>>(const_cast<std::remove_const_t<T>*>(std::data(range)), std::size(range));
  }

  template <class T>
  static Call make(Operation operation, const Tag& tag) {
    Call call;
    call.operation = operation;
    call.purpose = tag.purpose;
    call.element = ElementTraits<T>::element;
    call.element_bytes = sizeof(T);
    call.where = tag.where;
    return call;
  }

  template <class T, class U>
  static Call make_move(Operation operation, std::span<const T>, std::span<U>, const Tag& tag) {
    static_assert(std::is_same_v<T, U>, "smp: input and output of a communication must have the same element type");
    return make<T>(operation, tag);
  }

  template <class Op, class T, class U>
  static Call make_reduction(Operation operation, std::span<const T> in, std::span<U> out, const Tag& tag) {
    Call call = make_move(operation, in, out, tag);
    call.reduction = reduction_of<T, Op>();
    return call;
  }

  template <class T, class U>
  static void set(Call& call, std::span<T> in, std::span<U> out, std::size_t count) noexcept {
    call.input = reinterpret_cast<const std::byte*>(in.data());
    call.output = reinterpret_cast<std::byte*>(out.data());
    call.count = count;
  }

  void set_counts(Call& call, std::span<const std::size_t> counts, std::size_t own, std::size_t all,
                  const char* own_name, const char* all_name) const {
    call.counts = counts;
    std::size_t sum = 0;
    for (const std::size_t n : counts) sum += n;
    expect_sizes(call, counts.size(), ranks(), "list of counts", "the group's:");
    expect_sizes(call, own, counts[static_cast<std::size_t>(rank())], own_name, "counts[rank()],");
    expect_sizes(call, all, sum, all_name, "the sum of the counts,");
  }

  void expect_sizes(const Call& call, std::size_t found, std::size_t expected, const char* what,
                    const char* meaning) const {
    if (found == expected) return;
    throw CommError(describe(call, self().group()) + ": the size of the " + what + " must be " + meaning + " " +
                    std::to_string(expected) + ", but it is " + std::to_string(found));
  }

  /// Where the piece of this rank begins in `buffer`, which has one of each rank.
  template <class Byte>
  [[nodiscard]] Byte* own_piece(const Call& call, Byte* buffer) const noexcept {
    return buffer + Pieces(call).offset(static_cast<std::size_t>(rank())) * call.element_bytes;
  }

  /// In place means exactly in place: `part` begins at `in_place`, or does not overlap `whole`.
  template <class T, class U>
  void expect_apart(const Call& call, std::span<T> whole, std::span<U> part, const std::byte* in_place) const {
    const auto a = reinterpret_cast<std::uintptr_t>(whole.data()), b = reinterpret_cast<std::uintptr_t>(part.data());
    const bool overlap = !whole.empty() && !part.empty() && a < b + part.size_bytes() && b < a + whole.size_bytes();
    if (!overlap || reinterpret_cast<const std::byte*>(part.data()) == in_place) return;
    throw CommError(describe(call, self().group()) + ": input and output overlap; pass " +
                    (in_place == nullptr ? "two buffers" : "the place where the result belongs, or another buffer"));
  }

  int checked_rank(const Call& call, int r) const {
    if (r >= 0 && r < size()) return r;
    throw CommError(describe(call, self().group()) + ": there is no rank " + std::to_string(r) +
                    " in a group of size " + std::to_string(size()));
  }
};

/// Performs `call` in `stream`: at once on the calling thread, or later on the stream's own.
/// @throws ConfigError for a stream with a worker if MPI was not initialised for calls from any thread
template <HostCommunicator C>
void execute_in(HostStream& stream, C& communicator, const Call& call) {
  if (stream.mode() == HostStream::Mode::at_once) {
    communicator.execute(call);
  } else if (works_in_any_thread(communicator)) {
    stream.enqueue([communicator, call]() mutable { communicator.execute(call); });
  } else {
    throw ConfigError(describe(call, communicator.group()) +
                      ": a stream with a worker calls MPI from another thread; initialise MPI with "
                      "MPI_THREAD_MULTIPLE, or enqueue in a stream that runs at once");
  }
}

}  // namespace smp::comm
