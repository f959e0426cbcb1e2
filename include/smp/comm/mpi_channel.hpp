// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One communicator of MPI with what its operations need: requests and memory that are kept, and one way to wait.

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>

#include <mpi.h>

#include <smp/comm/chunks.hpp>
#include <smp/comm/mpi_error.hpp>
#include <smp/comm/mpi_job.hpp>

namespace smp::comm {

/// Owns an `MPI_Comm`. It is freed with this object, unless MPI has ended or the stack is being unwound: freeing is
/// collective, and the other ranks may not come.
class MpiChannel {
 public:
  /// Takes over `comm`, whose errors it reports by exceptions.
  /// @param creation what tells this group from others with the same members; equal on all ranks
  MpiChannel(std::shared_ptr<MpiJob> job, MPI_Comm comm, Membership group, std::uint64_t creation)
      : job_(std::move(job)), comm_(comm), group_(std::move(group)) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    activity_->group = &group_;
    activity_->group_id = identity(creation);
    job_->watchdog().add(activity_);
  }

  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;
  ~MpiChannel() {
    job_->watchdog().remove(activity_.get());
    if (mpi_is_running() && std::uncaught_exceptions() <= unwinding_) MPI_Comm_free(&comm_);
  }

  /// What this communicator shares with the others of the job.
  [[nodiscard]] const std::shared_ptr<MpiJob>& job() const noexcept { return job_; }
  /// MPI's handle.
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return group_; }
  /// Equal on all ranks of this group, and different for every other group.
  [[nodiscard]] std::uint64_t id() const noexcept { return activity_->group_id; }
  /// Number of ranks.
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(group_.size()); }
  /// This rank.
  [[nodiscard]] std::size_t self() const noexcept { return static_cast<std::size_t>(group_.rank); }
  /// Bytes of the largest message handed to MPI.
  [[nodiscard]] std::size_t largest_message() const noexcept { return job_->options().largest_message; }
  /// Marks `call` as running, for the watchdog.
  [[nodiscard]] MpiWatchdog::Running running(const Call& call) noexcept { return {job_->watchdog(), *activity_, call}; }

  /// Messages under way, which `wait` waits for.
  using Requests = std::vector<MPI_Request>;

  /// Begins to send `bytes` to rank `peer`.
  void send(Requests& requests, const std::byte* data, std::size_t bytes, std::size_t peer, int tag) {
    const Chunks chunks(bytes, largest_message());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Chunk c = chunks[i];
      check(MPI_Isend(data + c.offset, static_cast<int>(c.bytes), MPI_BYTE, static_cast<int>(peer), tag, comm_,
                      &requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Isend");
    }
  }

  /// Begins to receive `bytes` from rank `peer`.
  void recv(Requests& requests, std::byte* data, std::size_t bytes, std::size_t peer, int tag) {
    const Chunks chunks(bytes, largest_message());
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const Chunk c = chunks[i];
      check(MPI_Irecv(data + c.offset, static_cast<int>(c.bytes), MPI_BYTE, static_cast<int>(peer), tag, comm_,
                      &requests.emplace_back(MPI_REQUEST_NULL)),
            "MPI_Irecv");
    }
  }

  /// Waits for all of `requests` and empties the list. Gives the core away while waiting if ranks share cores.
  void wait(Requests& requests, MPI_Status* statuses = MPI_STATUSES_IGNORE) {
    if (requests.empty()) return;
    const int count = static_cast<int>(requests.size());
    int code = MPI_SUCCESS;
    if (job_->gives_way()) {
      int done = 0;
      while (code == MPI_SUCCESS && done == 0) {
        code = MPI_Testall(count, requests.data(), &done, statuses);
        if (done == 0) ::sched_yield();
      }
    } else {
      code = MPI_Waitall(count, requests.data(), statuses);
    }
    requests.clear();
    check(code, "MPI_Waitall");
  }

  /// Calls the blocking form of a collective, or, when ranks share cores, the other one and waits as `wait` does.
  template <class Blocking, class Immediate, class... Arguments>
  void collective(const char* what, Blocking blocking, Immediate immediate, Arguments... arguments) {
    if (!job_->gives_way()) {
      check(blocking(arguments...), what);
      return;
    }
    requests(0).emplace_back(MPI_REQUEST_NULL);
    check(immediate(arguments..., &requests(0).back()), what);
    wait(requests(0));
  }

  /// One of four lists of requests that keep their memory.
  [[nodiscard]] Requests& requests(std::size_t i) noexcept { return requests_[i]; }

  /// At least `bytes` of kept memory: MPI libraries allocate theirs anew on every call.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = std::vector<std::byte>(bytes);
    return scratch_.data();
  }

  /// Kept space for one input per rank of a reduction.
  [[nodiscard]] std::vector<const std::byte*>& inputs() noexcept { return inputs_; }
  /// Kept space for the messages under way.
  [[nodiscard]] std::vector<Transfer>& transfers() noexcept { return transfers_; }
  /// Kept space for the statuses of messages.
  [[nodiscard]] std::vector<MPI_Status>& statuses() noexcept { return statuses_; }

 private:
  /// Equal on all ranks of a group, different (but for a collision of hashes) for any two groups. FNV-1a.
  [[nodiscard]] std::uint64_t identity(std::uint64_t creation) const noexcept {
    std::uint64_t hash = 14695981039346656037u ^ creation;
    for (const int r : group_.world_ranks) hash = (hash ^ static_cast<std::uint64_t>(r + 1)) * 1099511628211u;
    return hash == 0 ? 1 : hash;
  }

  std::shared_ptr<MpiJob> job_;
  MPI_Comm comm_;
  Membership group_;
  int unwinding_ = std::uncaught_exceptions();
  std::shared_ptr<MpiWatchdog::Activity> activity_ = std::make_shared<MpiWatchdog::Activity>();
  std::array<Requests, 4> requests_;
  std::vector<std::byte> scratch_;
  std::vector<const std::byte*> inputs_;
  std::vector<Transfer> transfers_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace smp::comm
