// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Boxes for notes between MPI processes.

#include <list>
#include <memory>
#include <utility>

#include <sched.h>

#include <mpi.h>

#include <smp/comm/mpi_channel.hpp>
#include <smp/comm/note.hpp>

namespace smp::comm {

/// The boxes of one rank of a channel, which must carry nothing else.
class MpiMailbox {
 public:
  /// The boxes of the ranks of `channel`.
  explicit MpiMailbox(std::shared_ptr<MpiChannel> channel) : channel_(std::move(channel)) {}

  MpiMailbox(MpiMailbox&&) = default;
  MpiMailbox& operator=(MpiMailbox&&) = default;

  /// Keeps what MPI has not yet sent: a buffer of a message under way may not go.
  ~MpiMailbox() {
    try {
      if (channel_ && mpi_is_running()) release();
    } catch (const CommError&) {
      // What cannot be tested is kept.
    }
    if (!posted_.empty()) new std::list<Posted>(std::move(posted_));  // for ever: MPI still owns the memory
  }

  /// Sends `note` to rank `peer`.
  void post(int peer, const Note& note) {
    release();
    Posted& p = posted_.emplace_back(Posted{note, MPI_REQUEST_NULL});
    check(MPI_Isend(&p.note, static_cast<int>(sizeof(Note)), MPI_BYTE, peer, 0, channel_->comm(), &p.request),
          "MPI_Isend");
  }

  /// Takes the next note of rank `peer`, if it has arrived.
  [[nodiscard]] bool poll(int peer, Note& note) {
    int arrived = 0;
    check(MPI_Iprobe(peer, 0, channel_->comm(), &arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
    if (arrived == 0) return false;
    check(MPI_Recv(&note, static_cast<int>(sizeof(Note)), MPI_BYTE, peer, 0, channel_->comm(), MPI_STATUS_IGNORE),
          "MPI_Recv");
    return true;
  }

  /// Whether rank `peer` has ended cannot be known under MPI.
  [[nodiscard]] static bool gone(int /*peer*/) noexcept { return false; }

  /// Lets other ranks run: at once if they share cores with this one, else now and then.
  void pause() {
    if (channel_->job()->gives_way() || ++pauses_ % 64 == 0) ::sched_yield();
  }

  /// A job that ends takes this process with it.
  [[nodiscard]] static bool ended(std::string& /*why*/) noexcept { return false; }

 private:
  struct Posted {
    Note note;
    MPI_Request request;
  };

  void release() {
    for (auto p = posted_.begin(); p != posted_.end();) {
      int done = 0;
      check(MPI_Test(&p->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      p = done != 0 ? posted_.erase(p) : std::next(p);
    }
  }

  std::shared_ptr<MpiChannel> channel_;
  std::list<Posted> posted_;
  unsigned pauses_ = 0;
};

static_assert(Mailbox<MpiMailbox>);

}  // namespace smp::comm
