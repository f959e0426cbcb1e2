// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What stages send each other: the value that leaves a stage, or the gradient that leaves it on the way back, behind a
/// header that says which it is and of what shapes it is made. So shapes may change whenever they like, and what does
/// not belong together is noticed.

#include <array>
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

/// What a message between two stages says of itself.
struct ParcelHeader {
  std::int64_t step = 0;                                        ///< of the model
  std::int32_t stage = 0;                                       ///< that has made it
  std::int32_t microbatch = 0;                                  ///< of the step
  std::int32_t gradient = 0;                                    ///< 1: goes back
  std::int32_t failed = 0;                                      ///< 1: there is nothing to send, for the reason below
  std::int64_t tensors = 0;                                     ///< how many there are
  std::array<Shape, most_crossing_tensors> shapes{};            ///< of each
  std::array<comm::Element, most_crossing_tensors> elements{};  ///< types of their elements
  std::array<char, 256> reason{};                               ///< of a failure; ends with a zero

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
  /// Notes why there is nothing to send.
  void fail(std::string_view why) noexcept {
    failed = 1;
    tensors = 0;
    std::memcpy(reason.data(), why.data(), why.size() < reason.size() ? why.size() : reason.size() - 1);
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
  bool failed = false;              ///< it will not come
  std::string reason{};             ///< why not

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

/// Sends and receives all of `envelopes`: first the headers, then what they announce. Returns when that has been done.
/// What fails on one rank reaches the others as a parcel that has `failed`.
/// Of an Invariant tensor only this rank's slice has arrived then, in its place; see `join_slices`.
/// @param tp which of the tensor-parallel ranks this is; its peers are the same ones of their stages
/// @param transfers room for the list of messages
template <class Comm, class L>
void exchange_parcels(Comm& comm, std::span<Envelope<L>> envelopes, Memory& memory, const TpPlace& tp,
                      std::vector<comm::Transfer>& transfers) {
  HostStream now;
  transfers.clear();
  for (Envelope<L>& e : envelopes) {
    if (!e.incoming && !e.parcel->failed) describe_tensors(e);
    if (!e.incoming && e.parcel->failed) e.header.fail(e.parcel->reason);
    transfers.push_back(e.incoming ? comm::Transfer::from(e.peer, std::span(&e.found, 1))
                                   : comm::Transfer::to(e.peer, std::span<const ParcelHeader>(&e.header, 1)));
  }
  comm.exchange(now, transfers, Purpose::control);
  transfers.clear();
  for (Envelope<L>& e : envelopes) {
    if (e.incoming && e.found.failed != 0) {
      e.parcel->failed = true;
      e.parcel->reason = e.found.reason.data();
    } else if (e.incoming) {
      make_tensors(e, memory);
    }
    if (e.parcel->failed) continue;
    e.parcel->for_each([&]<class T, class Tag>(T& tensor, Tag) {
      if (e.incoming) {
        transfers.push_back(comm::Transfer::from(e.peer, crossing_part<Tag>(TensorTraits<T>::data(tensor), tp)));
      } else {
        const auto sent = TensorTraits<T>::data(std::as_const(tensor));
        transfers.push_back(comm::Transfer::to(e.peer, crossing_part<Tag>(sent, tp)));
      }
    });
  }
  if (!transfers.empty()) comm.exchange(now, transfers, Purpose::activation);
  for (Envelope<L>& e : envelopes) {
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
  void begin(std::size_t actions, std::size_t exchanges, std::size_t messages) {
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
  template <class Comm>
  void exchange(Comm& comm, Memory& memory, const TpPlace& tp, int number, int first, int last) {
    const std::span<Envelope<L>> some(&envelope(first), static_cast<std::size_t>(last - first));
    stream_.enqueue([this, &comm, &memory, tp, some] { exchange_parcels(comm, some, memory, tp, transfers_); });
    stream_.record(done_[static_cast<std::size_t>(number)]);
  }
  /// Waits for exchange `number`.
  void wait(int number) { done_[static_cast<std::size_t>(number)].wait(); }
  /// Waits for all.
  void finish() { stream_.synchronize(); }

 private:
  std::vector<Parcel<L>> incoming_, outgoing_;         // by action of this rank
  std::vector<std::vector<std::size_t>> slice_sizes_;  // by action of this rank
  std::vector<Envelope<L>> envelopes_;                 // by message
  std::vector<HostEvent> done_;                        // by exchange
  std::vector<comm::Transfer> transfers_;              // of the exchange that is made
  HostStream stream_;                                  // ends before what its tasks use
};

}  // namespace smp
