// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What stages send each other: the value that leaves a stage, or the gradient that leaves it on the way back, behind a
/// header that says which it is and of what shapes it is made. So shapes may change whenever they like, and what does
/// not belong together is noticed.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/element.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/device/memory.hpp>
#include <smp/error.hpp>
#include <smp/pipeline/crossing.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// Whether a rank, or one that it has heard of, has failed, and why.
struct ParcelFailure {
  std::int32_t failed = 0;         ///< 1: it has
  std::array<char, 256> reason{};  ///< ends with a zero

  /// It has, for the first reason that is given.
  void note(std::string_view why) noexcept {
    if (failed != 0) return;
    failed = 1;
    std::memcpy(reason.data(), why.data(), why.size() < reason.size() ? why.size() : reason.size() - 1);
  }
};

/// What a message between two stages says of itself.
struct ParcelHeader {
  std::int64_t step = 0;                                        ///< of the model
  std::int32_t stage = 0;                                       ///< that has made it
  std::int32_t microbatch = 0;                                  ///< of the step
  std::int32_t gradient = 0;                                    ///< 1: goes back
  std::int64_t tensors = 0;                                     ///< how many there are
  std::array<Shape, most_crossing_tensors> shapes{};            ///< of each
  std::array<comm::Element, most_crossing_tensors> elements{};  ///< types of their elements
  ParcelFailure failure{};                                      ///< if there is nothing to send

  /// Whether it is what `expected` names.
  [[nodiscard]] bool answers(const ParcelHeader& expected) const noexcept {
    return step == expected.step && stage == expected.stage && microbatch == expected.microbatch &&
           gradient == expected.gradient;
  }
  /// "the gradient of micro-batch 3 from stage 1 in step 7"
  [[nodiscard]] std::string text() const {
    return std::string(gradient != 0 ? "the gradient" : "the value") + " of micro-batch " + std::to_string(microbatch) +
           " from stage " + std::to_string(stage) + " in step " + std::to_string(step);
  }
};

/// Calls `f(tensor)` or `f(tensor, tag)` for each tensor of whichever alternative a variant has.
template <class Variant, class F>
void for_each_tensor_of(Variant& variant, F&& f) {
  std::visit([&](auto& value) { for_each_tensor(value, f); }, variant);
}

/// A value or a gradient on its way: of a stage to the next one on this rank, to another rank, or from there.
/// @tparam L `Layers` of a model
template <class L>
struct Parcel {
  typename L::Value value{};        ///< what goes forward, or
  typename L::Gradient gradient{};  ///< what comes back

  /// Calls `f(tensor)` or `f(tensor, tag)` for each tensor in it.
  template <class F>
  void for_each(F&& f) {
    for_each_tensor_of(value, f);
    for_each_tensor_of(gradient, f);
  }
};

/// One message of an exchange.
template <class L>
struct Envelope {
  Parcel<L>* parcel = nullptr;  ///< what is sent; where what is received goes: it has the types, but no tensors yet
  int peer = 0;                 ///< the other rank
  bool incoming = false;        ///< received, not sent
  ParcelHeader header{};        ///< what is sent with it, or what it should say
  ParcelHeader found{};         ///< what it says
  ParcelFailure answer{};       ///< of the other rank
};

/// What the exchanges of a rank have in common.
struct ParcelExchange {
  TpPlace tp{};             ///< which of the tensor-parallel ranks this is; its peers are the same ones of their stages
  bool answers = false;     ///< both ranks of a message say what they know of failures, before it and with it
  ParcelFailure failure{};  ///< in this step, here or at a peer, as far as is known
  std::vector<comm::Transfer> transfers{};  ///< room
};

/// Notes shapes and types in the header of what is sent.
template <class L>
void describe_tensors(Envelope<L>& envelope) {
  ParcelHeader& header = envelope.header;
  envelope.parcel->for_each([&]<class T>(T& tensor) {
    const auto at = static_cast<std::size_t>(header.tensors++);
    if (at >= most_crossing_tensors) {
      throw ConfigError("a value between two stages of a pipeline has more than " +
                        std::to_string(most_crossing_tensors) + " tensors");
    }
    header.shapes[at] = TensorTraits<T>::shape(tensor);
    header.elements[at] = comm::ElementTraits<typename TensorTraits<T>::element>::element;
  });
}

/// Makes the tensors that a header announces.
/// @throws CommError if it is not what was to come
template <class L>
void make_tensors(Envelope<L>& envelope, Memory& memory) {
  const ParcelHeader& found = envelope.found;
  const auto refuse = [&](const std::string& what) {
    throw CommError("the pipeline expected " + envelope.header.text() + " from rank " + std::to_string(envelope.peer) +
                    " of its PP group, " + what + "; do all ranks of the group run the same batches?");
  };
  if (!found.answers(envelope.header)) refuse("but found " + found.text());
  std::int64_t made = 0;
  envelope.parcel->for_each([&]<class T>(T& tensor) {
    const auto at = static_cast<std::size_t>(made++);
    if (at >= static_cast<std::size_t>(found.tensors)) return;
    if (found.elements[at] != comm::ElementTraits<typename TensorTraits<T>::element>::element) {
      refuse("but its tensor " + std::to_string(at) + " is of another type");
    }
    tensor = TensorTraits<T>::make(memory, found.shapes[at]);
  });
  if (made != found.tensors) {
    refuse("and " + std::to_string(made) + " tensors, but found " + std::to_string(found.tensors));
  }
}

/// Notes what the other rank of a message has said of failures.
template <class L>
void hear(const Envelope<L>& envelope, ParcelFailure& failure) noexcept {
  for (const ParcelFailure* said : {&envelope.found.failure, &envelope.answer}) {
    if (said->failed != 0) failure.note(said->reason.data());
  }
}

/// Lists the messages that the tensors of a parcel are.
template <class L>
void list_tensors(Envelope<L>& e, ParcelExchange& state) {
  e.parcel->for_each([&]<class T, class Tag>(T& tensor, Tag) {
    if (e.incoming) {
      const auto received = crossing_part<Tag>(TensorTraits<T>::data(tensor), state.tp);
      state.transfers.push_back(comm::Transfer::from(e.peer, received));
    } else {
      const auto sent = crossing_part<Tag>(TensorTraits<T>::data(std::as_const(tensor)), state.tp);
      state.transfers.push_back(comm::Transfer::to(e.peer, sent));
    }
  });
}

/// Sends and receives all of `envelopes`: first the headers, then what they announce. Returns when that has been done.
/// Of an Invariant tensor only this rank's slice has arrived then, in its place; see `join_slices`.
///
/// What fails on one rank reaches the others in place of what it would have sent, and from then on they send nothing
/// else. With answers, a rank that knows of no failure after an exchange has met peers that knew of none, nor did the
/// peers of those when they began it. So whatever they had to do before, together with ranks that are in no exchange
/// with this one, has been done, and those ranks come through their exchanges as far. The second answers are needed
/// because a rank sends no tensors before it has all of its headers.
template <class Comm, class L>
void exchange_parcels(Comm& comm, std::span<Envelope<L>> envelopes, Memory& memory, ParcelExchange& state) {
  HostStream now;
  std::vector<comm::Transfer>& transfers = state.transfers;
  const ParcelFailure own = state.failure;
  transfers.clear();
  for (Envelope<L>& e : envelopes) {
    e.header.failure = own;
    if (!e.incoming && own.failed == 0) describe_tensors(e);
    transfers.push_back(e.incoming ? comm::Transfer::from(e.peer, std::span(&e.found, 1))
                                   : comm::Transfer::to(e.peer, std::span<const ParcelHeader>(&e.header, 1)));
    if (!state.answers) continue;
    transfers.push_back(e.incoming ? comm::Transfer::to(e.peer, std::span<const ParcelFailure>(&own, 1))
                                   : comm::Transfer::from(e.peer, std::span(&e.answer, 1)));
  }
  comm.exchange(now, transfers, Purpose::control);
  transfers.clear();
  for (const Envelope<L>& e : envelopes) hear(e, state.failure);
  const ParcelFailure heard = state.failure;
  for (Envelope<L>& e : envelopes) {
    const bool failed = (e.incoming ? e.found.failure : own).failed != 0;
    if (!failed && e.incoming) make_tensors(e, memory);
    if (!failed) list_tensors(e, state);
    if (!state.answers) continue;
    transfers.push_back(comm::Transfer::to(e.peer, std::span<const ParcelFailure>(&heard, 1)));
    transfers.back().control = true;
    transfers.push_back(comm::Transfer::from(e.peer, std::span(&e.answer, 1)));
    transfers.back().control = true;
  }
  if (!transfers.empty()) comm.exchange(now, transfers, Purpose::activation);
  for (Envelope<L>& e : envelopes) {
    hear(e, state.failure);
    if (!e.incoming) *e.parcel = {};  // it has been sent
  }
}

/// The messages of a pipeline's rank: a queue of exchanges that are made in order, by a thread of its own if the
/// communicator works there.
/// @tparam L `Layers` of the model
template <class L>
class PipelineMail {
 public:
  /// @param beside with a thread of its own
  explicit PipelineMail(bool beside)
      : stream_(beside ? HostStream::Mode::worker : HostStream::Mode::at_once, beside ? 64 : 1) {}

  /// Makes room for a step of `actions` actions and `exchanges` exchanges of `messages` messages in all.
  /// @param tp which of the tensor-parallel ranks this is
  /// @param answers for `ParcelExchange`
  void begin(std::size_t actions, std::size_t exchanges, std::size_t messages, const TpPlace& tp, bool answers) {
    state_.tp = tp;
    state_.answers = answers;
    state_.failure = {};
    failed_.store(false);
    if (incoming_.size() < actions) incoming_.resize(actions);
    if (outgoing_.size() < actions) outgoing_.resize(actions);
    if (slice_sizes_.size() < actions) slice_sizes_.resize(actions);
    if (envelopes_.size() < messages) envelopes_.resize(messages);
    while (done_.size() < exchanges) done_.emplace_back();
  }
  /// What an action is given.
  [[nodiscard]] Parcel<L>& incoming(std::size_t action) noexcept { return incoming_[action]; }
  /// What an action has made for another rank.
  [[nodiscard]] Parcel<L>& outgoing(std::size_t action) noexcept { return outgoing_[action]; }
  /// Sizes of slices of what an action is given, for `join_slices`.
  [[nodiscard]] std::vector<std::size_t>& slice_sizes(std::size_t action) noexcept { return slice_sizes_[action]; }
  /// A message of the step.
  [[nodiscard]] Envelope<L>& envelope(int message) noexcept { return envelopes_[static_cast<std::size_t>(message)]; }

  /// Makes exchange `number`, of the messages `first` to `last - 1`, after those before it.
  /// @param failure why this rank has failed, or null; lives until the exchanges have been made
  template <class Comm>
  void exchange(Comm& comm, Memory& memory, const std::string* failure, int number, int first, int last) {
    const std::span<Envelope<L>> some(&envelope(first), static_cast<std::size_t>(last - first));
    stream_.enqueue([this, &comm, &memory, failure, some] {
      if (failure != nullptr) state_.failure.note(*failure);
      exchange_parcels(comm, some, memory, state_);
      if (state_.failure.failed != 0) failed_.store(true);
    });
    stream_.record(done_[static_cast<std::size_t>(number)]);
  }
  /// Waits for exchange `number`.
  void wait(int number) { done_[static_cast<std::size_t>(number)].wait(); }
  /// True if an exchange that has been made has told of a failure; known of each one that was waited for.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }
  /// Why.
  /// @pre `failed()`
  [[nodiscard]] std::string failure() const { return state_.failure.reason.data(); }
  /// Waits for all.
  void finish() { stream_.synchronize(); }

 private:
  std::vector<Parcel<L>> incoming_, outgoing_;         // by action of this rank
  std::vector<std::vector<std::size_t>> slice_sizes_;  // by action of this rank
  std::vector<Envelope<L>> envelopes_;                 // by message
  std::vector<HostEvent> done_;                        // by exchange
  ParcelExchange state_;                               // changed by the exchanges
  std::atomic<bool> failed_{false};                    // the failure is not changed any more
  HostStream stream_;                                  // ends before what its tasks use
};

}  // namespace smp
