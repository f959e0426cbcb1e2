// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Boxes for notes between thread ranks.

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <smp/comm/note.hpp>
#include <smp/comm/room.hpp>

namespace smp::comm {

/// The boxes of one rank of a room.
class ThreadMailbox {
 public:
  /// The boxes of `rank` in `room`.
  ThreadMailbox(std::shared_ptr<Room> room, int rank) : room_(std::move(room)), rank_(rank) {}

  /// Puts `note` into the box of rank `peer`.
  void post(int peer, const Note& note) { room_->boxes().put(rank_, peer, note); }

  /// Takes the next note of rank `peer`, if there is one.
  [[nodiscard]] bool poll(int peer, Note& note) { return room_->boxes().take(peer, rank_, note); }

  /// True if rank `peer` has returned: it will post nothing more.
  [[nodiscard]] bool gone(int peer) const {
    return room_->team().finished(room_->world_ranks()[static_cast<std::size_t>(peer)]);
  }

  /// Lets other ranks run.
  void pause() {
    if (++pauses_ % 64 == 0) {
      std::this_thread::yield();
    } else {
      spin_pause();
    }
  }

  /// True, and why, if the job has ended.
  [[nodiscard]] bool ended(std::string& why) const {
    if (!room_->team().failed()) return false;
    why = room_->team().failure();
    return true;
  }

 private:
  std::shared_ptr<Room> room_;
  int rank_;
  unsigned pauses_ = 0;
};

static_assert(Mailbox<ThreadMailbox>);

}  // namespace smp::comm
