// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Compares, before each operation, what the ranks of a group are about to do. Calls that do not match are named on
/// every rank, where without it they hang or mix their data up. Costs a message to, and from, every rank of the group.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
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
/// receiver. A difference is thrown as CommError on all ranks of the group: the ranks in the operation throw there, a
/// rank elsewhere in its next one. No data moves but that of messages which match, and the communicator stays usable;
/// after a time-out, unless the missing rank came at the very moment.
///
/// How it works. Every rank posts notes of what it is going to do, and waits for those of the ranks it does it with.
/// The first that sees a difference posts a fault. Faults divide the life of a group into epochs: a rank that hears of
/// one passes it on, throws, and is in the next epoch. Notes between two ranks keep their order, so behind a fault
/// there is nothing more of its epoch. Two ranks whose notes of a message match both perform it, fault or not: neither
/// could know otherwise whether the other one waits for it. The same holds for a collective operation and the notes of
/// all ranks.
template <HostCommunicator C>
class Checked : public Decorator<Checked<C>, C> {
 public:
  /// Checks `inner`. Collective.
  explicit Checked(C inner, CheckOptions options = {})
      : Decorator<Checked<C>, C>(std::move(inner)),
        options_(options),
        state_(std::make_shared<State>(this->mailbox(), static_cast<std::size_t>(this->size()))) {}

  /// A part of the group, checked as well. Compared is that all ranks call it.
  [[nodiscard]] Checked split(int colour, int key, std::string name, CallSite where = CallSite::current()) {
    if (this->size() > 1) agree(split_call(where));
    return Checked(this->inner().split(colour, key, std::move(name)), options_);
  }

  /// Checks and performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Checks and performs `call` now.
  /// @throws CommError on every rank if the ranks do not call matching operations, or one does not come in time
  void execute(const Call& call) {
    if (this->size() == 1) {
      this->inner().execute(call);
    } else if (is_point_to_point(call.operation)) {
      Gate gate(*this, call);
      this->inner().execute(call, gate);
      if (state_->fault) raise(call);
    } else {
      agree(call);
      this->inner().execute(call);
    }
  }

 private:
  using Box = decltype(std::declval<const C&>().mailbox());

  /// What is between this rank and another.
  struct Peer {
    std::deque<Note> notes;                    // that have arrived, and have not been compared yet
    bool whole = true;                         // all that its present operation announces to this rank has arrived
    std::array<std::uint64_t, 3> announced{};  // to it in this epoch, by kind of note
  };

  struct State {
    State(Box b, std::size_t ranks) : box(std::move(b)), peers(ranks) {}
    Box box;
    std::vector<Peer> peers;
    std::uint64_t epoch = 0;
    std::optional<std::string> fault;  // of this epoch: known, and not yet thrown
  };

  /// What has become of an announcement of this rank: nothing yet; the same from the other side; nothing ever.
  enum class Answer : unsigned char { none, match, refusal };

  /// Lets through the messages of one call that both sides have announced alike.
  class Gate {
   public:
    Gate(Checked& checked, const Call& call) : checked_(checked), call_(call) {
      checked.begin(call);
      for_each_transfer(call, [&](const Transfer& t) { pending_.push_back({t, checked.note_of(call, t)}); });
      for (auto p = pending_.begin(); p != pending_.end(); ++p) {
        p->mine.last = std::none_of(std::next(p), pending_.end(),
                                    [&](const Pending& later) { return later.transfer.peer == p->transfer.peer; });
        checked.announce(p->transfer.peer, p->mine);
      }
    }

    template <class Begin>
    bool look(Begin begin) {
      const bool late = Clock::now() >= deadline_;  // before looking: what came in time counts
      checked_.hear(call_);
      std::erase_if(pending_, [&](const Pending& p) {
        const Answer answer = checked_.answer(p.transfer.peer, p.mine);
        if (answer == Answer::match) begin(p.transfer);
        return answer != Answer::none;
      });
      std::erase_if(pending_, [&](const Pending& p) { return checked_.is_crossed(p.transfer.peer, p.mine); });
      std::vector<int> peers;
      for (const Pending& p : pending_) {
        const int peer = p.transfer.peer;
        if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
      }
      const std::string why = checked_.gives_up(call_, peers, late);
      if (!why.empty()) {
        for (const Pending& p : pending_) checked_.retract(p.transfer.peer, p.mine.kind);
        pending_.clear();
        checked_.fail(why, true);
      }
      return pending_.empty();
    }

    void pause() { checked_.state_->box.pause(); }

   private:
    struct Pending {
      Transfer transfer;
      Note mine;
    };
    Checked& checked_;
    const Call& call_;
    std::vector<Pending> pending_;
    Clock::time_point deadline_ = Clock::now() + checked_.options_.timeout;
  };

  /// Returns when all ranks have announced the collective operation `call`.
  void agree(const Call& call) {
    begin(call);
    Note mine = note_of(call, Note::Kind::collective);
    std::vector<int> missing;
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer == this->rank()) continue;
      missing.push_back(peer);
      announce(peer, mine);
    }
    const auto deadline = Clock::now() + options_.timeout;
    for (bool refused = false;;) {
      const bool late = Clock::now() >= deadline;  // before looking: what came in time counts
      hear(call);
      std::erase_if(missing, [&](int peer) {
        const Answer a = answer(peer, mine);
        refused = refused || a == Answer::refusal;
        return a == Answer::match;
      });
      if (refused) raise(call);
      if (missing.empty()) return;
      const std::string why = gives_up(call, missing, late);
      if (!why.empty()) {
        for (int peer = 0; peer < this->size(); ++peer) {
          if (peer != this->rank()) retract(peer, mine.kind);
        }
        fail(why, true);
        raise(call);
      }
      state_->box.pause();
    }
  }

  /// Before anything is announced: a fault that others have seen is thrown here.
  void begin(const Call& call) {
    hear(call);
    if (state_->fault) raise(call);
  }

  /// Posts `note` to `peer`, and numbers it.
  void announce(int peer, Note& note) {
    note.sequence = ++of(peer).announced[static_cast<std::size_t>(note.kind)];
    state_->box.post(peer, note);
  }
  /// From now on this rank does not stand by its last note of this kind to `peer`.
  void retract(int peer, Note::Kind kind) { --of(peer).announced[static_cast<std::size_t>(kind)]; }

  [[nodiscard]] Note note_of(const Call& call, Note::Kind kind) const {
    Note note;
    note.kind = kind;
    note.epoch = state_->epoch;
    note.signature = signature(call);
    const std::string file = note.signature.file;
    Note::put(note.file, file.substr(file.find_last_of('/') + 1));
    note.signature.file = nullptr;
    return note;
  }

  [[nodiscard]] Note note_of(const Call& call, const Transfer& t) const {
    Note note = note_of(call, t.incoming ? Note::Kind::recv : Note::Kind::send);
    note.signature.count = t.bytes / call.element_bytes;
    return note;
  }

  /// Takes what has arrived. Notes of an earlier epoch are of no use any more; those of a later one wait until this
  /// rank has come there.
  void hear(const Call& call) {
    std::string why;
    if (state_->box.ended(why)) throw CommError(describe(call, this->group()) + ": " + why);
    for (int rank = 0; rank < this->size(); ++rank) {
      Peer& peer = of(rank);
      for (Note note; state_->box.poll(rank, note);) {
        if (note.kind == Note::Kind::send || note.kind == Note::Kind::recv) peer.whole = note.last;
        peer.notes.push_back(note);
      }
      while (!peer.notes.empty() && peer.notes.front().epoch < state_->epoch) peer.notes.pop_front();
      for (const Note& note : peer.notes) {
        if (is_fault(note)) fail(std::string(Note::get(note.text)));
      }
    }
  }

  /// Looks among what has arrived from `peer` for the other side of `mine`. A message may pass one of the other
  /// direction, which another message of this rank will meet; a collective operation passes nothing.
  [[nodiscard]] Answer answer(int peer, const Note& mine) {
    std::deque<Note>& notes = of(peer).notes;
    const bool collective = mine.kind == Note::Kind::collective;
    for (auto n = notes.begin(); n != notes.end() && n->epoch == state_->epoch; ++n) {
      if (n->kind == Note::Kind::fault) return Answer::refusal;
      if (collective != (n->kind == Note::Kind::collective)) return disagree("operation", peer, mine, *n);
      if (!collective && n->kind == mine.kind) continue;
      const bool retracted = std::any_of(n, notes.end(), [&](const Note& later) {
        return is_fault(later) && n->sequence > later.stands_by[static_cast<std::size_t>(n->kind)];
      });
      if (retracted) return Answer::refusal;
      const Note theirs = *n;
      notes.erase(n);
      const char* field = collective ? difference(mine, theirs) : message_difference(mine, theirs);
      return field == nullptr ? Answer::match : disagree(field, peer, mine, theirs);
    }
    return Answer::none;
  }

  /// Whether `mine`, a message, can never be met: `peer` is in an operation that waits for another message of this
  /// rank, of the same direction, and announces no more.
  [[nodiscard]] bool is_crossed(int peer, const Note& mine) {
    const std::deque<Note>& notes = of(peer).notes;
    if (!of(peer).whole || notes.empty() || notes.front().epoch != state_->epoch) return false;
    disagree("direction of a message", peer, mine, notes.front());
    return true;
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

  /// Why to wait no longer for `peers`: the time is over, or one of them has returned. Empty: no reason.
  [[nodiscard]] std::string gives_up(const Call& call, const std::vector<int>& peers, bool late) {
    std::string missing;
    bool several = false;
    for (const int peer : peers) {
      if (!late && !state_->box.gone(peer)) continue;
      if (!late) hear(call);  // what it posted before it went
      if (!late && !of(peer).notes.empty()) continue;
      several = !missing.empty();
      missing += (several ? ", rank " : "rank ") + std::to_string(peer);
    }
    if (missing.empty()) return {};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout).count();
    return missing + (several ? " have" : " has") + " not come to " + summary(signature(call)) + ", called by rank " +
           std::to_string(this->rank()) +
           (late ? ", within " + std::to_string(ms) + " ms"
                 : std::string(several ? ", and have" : ", and has") + " returned");
  }

  Answer disagree(const char* field, int peer, const Note& mine, const Note& theirs) {
    const auto calls = [](int rank, const Note& note, int other) {
      return "rank " + std::to_string(rank) + " calls " + summary(note, other);
    };
    const std::string a = calls(this->rank(), mine, peer);
    const std::string b = calls(peer, theirs, this->rank());
    fail(std::string("the ranks disagree about the ") + field + ": " + (this->rank() < peer ? a : b) + ", " +
         (this->rank() < peer ? b : a));
    return Answer::refusal;
  }

  /// Tells all ranks of the fault of this epoch, unless they have been told and nothing has been retracted since.
  void fail(const std::string& text, bool retracted = false) {
    if (state_->fault && !retracted) return;
    if (!state_->fault) state_->fault = text;
    Note note;
    note.kind = Note::Kind::fault;
    note.epoch = state_->epoch;
    Note::put(note.text, *state_->fault);
    for (int peer = 0; peer < this->size(); ++peer) {
      if (peer == this->rank()) continue;
      note.stands_by = of(peer).announced;
      state_->box.post(peer, note);
    }
  }

  /// Throws the fault of this epoch, and begins the next.
  [[noreturn]] void raise(const Call& call) {
    const std::string text = *std::exchange(state_->fault, std::nullopt);
    ++state_->epoch;
    for (Peer& peer : state_->peers) peer.announced = {};
    throw CommError(describe(call, this->group()) + ": " + text);
  }

  [[nodiscard]] Peer& of(int peer) { return state_->peers[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] bool is_fault(const Note& note) const {
    return note.kind == Note::Kind::fault && note.epoch == state_->epoch;
  }

  CheckOptions options_;
  std::shared_ptr<State> state_;
};

/// `Checked<C>` at SMP_CHECK_LEVEL 2, else `C`.
template <HostCommunicator C>
using ByCheckLevel = std::conditional_t<check_level >= 2, Checked<C>, C>;

}  // namespace smp::comm
