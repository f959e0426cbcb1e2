// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A notice board in memory shared by the ranks of a node: each writes what it is doing, so that a rank that waits in
/// vain can say who is missing. Reading it needs no MPI, which may be stuck.

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>
#include <sys/mman.h>

#include <fcntl.h>
#include <unistd.h>

#include <mpi.h>

#include <smp/comm/call.hpp>
#include <smp/comm/mpi_error.hpp>

namespace smp::comm {

/// The notice board of the ranks of one node.
class MpiBoard {
 public:
  /// What one rank is doing. Only this rank writes it.
  struct alignas(64) Notice {
    std::atomic<int> world_rank{-1};                       ///< who writes here
    std::atomic<std::uint64_t> group{0};                   ///< identity of the group of the last operation
    std::atomic<std::uint64_t> sequence{0};                ///< operations of all ranks it has begun in that group
    std::atomic<Operation> operation{Operation::barrier};  ///< which operation that was
    std::atomic<bool> inside{false};                       ///< still in that operation
    std::atomic<bool> finished{false};                     ///< has ended its session
    std::atomic<std::int64_t> alive{0};  ///< the last sign of life of its process, in ticks of the steady clock
  };

  /// Collective over `node`, the ranks that share memory. Without shared memory the board shows this rank alone.
  MpiBoard(MPI_Comm node, int world_rank) {
    int rank = 0;
    check(MPI_Comm_rank(node, &rank), "MPI_Comm_rank");
    check(MPI_Comm_size(node, &ranks_), "MPI_Comm_size");
    rank_ = rank;
    std::array<char, 64> name{};
    if (rank == 0) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
      std::snprintf(name.data(), name.size(), "/smp-%ld-%lld", static_cast<long>(::getpid()),
                    static_cast<long long>(now));
    }
    check(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, node), "MPI_Bcast");
    int descriptor = -1;
    if (rank == 0) {
      descriptor = ::shm_open(name.data(), O_CREAT | O_EXCL | O_RDWR, 0600);
      if (descriptor >= 0 && ::ftruncate(descriptor, static_cast<off_t>(bytes())) != 0) {
        ::close(descriptor);
        descriptor = -1;
      }
    }
    check(MPI_Barrier(node), "MPI_Barrier");
    if (rank != 0) descriptor = ::shm_open(name.data(), O_RDWR, 0600);
    void* memory =
        descriptor < 0 ? MAP_FAILED : ::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (descriptor >= 0) ::close(descriptor);
    check(MPI_Barrier(node), "MPI_Barrier");
    if (rank == 0) ::shm_unlink(name.data());
    int shared = memory != MAP_FAILED ? 1 : 0;
    check(MPI_Allreduce(MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, node), "MPI_Allreduce");
    if (shared == 1) {
      notices_ = static_cast<Notice*>(memory);
      mapped_ = true;
    } else {
      if (memory != MAP_FAILED) ::munmap(memory, bytes());
      ranks_ = 1;
      rank_ = 0;
      notices_ = &alone_;
    }
    mine().world_rank.store(world_rank);
    check(MPI_Barrier(node), "MPI_Barrier");
  }

  MpiBoard(const MpiBoard&) = delete;
  MpiBoard& operator=(const MpiBoard&) = delete;
  ~MpiBoard() {
    mine().finished.store(true);
    if (mapped_) ::munmap(static_cast<void*>(notices_), bytes());
  }

  /// What this rank says.
  [[nodiscard]] Notice& mine() noexcept { return notices_[rank_]; }

  /// What the rank with number `world_rank` in the world says; null if it is on another node.
  [[nodiscard]] const Notice* find(int world_rank) const noexcept {
    for (int r = 0; r < ranks_; ++r) {
      if (notices_[r].world_rank.load() == world_rank) return &notices_[r];
    }
    return nullptr;
  }

 private:
  [[nodiscard]] std::size_t bytes() const noexcept { return sizeof(Notice) * static_cast<std::size_t>(ranks_); }

  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<Operation>::is_always_lock_free,
                "smp::comm::MpiBoard: notices are shared between processes, their atomics must be lock-free");

  int ranks_ = 1;
  int rank_ = 0;
  bool mapped_ = false;
  Notice alone_{};
  Notice* notices_ = nullptr;  // zeroed by the system: all fields of a fresh notice but the rank are zero
};

}  // namespace smp::comm
