// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where the thread ranks of one group meet: all of them for a collective operation, two of them for a message.
/// Between entering and leaving, every rank may read the calls, and through them the buffers, of all others.

#include <algorithm>
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

  /// A message of a call, and how far it has come.
  struct Message {
    /// Not yet begun; its data laid open for the receiver; over.
    enum class Stage : unsigned char { waiting, laid_open, done };
    Transfer transfer;             ///< what is sent or received
    Stage stage = Stage::waiting;  ///< how far it has come
    std::size_t other_bytes = 0;   ///< the size that the other side expects; known when it is done
  };

  /// Sends and receives what `gate` lets through, in whatever order the other ranks come; a pair keeps the order of its
  /// messages. `messages` is kept memory, `copy(to, from, bytes)` moves the data.
  /// @throws CommError, on both sides, if the sizes of a message differ; all others have arrived then. Also if a rank
  ///   fails, returns, or does not come in time
  template <class Gate, class Copy>
  void exchange(const Membership& group, const Call& call, Gate& gate, std::vector<Message>& messages, Copy copy) {
    messages.clear();
    try {
      for (bool all_begun = false; !advance(group.rank, messages, copy) || !all_begun;) {
        if (all_begun) {
          wait_for_others(group, call, messages);
        } else {
          all_begun = gate.look([&](const Transfer& t) { messages.push_back({t}); });
          if (!all_begun) gate.pause();
        }
      }
    } catch (...) {
      withdraw(group.rank, messages);
      throw;
    }
    for (const Message& m : messages) {
      if (m.other_bytes != m.transfer.bytes) give_up(group, call, other_size(group.rank, m));
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
    const bool left = someone_left(sequence);
    std::string who;
    for (std::size_t r = 0; r < seats_.size(); ++r) {
      const bool may_come = left && !team_->finished(world_ranks_[r]);
      if (seats_[r].sequence.load() >= sequence || may_come) continue;
      who += (who.empty() ? "" : ", ") + team_->whereabouts(world_ranks_[r]);
    }
    report(group, call, who, !left);
    return team_->failure();
  }

  void report(const Membership& group, const Call& call, const std::string& who, bool blocked) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(team_->timeout()).count();
    const std::string text = blocked ? "waited " + std::to_string(ms) + " ms, but " + who : who;
    const std::string all = describe(call, group) + ": " + text;
    team_->fail(text + " (seen in " + describe(call, group) + ")", std::make_exception_ptr(CommError(all)), blocked);
  }

  /// The channel of `m`, a message of rank `self`.
  [[nodiscard]] Channel& channel(int self, const Message& m) noexcept {
    return m.transfer.incoming ? channel(m.transfer.peer, self) : channel(self, m.transfer.peer);
  }

  /// Whether message `i` can be got further now. Receives from one rank take their turn; sends find their channel taken
  /// by the one before.
  [[nodiscard]] bool can_advance(int self, const std::vector<Message>& messages, std::size_t i) noexcept {
    const Message& m = messages[i];
    if (m.stage == Message::Stage::done) return false;
    const State state = channel(self, m).state.load();
    if (m.stage == Message::Stage::laid_open) return state == State::received || state == State::refused;
    if (!m.transfer.incoming) return state == State::empty;
    if (state != State::posted) return false;
    for (std::size_t j = 0; j < i; ++j) {
      const Message& before = messages[j];
      if (before.transfer.incoming && before.transfer.peer == m.transfer.peer && before.stage != Message::Stage::done) {
        return false;
      }
    }
    return true;
  }

  /// Gets `messages` of rank `self` as far as they come without waiting. Returns whether all are done.
  template <class Copy>
  bool advance(int self, std::vector<Message>& messages, Copy copy) {
    bool all_done = true;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      Message& m = messages[i];
      if (can_advance(self, messages, i)) {
        Channel& c = channel(self, m);
        if (m.transfer.incoming) {
          receive(c, m, copy);
        } else if (m.stage == Message::Stage::waiting) {
          c.data = m.transfer.sent;
          c.bytes = m.transfer.bytes;
          m.stage = Message::Stage::laid_open;
          c.state.store(State::posted);
          waiting_.wake();
        } else {
          m.other_bytes = c.bytes;
          m.stage = Message::Stage::done;
          c.state.store(State::empty);  // only this rank waits for that
        }
      }
      all_done = all_done && m.stage == Message::Stage::done;
    }
    return all_done;
  }

  template <class Copy>
  void receive(Channel& c, Message& m, Copy copy) {
    State posted = State::posted;
    if (!c.state.compare_exchange_strong(posted, State::taken)) return;  // withdrawn
    m.other_bytes = c.bytes;
    m.stage = Message::Stage::done;
    const bool fits = m.other_bytes == m.transfer.bytes;
    if (fits) {
      copy(m.transfer.received, c.data, m.transfer.bytes);
    } else {
      c.bytes = m.transfer.bytes;
    }
    c.state.store(fits ? State::received : State::refused);
    waiting_.wake();
  }

  /// Takes back what has not been received, or waits until it has: afterwards nobody reads the buffers.
  void withdraw(int self, std::vector<Message>& messages) {
    for (const Message& m : messages) {
      if (m.stage != Message::Stage::laid_open) continue;
      Channel& c = channel(self, m);
      State posted = State::posted;
      if (c.state.compare_exchange_strong(posted, State::empty)) continue;
      wait_for_copy([&] { return c.state.load() != State::taken; });
      c.state.store(State::empty);
    }
  }

  /// Waits until one of `messages` can be got further.
  void wait_for_others(const Membership& group, const Call& call, const std::vector<Message>& messages) {
    const auto ready = [&] {
      for (std::size_t i = 0; i < messages.size(); ++i) {
        if (can_advance(group.rank, messages, i)) return true;
      }
      return false;
    };
    const auto someone_left = [&] {
      return std::any_of(messages.begin(), messages.end(), [&](const Message& m) {
        return m.stage != Message::Stage::done && team_->finished(world_rank(m.transfer.peer));
      });
    };
    const auto hopeless = [&] { return team_->failed() || someone_left(); };
    if (waiting_.until(ready, hopeless, team_->timeout()) || ready()) return;
    if (!team_->failed()) {
      const bool left = someone_left();
      std::string who;
      for (const Message& m : messages) {
        const int peer = world_rank(m.transfer.peer);
        const std::string where = team_->whereabouts(peer);
        const bool told = who.find(where) != std::string::npos || (left && !team_->finished(peer));
        if (m.stage != Message::Stage::done && !told) who += (who.empty() ? "" : ", ") + where;
      }
      report(group, call, who, !left);
    }
    give_up(group, call, team_->failure());
  }

  /// Waits for ranks that are only copying.
  template <class Ready>
  void wait_for_copy(Ready ready) {
    while (!waiting_.until(
        ready, [] { return false; }, std::chrono::hours(1))) {
    }
  }

  [[nodiscard]] static std::string other_size(int self, const Message& m) {
    const auto bytes = [](std::size_t n) { return std::to_string(n) + " bytes"; };
    const bool in = m.transfer.incoming;
    return "the ranks disagree about the size of a message: rank " + std::to_string(in ? m.transfer.peer : self) +
           " sends " + bytes(in ? m.other_bytes : m.transfer.bytes) + ", rank " +
           std::to_string(in ? self : m.transfer.peer) + " expects " + bytes(in ? m.transfer.bytes : m.other_bytes);
  }

  [[nodiscard]] int world_rank(int rank) const noexcept { return world_ranks_[static_cast<std::size_t>(rank)]; }

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
