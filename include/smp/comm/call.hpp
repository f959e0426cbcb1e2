// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One communication as a value. The typed operations of a communicator make a `Call` of their arguments; transports
/// perform it, and decorators (counting, checking, delaying, recording) look at it, each in one place for all
/// operations.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <smp/comm/element.hpp>
#include <smp/comm/reduction.hpp>

namespace smp {

/// What a communication is for. Counters keep purposes apart, so that a promise about gradients is not blurred by a
/// norm.
enum class Purpose : unsigned char {
  other,
  parameter,
  gradient,
  optimizer,
  activation,
  loss,
  norm,
  checkpoint,
  control
};

/// Number of purposes.
inline constexpr std::size_t purposes = 9;

/// The name of a purpose, as counters print it.
[[nodiscard]] constexpr const char* name(Purpose p) noexcept {
  constexpr const char* names[purposes] = {"other", "parameter", "gradient",   "optimizer", "activation",
                                           "loss",  "norm",      "checkpoint", "control"};
  return names[static_cast<std::size_t>(p)];
}

namespace comm {

/// The operations of a communicator.
enum class Operation : unsigned char {
  barrier,
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  reduce_scatter_v,
  all_gather,
  all_gather_v,
  all_to_all,
  send,
  recv,
  send_recv,
  exchange
};

/// Number of operations.
inline constexpr std::size_t operations = 13;

/// The name of an operation, as messages and counters print it.
[[nodiscard]] constexpr const char* name(Operation o) noexcept {
  constexpr const char* names[operations] = {
      "barrier",      "broadcast",  "reduce", "all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather",
      "all_gather_v", "all_to_all", "send",   "recv",       "send_recv",      "exchange"};
  return names[static_cast<std::size_t>(o)];
}

/// True for the operations between pairs of ranks; the others involve every rank of the group.
[[nodiscard]] constexpr bool is_point_to_point(Operation o) noexcept { return o >= Operation::send; }

/// One message of an `exchange`: bytes that are sent to, or received from, rank `peer` of the group.
struct Transfer {
  const std::byte* sent = nullptr;  ///< the bytes, if outgoing
  std::byte* received = nullptr;    ///< where the bytes go, if incoming
  std::size_t bytes = 0;            ///< size of the message
  int peer = 0;                     ///< rank of the other side in the group
  bool incoming = false;            ///< received, not sent
  bool control = false;             ///< counted as control, whatever the other messages are for

  /// A message of this rank to `peer`.
  template <class T>
  [[nodiscard]] static Transfer to(int peer, std::span<const T> data) noexcept {
    return {reinterpret_cast<const std::byte*>(data.data()), nullptr, data.size_bytes(), peer, false};
  }
  /// A message of `peer` to this rank.
  template <class T>
  [[nodiscard]] static Transfer from(int peer, std::span<T> data) noexcept {
    return {nullptr, reinterpret_cast<std::byte*>(data.data()), data.size_bytes(), peer, true};
  }
};

/// A place in the source. Used as std::source_location is, which g++ 12 breaks: when it clones an inline function, the
/// constants of that class stay behind in a section that the linker drops.
class CallSite {
 public:
  /// No place.
  constexpr CallSite() noexcept = default;

  /// The place of the call that this is a default argument of.
  [[nodiscard]] static constexpr CallSite current(const char* file = __builtin_FILE(),
                                                  std::uint32_t line = __builtin_LINE()) noexcept {
    CallSite site;
    site.file_ = file;
    site.line_ = line;
    return site;
  }

  /// The path as the compiler was given it.
  [[nodiscard]] constexpr const char* file_name() const noexcept { return file_; }
  /// The number of the line, from 1.
  [[nodiscard]] constexpr std::uint32_t line() const noexcept { return line_; }

 private:
  const char* file_ = "";
  std::uint32_t line_ = 0;
};

/// One communication with its types erased. Which fields matter, and what `count` counts, depends on the operation.
struct Call {
  Operation operation = Operation::barrier;  ///< which operation
  Purpose purpose = Purpose::other;          ///< what it is for
  Element element = Element::opaque;         ///< type of the elements
  Reduction reduction{};                     ///< of the reductions
  std::size_t element_bytes = 1;             ///< size of one element
  const std::byte* input = nullptr;          ///< what this rank gives
  std::byte* output = nullptr;               ///< where this rank gets the result
  /// Elements: of the whole buffer (broadcast, reduce, all_reduce), of one rank's piece (reduce_scatter, all_gather,
  /// all_to_all), or of the message that is sent (send, send_recv).
  std::size_t count = 0;
  std::size_t recv_count = 0;             ///< elements of the message that is received (recv, send_recv)
  std::span<const std::size_t> counts{};  ///< elements of each rank's piece (the `_v` forms)
  int peer = -1;                          ///< root, or the rank that is sent to
  int source = -1;                        ///< the rank that is received from
  std::span<const Transfer> transfers{};  ///< the messages of an `exchange`
  CallSite where{};                       ///< where the operation was called
};

/// Calls `f(Transfer)` for each message that this point-to-point call sends or receives.
template <class F>
constexpr void for_each_transfer(const Call& call, F&& f) {
  if (call.peer >= 0) f(Transfer{call.input, nullptr, call.count * call.element_bytes, call.peer, false});
  if (call.source >= 0) f(Transfer{nullptr, call.output, call.recv_count * call.element_bytes, call.source, true});
  for (const Transfer& t : call.transfers) f(t);
}

/// Lets every message of a call begin at once, receives first. A gate decides when the messages of a call begin:
/// `look(begin)` calls `begin(transfer)` for each that may begin now and has not yet, and returns true when there will
/// be no more; `pause()` passes the time until the next look.
struct OpenGate {
  const Call& call;  ///< what sends or receives

  /// Begins all.
  template <class Begin>
  bool look(Begin begin) const {
    for_each_transfer(call, [&](const Transfer& t) {
      if (t.incoming) begin(t);
    });
    for_each_transfer(call, [&](const Transfer& t) {
      if (!t.incoming) begin(t);
    });
    return true;
  }
  /// Never needed.
  static constexpr void pause() noexcept {}
};

/// Where the pieces of a buffer begin that belong to the ranks of a group: equal pieces, or one count per rank.
class Pieces {
 public:
  /// The pieces of the `_v` forms, or of equal ones.
  explicit constexpr Pieces(const Call& call) noexcept : equal_(call.count), counts_(call.counts) {}

  /// Pieces of these sizes.
  explicit constexpr Pieces(std::span<const std::size_t> counts) noexcept : equal_(0), counts_(counts) {}

  /// The `count` elements of an all-reduce cut for `ranks`, in multiples of `granule` elements: the last may be short
  /// or empty. No two ranks write to one cache line of an aligned buffer.
  constexpr Pieces(std::size_t count, std::size_t ranks, std::size_t granule) noexcept
      : equal_((count / ranks + (count % ranks != 0 ? 1 : 0) + granule - 1) / granule * granule), limit_(count) {}

  /// Elements before the piece of `rank`.
  [[nodiscard]] constexpr std::size_t offset(std::size_t rank) const noexcept {
    if (counts_.empty()) return std::min(rank * equal_, limit_);
    std::size_t sum = 0;
    for (std::size_t r = 0; r < rank; ++r) sum += counts_[r];
    return sum;
  }

  /// Elements of the piece of `rank`.
  [[nodiscard]] constexpr std::size_t size(std::size_t rank) const noexcept {
    return counts_.empty() ? offset(rank + 1) - offset(rank) : counts_[rank];
  }

 private:
  std::size_t equal_;
  std::size_t limit_ = static_cast<std::size_t>(-1);
  std::span<const std::size_t> counts_{};
};

/// "file:line" without directories, for messages.
[[nodiscard]] inline std::string place(std::string file, std::uint32_t line) {
  file.erase(0, file.find_last_of('/') + 1);
  return std::move(file) + ":" + std::to_string(line);
}

}  // namespace comm
}  // namespace smp
