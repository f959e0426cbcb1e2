// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Compares, before each operation, what the ranks of a group are about to do. Calls that do not match are named on
/// every rank, where without it they hang or mix their data up. Costs a message to, and from, every rank of the group.

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/comm/decorator.hpp>
#include <smp/comm/note.hpp>
#include <smp/config.hpp>

namespace smp::comm {

/// What `Checked` demands.
struct CheckOptions {
  /// How long a rank waits for the others to come to the operation that it has come to.
  Clock::duration timeout = std::chrono::seconds(60);
  /// All ranks must call a collective operation from one line of the source. Almost every mismatch shows there first;
  /// switch it off for code that calls the same operation in two branches.
  bool same_call_site = true;
};

/// A communicator that compares before it performs.
///
/// Compared are: operation, number of the operation in its group, element type, reduction, root, count or counts, and
/// call site of collective operations; direction, size and element type of messages, which a sender shows its
/// receiver. A difference is thrown as CommError on all ranks of the group, before any data has moved: the ranks in the
/// operation throw there, a rank elsewhere in its next one. The communicator stays usable.
template <HostCommunicator C>
class Checked : public Decorator<Checked<C>, C> {
 public:
  /// Checks `inner`. Collective.
  explicit Checked(C inner, CheckOptions options = {})
      : Decorator<Checked<C>, C>(std::move(inner)),
        options_(options),
        state_(std::make_shared<State>(this->mailbox(), static_cast<std::size_t>(this->size()))) {}

  /// A part of the group, checked as well.
  [[nodiscard]] Checked split(int colour, int key, std::string name) {
    return Checked(this->inner().split(colour, key, std::move(name)), options_);
  }

  /// Checks and performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Checks and performs `call` now.
  /// @throws CommError on every rank if the ranks do not call matching operations, or one does not come in time
  void execute(const Call& call) {
    if (this->size() > 1) compare(call);
    this->inner().execute(call);
  }

 private:
  using Box = decltype(std::declval<const C&>().mailbox());

  struct State {
    State(Box b, std::size_t ranks) : box(std::move(b)), arrived(ranks) {}
    Box box;
    std::vector<std::deque<Note>> arrived;  // and not yet compared, by rank
    std::uint64_t epoch = 0;
    std::uint64_t sequence = 0;
  };

  /// What this rank still has to hear of, from one other.
  struct Awaited {
    int peer;
    Note mine;
    bool heard = false;
  };

  void compare(const Call& call) {
    std::vector<Awaited> awaited;
    if (is_point_to_point(call.operation)) {
      for_each_transfer(call, [&](const Transfer& t) {
        if (t.peer != this->rank()) awaited.push_back({t.peer, note_of(call, t)});
      });
    } else {
      ++state_->sequence;
      for (int peer = 0; peer < this->size(); ++peer) {
        if (peer != this->rank()) awaited.push_back({peer, note_of(call, Note::Kind::collective)});
      }
    }
    for (const Awaited& a : awaited) state_->box.post(a.peer, a.mine);
    const auto deadline = Clock::now() + options_.timeout;
    for (std::size_t missing = awaited.size(); missing > 0;) {
      for (int peer = 0; peer < this->size(); ++peer) receive(call, peer);
      for (Awaited& a : awaited) {
        if (a.heard) continue;
        a.heard = settle(call, a);
        if (a.heard) --missing;
      }
      if (missing > 0) wait_on(call, awaited, deadline);
    }
  }

  [[nodiscard]] Note note_of(const Call& call, Note::Kind kind) const {
    Note note;
    note.kind = kind;
    note.fused = call.operation == Operation::send_recv || call.operation == Operation::exchange;
    note.epoch = state_->epoch;
    note.sequence = state_->sequence;
    note.signature = signature(call);
    std::string file = note.signature.file;
    Note::put(note.file, file.substr(file.find_last_of('/') + 1));
    note.signature.file = nullptr;
    return note;
  }

  [[nodiscard]] Note note_of(const Call& call, const Transfer& t) const {
    Note note = note_of(call, t.incoming ? Note::Kind::recv : Note::Kind::send);
    note.signature.count = t.bytes / call.element_bytes;
    return note;
  }

  /// Takes what has arrived from `peer`, and throws if it reports a fault. A fault begins a new epoch: notes of an
  /// earlier one are of no use any more, and notes of a later one wait until this rank has come to know of the fault.
  void receive(const Call& call, int peer) {
    std::deque<Note>& arrived = state_->arrived[static_cast<std::size_t>(peer)];
    for (Note note; state_->box.poll(peer, note);) arrived.push_back(note);
    while (!arrived.empty() && arrived.front().epoch < state_->epoch) arrived.pop_front();
    for (const Note& note : arrived) {
      if (note.epoch == state_->epoch && note.kind == Note::Kind::fault) raise(call, std::string(Note::get(note.text)));
    }
  }

  /// Looks for the other side of `a.mine` among what has arrived. A message may pass one of the other direction, which
  /// a later operation of this rank will meet; a collective operation passes nothing.
  bool settle(const Call& call, const Awaited& a) {
    std::deque<Note>& arrived = state_->arrived[static_cast<std::size_t>(a.peer)];
    for (auto theirs = arrived.begin(); theirs != arrived.end() && theirs->epoch == state_->epoch; ++theirs) {
      const bool collective = a.mine.kind == Note::Kind::collective;
      if (collective != (theirs->kind == Note::Kind::collective)) disagree(call, "operation", a, *theirs);
      if (!collective && theirs->kind == a.mine.kind) {
        if (!theirs->fused && !a.mine.fused) disagree(call, "direction of a message", a, *theirs);
        continue;
      }
      const char* field = collective ? difference(a.mine, *theirs) : message_difference(a.mine, *theirs);
      if (field != nullptr) disagree(call, field, a, *theirs);
      arrived.erase(theirs);
      return true;
    }
    return false;
  }

  [[nodiscard]] const char* difference(const Note& mine, const Note& theirs) const {
    if (const char* field = differing_field(mine.signature, theirs.signature)) return field;
    if (mine.sequence != theirs.sequence) return "number of operations so far";
    const bool same_place =
        mine.signature.line == theirs.signature.line && Note::get(mine.file) == Note::get(theirs.file);
    return options_.same_call_site && !same_place ? "call site" : nullptr;
  }

  [[nodiscard]] static const char* message_difference(const Note& mine, const Note& theirs) {
    const Signature& a = mine.signature;
    const Signature& b = theirs.signature;
    if (a.count * a.element_bytes != b.count * b.element_bytes) return "size of a message";
    const bool known = a.element != Element::opaque && b.element != Element::opaque;
    return known && a.element != b.element ? "element type" : nullptr;
  }

  void wait_on(const Call& call, const std::vector<Awaited>& awaited, Clock::time_point deadline) {
    const bool late = Clock::now() >= deadline;
    std::string missing;
    for (const Awaited& a : awaited) {
      if (a.heard || (!late && !state_->box.gone(a.peer))) continue;
      receive(call, a.peer);  // what it posted before it went
      if (!state_->arrived[static_cast<std::size_t>(a.peer)].empty()) continue;
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(a.peer);
    }
    if (!missing.empty() || late) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
      fault(call, (missing.empty() ? std::string("no rank") : missing) + " has not come to " +
                      summary(signature(call)) + ", called by rank " + std::to_string(this->rank()) +
                      (late ? ", within " + std::to_string(ms) + " ms" : ", and has returned"));
    }
    state_->box.pause();
  }

  [[noreturn]] void disagree(const Call& call, const char* field, const Awaited& a, const Note& theirs) {
    Signature other = theirs.signature;
    const std::string file(Note::get(theirs.file));
    other.file = file.c_str();
    Signature mine = a.mine.signature;
    const std::string my_file(Note::get(a.mine.file));
    mine.file = my_file.c_str();
    fault(call, this->rank() < a.peer ? disagreement(field, this->rank(), mine, a.peer, other)
                                      : disagreement(field, a.peer, other, this->rank(), mine));
  }

  /// Tells all ranks, and throws.
  [[noreturn]] void fault(const Call& call, const std::string& text) {
    Note note;
    note.kind = Note::Kind::fault;
    note.epoch = state_->epoch;
    Note::put(note.text, text);
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer != this->rank()) state_->box.post(peer, note);
    }
    raise(call, text);
  }

  [[noreturn]] void raise(const Call& call, const std::string& text) {
    ++state_->epoch;
    state_->sequence = 0;
    throw CommError(describe(call, this->group()) + ": " + text);
  }

  CheckOptions options_;
  std::shared_ptr<State> state_;
};

/// `Checked<C>` at SMP_CHECK_LEVEL 2, else `C`.
template <HostCommunicator C>
using ByCheckLevel = std::conditional_t<check_level >= 2, Checked<C>, C>;

}  // namespace smp::comm
