// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the thread ranks of one group meet: all of them for a collective operation, two of them for a message.
/// Between entering and leaving, every rank may read the calls, and through them the buffers, of all others.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/comm/note.hpp>
#include <smp/comm/team.hpp>

namespace smp::comm {

/// The meeting place of a group of thread ranks.
class Room {
 public:
  /// A room for the ranks `world_ranks` of `team`, in this order.
  Room(std::shared_ptr<Team> team, std::string name, std::vector<int> world_ranks)
      : team_(std::move(team)),
        name_(std::move(name)),
        world_ranks_(std::move(world_ranks)),
        seats_(world_ranks_.size()),
        channels_(world_ranks_.size() * world_ranks_.size()),
        boxes_(world_ranks_.size()),
        waiting_(team_->spins()) {}

  /// What one rank lays open to the others while it is in the room.
  struct alignas(64) Seat {
    const Call* call = nullptr;              ///< what it has called
    std::atomic<std::uint64_t> sequence{0};  ///< operations this rank has entered
    int colour = 0;                          ///< during a split
    int key = 0;                             ///< during a split
    std::shared_ptr<Room> part{};            ///< during a split: made by the first rank of the part
  };

  /// The fate of all ranks of the launch.
  [[nodiscard]] Team& team() const noexcept { return *team_; }
  /// The same, to share.
  [[nodiscard]] const std::shared_ptr<Team>& shared_team() const noexcept { return team_; }
  /// What messages call the group.
  [[nodiscard]] const std::string& group_name() const noexcept { return name_; }
  /// The members, by rank in the group.
  [[nodiscard]] const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  /// What `rank` lays open.
  [[nodiscard]] Seat& seat(int rank) noexcept { return seats_[static_cast<std::size_t>(rank)]; }
  /// Notes between the members.
  [[nodiscard]] NoteBoxes& boxes() noexcept { return boxes_; }
  /// What `rank` has called; between `enter` and `leave` only.
  [[nodiscard]] const Call& call(int rank) noexcept { return *seat(rank).call; }

  /// Returns when all ranks have entered. A rank that gives up takes the whole room with it, and can do so only while
  /// one is still missing: afterwards the others may be reading its buffers.
  /// @throws CommError if a rank fails, returns, or does not come in time; never after all have entered
  void enter(const Membership& group, const Call& call) {
    Seat& mine = seat(group.rank);
    const std::uint64_t sequence = mine.sequence.load() + 1;
    const std::uint64_t all = sequence * seats_.size();
    mine.call = &call;
    mine.sequence.store(sequence);
    const std::uint64_t before = arrivals_.fetch_add(1);
    if (before + 1 == all) waiting_.wake();
    const auto closed_or_full = [&] { return (arrivals_.load() & ~closed) >= all || (arrivals_.load() & closed) != 0; };
    const auto hopeless = [&] { return team_->failed() || someone_left(sequence); };
    const bool decided = waiting_.until(closed_or_full, hopeless, team_->timeout());
    if ((arrivals_.load() & closed) != 0) give_up(group, call, team_->failure());
    if (decided) return;
    const std::string why = missing(group, call, sequence);  // told to all before the room closes on them
    std::uint64_t seen = arrivals_.load();
    while ((seen & closed) == 0) {
      if (seen >= all) return;
      if (arrivals_.compare_exchange_weak(seen, seen | closed)) break;
    }
    waiting_.wake();
    give_up(group, call, why);
  }

  /// Returns when all ranks have left. Has no deadline: they are between entering and leaving, where nothing waits, and
  /// they may be reading this rank's buffers.
  void leave(const Membership& group) {
    const std::uint64_t all = seat(group.rank).sequence.load() * seats_.size();
    if (departures_.fetch_add(1) + 1 == all) waiting_.wake();
    wait_for_copy([&] { return departures_.load() >= all; });
  }

  /// How far a message is for one of its two ranks: a sender lays it open (`posted`) and waits until it has been
  /// received.
  enum class Step : unsigned char { waiting, posted, done };

  /// Whether `advance` would do something, now that this rank has come to `step`.
  [[nodiscard]] bool can_advance(const Membership& group, const Transfer& t, Step step) noexcept {
    const State state = channel(group, t).state.load();
    if (t.incoming) return state == State::posted;
    return step == Step::waiting ? state == State::empty : state == State::received || state == State::refused;
  }

  /// Takes the next step of a message, if it can be taken: never waits. A message is received with
  /// `copy(to, from, bytes)`. The messages of a pair have to be taken to their ends one after the other.
  /// @throws CommError on both ranks if they disagree about the size; the message is then done
  template <class Copy>
  [[nodiscard]] Step advance(const Membership& group, const Call& call, const Transfer& t, Step step, Copy copy) {
    if (!can_advance(group, t, step)) return step;
    Channel& c = channel(group, t);
    if (t.incoming) return receive(c, group, call, t, copy) ? Step::done : step;
    if (step == Step::waiting) {
      c.data = t.sent;
      c.bytes = t.bytes;
      c.state.store(State::posted);
      waiting_.wake();
      return Step::posted;
    }
    const bool refused = c.state.load() == State::refused;
    const std::size_t expected = c.bytes;
    c.state.store(State::empty);
    if (refused) throw CommError(describe(call, group) + ": " + other_size(group.rank, t.bytes, t.peer, expected));
    return Step::done;
  }

  /// Waits until `ready()`, which says whether any message can advance.
  /// @param for_each_peer `for_each_peer(f)` calls `f(rank)` for the ranks that messages are waited for from, or by
  /// @throws CommError if one of them fails, returns, or does not come in time
  template <class Ready, class ForEachPeer>
  void wait_for_messages(const Membership& group, const Call& call, Ready ready, ForEachPeer for_each_peer) {
    const auto someone_finished = [&] {
      bool found = false;
      for_each_peer([&](int r) { found = found || team_->finished(world_ranks_[static_cast<std::size_t>(r)]); });
      return found;
    };
    const auto hopeless = [&] { return team_->failed() || someone_finished(); };
    if (waiting_.until(ready, hopeless, team_->timeout()) || ready()) return;
    if (!team_->failed()) {
      const bool left = someone_finished();
      std::string who;
      for_each_peer([&](int r) {
        const int world_rank = world_ranks_[static_cast<std::size_t>(r)];
        const std::string where = team_->whereabouts(world_rank);
        if ((left && !team_->finished(world_rank)) || who.find(where) != std::string::npos) return;
        who += (who.empty() ? "" : ", ") + where;
      });
      report(group, call, who, !left);
    }
    give_up(group, call, team_->failure());
  }

  /// Takes back a posted message that has not been received, or waits until it has: afterwards nobody reads the buffer.
  void withdraw(const Membership& group, const Transfer& t) {
    Channel& c = channel(group, t);
    State posted = State::posted;
    if (c.state.compare_exchange_strong(posted, State::empty)) return;
    wait_for_copy([&] { return c.state.load() != State::taken; });
    c.state.store(State::empty);
  }

 private:
  /// Set in `arrivals_` when the room can no longer be used.
  static constexpr std::uint64_t closed = std::uint64_t{1} << 63;

  enum class State : unsigned char { empty, posted, taken, received, refused };

  /// The messages of one rank to one other: the sender's, until the receiver has copied it.
  struct alignas(64) Channel {
    std::atomic<State> state{State::empty};
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  [[nodiscard]] Channel& channel(const Membership& group, const Transfer& t) noexcept {
    const auto from = static_cast<std::size_t>(t.incoming ? t.peer : group.rank);
    const auto to = static_cast<std::size_t>(t.incoming ? group.rank : t.peer);
    return channels_[from * seats_.size() + to];
  }

  /// False if the sender has taken the message back.
  template <class Copy>
  bool receive(Channel& c, const Membership& group, const Call& call, const Transfer& t, Copy copy) {
    State posted = State::posted;
    if (!c.state.compare_exchange_strong(posted, State::taken)) return false;
    const std::size_t sent = c.bytes;
    if (sent == t.bytes) {
      copy(t.received, c.data, sent);
    } else {
      c.bytes = t.bytes;
    }
    c.state.store(sent == t.bytes ? State::received : State::refused);
    waiting_.wake();
    if (sent != t.bytes) {
      throw CommError(describe(call, group) + ": " + other_size(t.peer, sent, group.rank, t.bytes));
    }
    return true;
  }

  [[nodiscard]] bool someone_left(std::uint64_t sequence) {
    for (std::size_t r = 0; r < seats_.size(); ++r) {
      if (seats_[r].sequence.load() < sequence && team_->finished(world_ranks_[r])) return true;
    }
    return false;
  }

  [[noreturn]] void give_up(const Membership& group, const Call& call, const std::string& why) {
    throw CommError(describe(call, group) + ": " + why);
  }

  /// Says who is missing, to all ranks.
  [[nodiscard]] std::string missing(const Membership& group, const Call& call, std::uint64_t sequence) {
    if (team_->failed()) return team_->failure();
    std::string who;
    for (std::size_t r = 0; r < seats_.size(); ++r) {
      if (seats_[r].sequence.load() < sequence) who += (who.empty() ? "" : ", ") + team_->whereabouts(world_ranks_[r]);
    }
    const bool left = someone_left(sequence);
    report(group, call, who, !left);
    return team_->failure();
  }

  void report(const Membership& group, const Call& call, const std::string& who, bool blocked) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(team_->timeout()).count();
    const std::string text = blocked ? "waited " + std::to_string(ms) + " ms, but " + who : who;
    const std::string all = describe(call, group) + ": " + text;
    team_->fail(text + " (seen in " + describe(call, group) + ")", std::make_exception_ptr(CommError(all)), blocked);
  }

  /// Waits for ranks that are only copying.
  template <class Ready>
  void wait_for_copy(Ready ready) {
    while (!waiting_.until(
        ready, [] { return false; }, std::chrono::hours(1))) {
    }
  }

  [[nodiscard]] std::string other_size(int sender, std::size_t sent, int receiver, std::size_t expected) const {
    return "the ranks disagree about the size of a message: rank " + std::to_string(sender) + " sends " +
           std::to_string(sent) + " bytes, rank " + std::to_string(receiver) + " expects " + std::to_string(expected);
  }

  std::shared_ptr<Team> team_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<Seat> seats_;
  std::vector<Channel> channels_;
  NoteBoxes boxes_;
  alignas(64) std::atomic<std::uint64_t> arrivals_{0};
  alignas(64) std::atomic<std::uint64_t> departures_{0};
  alignas(64) Waiting waiting_;
};

}  // namespace smp::comm
