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

  /// Lays a message open for its receiver; `await` has to follow. Waits until the one before has been received.
  void post(const Membership& group, const Call& call, const Transfer& t) {
    Channel& c = channel(group.rank, t.peer);
    wait_for_peer(
        c, [&] { return c.state.load() == State::empty; }, group, call, t.peer);
    c.data = t.sent;
    c.bytes = t.bytes;
    c.state.store(State::posted);
    waiting_.wake();
  }

  /// Waits until the message posted last has been received.
  /// @throws CommError also if the receiver expected another size
  void await(const Membership& group, const Call& call, const Transfer& t) {
    Channel& c = channel(group.rank, t.peer);
    const auto received = [&] { return c.state.load() == State::received || c.state.load() == State::refused; };
    try {
      wait_for_peer(c, received, group, call, t.peer);
    } catch (...) {
      withdraw(group, t);
      throw;
    }
    const bool refused = c.state.load() == State::refused;
    const std::size_t expected = c.bytes;
    c.state.store(State::empty);
    waiting_.wake();
    if (refused) throw CommError(describe(call, group) + ": " + other_size(group.rank, t.bytes, t.peer, expected));
  }

  /// Takes back a message that has not been received, or waits until it has: afterwards nobody reads the buffer.
  void withdraw(const Membership& group, const Transfer& t) {
    Channel& c = channel(group.rank, t.peer);
    State posted = State::posted;
    if (c.state.compare_exchange_strong(posted, State::empty)) return;
    wait_for_copy([&] { return c.state.load() != State::taken; });
    c.state.store(State::empty);
  }

  /// Receives the next message of `t.peer` with `copy(to, from, bytes)`.
  /// @throws CommError if it has another size; the sender then throws, too
  template <class Copy>
  void receive(const Membership& group, const Call& call, const Transfer& t, Copy copy) {
    Channel& c = channel(t.peer, group.rank);
    const auto take = [&] {
      State posted = State::posted;
      return c.state.compare_exchange_strong(posted, State::taken);
    };
    wait_for_peer(c, take, group, call, t.peer);
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

  [[nodiscard]] Channel& channel(int from, int to) noexcept {
    return channels_[static_cast<std::size_t>(from) * seats_.size() + static_cast<std::size_t>(to)];
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

  template <class Ready>
  void wait_for_peer(Channel&, Ready ready, const Membership& group, const Call& call, int peer) {
    const int world_peer = world_ranks_[static_cast<std::size_t>(peer)];
    const auto hopeless = [&] { return team_->failed() || team_->finished(world_peer); };
    if (waiting_.until(ready, hopeless, team_->timeout()) || ready()) return;
    if (!team_->failed()) report(group, call, team_->whereabouts(world_peer), !team_->finished(world_peer));
    give_up(group, call, team_->failure());
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
