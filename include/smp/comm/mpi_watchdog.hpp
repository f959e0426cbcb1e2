// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Ends an MPI job in which a rank waits too long. A thread looks on: the waiting one may be inside of MPI, which has
/// no deadlines, and other ranks cannot be told once one of them no longer takes part.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/comm/mpi_board.hpp>

namespace smp::comm {

/// Watches the operations of this process.
class MpiWatchdog {
 public:
  /// What a communicator is doing: written by the thread that communicates, read by the watchdog.
  struct Activity {
    const Membership* group = nullptr;                     ///< of the communicator; lives as long as the activity
    std::uint64_t group_id = 0;                            ///< equal on the ranks of the group only
    std::atomic<std::uint64_t> begun{0};                   ///< operations begun
    std::atomic<std::uint64_t> ended{0};                   ///< operations ended; one less while one is running
    std::atomic<Operation> operation{Operation::barrier};  ///< the last one begun
    std::atomic<const char*> file{""};                     ///< where it was called
    std::atomic<std::uint32_t> line{0};                    ///< where it was called
    std::atomic<int> peer{-1};                             ///< the rank it sends to
    std::atomic<int> source{-1};                           ///< the rank it receives from
    std::atomic<std::uint64_t> collectives{0};             ///< operations begun that involve every rank
  };

  /// @param timeout how long one operation may take
  MpiWatchdog(std::unique_ptr<MpiBoard> board, Clock::duration timeout)
      : board_(std::move(board)), timeout_(timeout), thread_([this] { watch(); }) {}

  MpiWatchdog(const MpiWatchdog&) = delete;
  MpiWatchdog& operator=(const MpiWatchdog&) = delete;
  ~MpiWatchdog() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    condition_.notify_all();
    thread_.join();
  }

  /// Begins watching a communicator.
  void add(const std::shared_ptr<Activity>& activity) {
    const std::lock_guard lock(mutex_);
    watched_.push_back({activity, 0, {}});
  }
  /// Ends watching a communicator.
  void remove(const Activity* activity) {
    const std::lock_guard lock(mutex_);
    std::erase_if(watched_, [&](const Watched& w) { return w.activity.get() == activity; });
  }

  /// "all_reduce at train.cpp:80 on TP group (...), rank 1": the last operation of this process, if there was one. To
  /// call from the thread that communicates.
  [[nodiscard]] std::string last_operation() const {
    const char* const file = last_file_.load(std::memory_order_relaxed);
    if (file == nullptr) return {};
    return std::string(name(board_->mine().operation.load(std::memory_order_relaxed))) + " at " +
           place(file, last_line_.load(std::memory_order_relaxed)) + last_group();
  }

  /// Whether the thread that communicates is in an operation.
  [[nodiscard]] bool is_operating() const noexcept { return board_->mine().inside.load(); }

  /// Marks an operation as running while it lives.
  class Running {
   public:
    /// Begins `call`.
    Running(MpiWatchdog& watchdog, Activity& activity, const Call& call) noexcept
        : notice_(watchdog.board_->mine()), activity_(activity) {
      watchdog.last_file_.store(call.where.file_name(), std::memory_order_relaxed);
      watchdog.last_line_.store(call.where.line(), std::memory_order_relaxed);
      activity.operation.store(call.operation, std::memory_order_relaxed);
      activity.file.store(call.where.file_name(), std::memory_order_relaxed);
      activity.line.store(call.where.line(), std::memory_order_relaxed);
      activity.peer.store(call.peer, std::memory_order_relaxed);
      activity.source.store(call.source, std::memory_order_relaxed);
      const std::uint64_t sequence = activity.ended.load(std::memory_order_relaxed) + 1;
      if (!is_point_to_point(call.operation)) activity.collectives.fetch_add(1, std::memory_order_relaxed);
      notice_.group.store(activity.group_id, std::memory_order_relaxed);
      notice_.sequence.store(activity.collectives.load(std::memory_order_relaxed), std::memory_order_relaxed);
      notice_.operation.store(call.operation, std::memory_order_relaxed);
      notice_.inside.store(true, std::memory_order_release);
      activity.begun.store(sequence, std::memory_order_release);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
      activity_.ended.store(activity_.begun.load(std::memory_order_relaxed), std::memory_order_release);
      notice_.inside.store(false, std::memory_order_release);
    }

   private:
    MpiBoard::Notice& notice_;
    Activity& activity_;
  };

 private:
  struct Watched {
    std::shared_ptr<Activity> activity;
    std::uint64_t sequence = 0;  // of the operation seen running last
    Clock::time_point since{};
  };

  /// " on " and the group of the last operation, while its communicator lives.
  [[nodiscard]] std::string last_group() const {
    const std::uint64_t id = board_->mine().group.load(std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    for (const Watched& w : watched_) {
      if (w.activity->group_id == id) return " on " + describe(*w.activity->group);
    }
    return {};
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      const auto now = Clock::now();
      board_->mine().alive.store(now.time_since_epoch().count());
      for (Watched& w : watched_) {
        const std::uint64_t begun = w.activity->begun.load(std::memory_order_acquire);
        if (begun == w.activity->ended.load(std::memory_order_acquire)) {
          w.sequence = 0;
        } else if (w.sequence != begun) {
          w.sequence = begun;
          w.since = now;
        } else if (now - w.since >= timeout_) {
          end_job(*w.activity);
        }
      }
      // Sixteen looks in one timeout: an operation is reported at most a sixteenth late.
      condition_.wait_for(lock, std::min<Clock::duration>(timeout_ / 16, std::chrono::seconds(1)));
    }
  }

  [[noreturn]] void end_job(const Activity& a) const {
    std::string missing;
    for (int r = 0; r < a.group->size(); ++r) {
      const std::string where = is_awaited(a, r) ? whereabouts(a, r) : std::string();
      if (!where.empty()) missing += (missing.empty() ? "" : ", ") + where;
    }
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count();
    std::fprintf(stderr, "smp: %s at %s on %s: waited %lld ms; missing: %s; ending the job\n", name(a.operation.load()),
                 place(a.file.load(), a.line.load()).c_str(), describe(*a.group).c_str(), static_cast<long long>(ms),
                 missing.empty() ? "nobody on this node" : missing.c_str());
    std::fflush(stderr);
    // Not MPI_Abort: this thread may not call MPI unless the host asked for more than MPI_THREAD_FUNNELED. Every
    // launcher ends a job in which a process exits with an error before MPI_Finalize.
    std::_Exit(EXIT_FAILURE);
  }

  /// Whether the operation has to do with rank `r` of its group. All messages of an exchange are waited for at once.
  [[nodiscard]] static bool is_awaited(const Activity& a, int r) {
    if (r == a.group->rank) return false;
    const Operation o = a.operation.load();
    return !is_point_to_point(o) || o == Operation::exchange || r == a.peer.load() || r == a.source.load();
  }

  /// Why rank `r` of the group may be the one that is waited for, or nothing.
  [[nodiscard]] std::string whereabouts(const Activity& a, int r) const {
    const int world_rank = a.group->world_ranks[static_cast<std::size_t>(r)];
    const MpiBoard::Notice* n = board_->find(world_rank);
    const std::string who = "world rank " + std::to_string(world_rank);
    if (n == nullptr) return {};  // on another node, where its own watchdog looks on
    if (n->finished.load()) return who + " has ended its session";
    const Clock::duration silent = Clock::now().time_since_epoch() - Clock::duration(n->alive.load());
    if (silent > timeout_ / 2) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
      return who + " gave no sign of life for " + std::to_string(ms) + " ms (stopped or dead)";
    }
    const bool has_come = n->group.load() == a.group_id && n->sequence.load() >= a.collectives.load();
    if (has_come && !is_point_to_point(a.operation.load())) return {};
    return n->inside.load() ? who + " is in another operation (" + name(n->operation.load()) + ")"
                            : who + " is in its own code";
  }

  std::unique_ptr<MpiBoard> board_;
  Clock::duration timeout_;
  mutable std::mutex mutex_;
  std::condition_variable condition_;
  std::vector<Watched> watched_;
  bool closing_ = false;
  std::atomic<const char*> last_file_{nullptr};
  std::atomic<std::uint32_t> last_line_{0};
  std::thread thread_;
};

}  // namespace smp::comm
