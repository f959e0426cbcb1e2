// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Gathers made of messages: whole pieces go from the output of one rank straight to their place in the output of
/// another, whichever order the ranks of a node have. No packing, and no buffer beside the output.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/decorator.hpp>
#include <smp/device/copy.hpp>

namespace smp::comm {

/// True for the operations that join a piece of each rank.
[[nodiscard]] constexpr bool is_all_gather(Operation o) noexcept {
  return o == Operation::all_gather || o == Operation::all_gather_v;
}

/// One message of a gather. Two ranks that have several for each other list them in one order.
struct PieceMessage {
  int peer = 0;           ///< rank of the other side
  int piece = 0;          ///< which piece of the gathered buffer
  bool incoming = false;  ///< received, not sent
  friend bool operator==(const PieceMessage&, const PieceMessage&) = default;
};

/// The messages of one gather at a time. Keeps its memory: after the first gather nothing is allocated.
class PieceMessages {
 public:
  /// Begins `gather`, a call of rank `rank` of `ranks`: its own piece goes to its place. The call must live until the
  /// last `exchange`.
  void begin(const Call& gather, int rank, int ranks) {
    gather_ = &gather;
    own_ = rank;
    begins_.resize(static_cast<std::size_t>(ranks) + 1);
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) {
      begins_[r + 1] = begins_[r] + (gather.counts.empty() ? gather.count : gather.counts[r]) * gather.element_bytes;
    }
    const std::span<std::byte> own = place(rank);
    if (own.data() != gather.input) copy_bytes(own.data(), gather.input, own.size(), Store::cached);
  }

  /// Sends and receives `messages` between the members of `group`; returns when they have arrived.
  template <HostCommunicator C>
  void exchange(C& group, std::span<const PieceMessage> messages) {
    if (messages.empty()) return;
    transfers_.clear();
    for (const PieceMessage& m : messages) {
      const std::span<std::byte> bytes = place(m.piece);
      const std::byte* data = m.piece == own_ ? gather_->input : bytes.data();  // not what was written just now
      transfers_.push_back(m.incoming ? Transfer::from(m.peer, bytes)
                                      : Transfer::to(m.peer, std::span(data, bytes.size())));
    }
    Call call;
    call.operation = Operation::exchange;
    call.purpose = gather_->purpose;
    call.element = gather_->element;
    call.element_bytes = gather_->element_bytes;
    call.where = gather_->where;
    call.transfers = transfers_;
    group.execute(call);
  }

 private:
  /// Where piece `i` is in the output.
  [[nodiscard]] std::span<std::byte> place(int i) const noexcept {
    const auto piece = static_cast<std::size_t>(i);
    return {gather_->output + begins_[piece], begins_[piece + 1] - begins_[piece]};
  }

  const Call* gather_ = nullptr;
  int own_ = 0;
  std::vector<std::size_t> begins_;  // of each piece, in bytes, and the end of the last
  std::vector<Transfer> transfers_;
};

/// A communicator whose gathers take one step: every rank sends its piece to every other one directly. The least
/// latency, where the network has a path between any two ranks. Other operations are those of the communicator inside.
template <HostCommunicator C>
class OneHop : public Decorator<OneHop<C>, C> {
 public:
  /// Around `inner`.
  explicit OneHop(C inner) : Decorator<OneHop<C>, C>(std::move(inner)), state_(std::make_shared<State>()) {
    const int ranks = this->size();
    for (int i = 1; i < ranks; ++i) {  // not all to one rank at a time
      const int to = (this->rank() + i) % ranks;
      const int from = (this->rank() + ranks - i) % ranks;
      state_->steps.push_back({to, this->rank(), false});
      state_->steps.push_back({from, from, true});
    }
  }

  /// A part of the group, which gathers likewise.
  [[nodiscard]] OneHop split(int colour, int key, std::string name) {
    return OneHop(this->inner().split(colour, key, std::move(name)));
  }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate) {
    if (!is_all_gather(call.operation)) {
      this->inner().execute(call, gate...);
      return;
    }
    state_->messages.begin(call, this->rank(), this->size());
    state_->messages.exchange(this->inner(), state_->steps);
  }

 private:
  struct State {
    std::vector<PieceMessage> steps;
    PieceMessages messages;
  };
  std::shared_ptr<State> state_;
};

}  // namespace smp::comm
