// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What all communicators of one MPI job share: how to wait, how long, and who looks on.

#include <mpi.h>

#include <smp/comm/chunks.hpp>
#include <smp/comm/mpi_watchdog.hpp>
#include <smp/device/copy.hpp>

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>

namespace smp::comm {

/// How `Mpi` communicates.
struct MpiOptions {
  /// How long one operation may take before the job is ended with a message.
  Clock::duration timeout = std::chrono::seconds(60);
  /// Bytes of the largest single message handed to MPI; larger ones are cut. At most what an `int` counts.
  std::size_t largest_message = max_mpi_count;
  /// Bytes of the segments in which reductions overlap sums and messages; 0: a quarter of a core's own cache, shared by
  /// the two segments of every rank.
  std::size_t segment = 0;
};

/// True between MPI_Init and MPI_Finalize, whoever calls them.
[[nodiscard]] inline bool mpi_is_running() noexcept {
  int begun = 0;
  int ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

/// What the communicators made from one host communicator have in common.
class MpiJob {
 public:
  /// Collective over `comm`.
  MpiJob(MPI_Comm comm, MpiOptions options) : options_(options) {
    int level = MPI_THREAD_SINGLE;
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    any_thread_ = level == MPI_THREAD_MULTIPLE;
    int rank = 0;
    check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
    gives_way_ = more_ranks_than_cores(node);
    watchdog_ = std::make_unique<MpiWatchdog>(std::make_unique<MpiBoard>(node, rank), options.timeout);
    check(MPI_Comm_free(&node), "MPI_Comm_free");
  }

  /// How to communicate.
  [[nodiscard]] const MpiOptions& options() const noexcept { return options_; }
  /// Who looks on.
  [[nodiscard]] MpiWatchdog& watchdog() noexcept { return *watchdog_; }
  /// MPI may be called from any thread (MPI_THREAD_MULTIPLE).
  [[nodiscard]] bool any_thread() const noexcept { return any_thread_; }
  /// Ranks of this node share cores, so that waiting must not keep the core: one MPI keeps it for 8 ms a call then.
  [[nodiscard]] bool gives_way() const noexcept { return gives_way_; }

 private:
  /// Compares the ranks of a node with the cores that at least one of them may use.
  static bool more_ranks_than_cores(MPI_Comm node) {
    int ranks = 1;
    check(MPI_Comm_size(node, &ranks), "MPI_Comm_size");
#if defined(__linux__)
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (::sched_getaffinity(0, sizeof mask, &mask) == 0) {
      std::array<std::uint64_t, sizeof mask / sizeof(std::uint64_t)> words{};
      std::memcpy(words.data(), &mask, sizeof mask);
      check(MPI_Allreduce(MPI_IN_PLACE, words.data(), static_cast<int>(words.size()), MPI_UINT64_T, MPI_BOR, node),
            "MPI_Allreduce");
      int cores = 0;
      for (const std::uint64_t w : words) cores += std::popcount(w);
      return ranks > cores;
    }
#endif
    return ranks > available_cores();
  }

  MpiOptions options_;
  bool any_thread_ = false;
  bool gives_way_ = false;
  std::unique_ptr<MpiWatchdog> watchdog_;
};

}  // namespace smp::comm
