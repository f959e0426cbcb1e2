// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Starts ranks as threads of this process.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <smp/comm/threads.hpp>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace smp::comm {

/// How thread ranks are started.
struct LaunchOptions {
  /// How long a rank waits for another one in one operation before the job ends.
  Clock::duration timeout = std::chrono::seconds(60);
  /// Give every rank cores of its own, if there are enough: the scheduler does put two ranks on one core otherwise.
  bool pin = true;
};

/// Binds the calling thread to its share of the cores this process may use; does nothing if there are fewer than ranks.
inline void pin_rank(int rank, int ranks) noexcept {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int share = CPU_COUNT(&allowed) / ranks;
  if (share == 0) return;
  cpu_set_t mine;
  CPU_ZERO(&mine);
  int seen = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed)) continue;
    if (seen / share == rank) CPU_SET(core, &mine);
    ++seen;
  }
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof mine, &mine);
#else
  (void)rank;
  (void)ranks;
#endif
}

/// Ends the process because a rank does not react: its thread cannot be ended, and it uses memory of this one.
[[noreturn]] inline void end_blocked_process(const Team& team) {
  std::string text = "smp: " + team.failure() + "; the job has ended, but ";
  for (int r = 0, named = 0; r < team.size(); ++r) {
    if (!team.finished(r)) text += (named++ > 0 ? ", " : "") + team.whereabouts(r);
  }
  std::fprintf(stderr, "%s and does not react; ending the process\n", text.c_str());
  std::fflush(stderr);
  std::_Exit(EXIT_FAILURE);
}

/// Ends the process with a message if a rank calls `std::exit`, which would end all ranks and could call it a success.
/// An object of the rank's thread: `std::exit` destroys those of the thread that calls it.
class ExitGuard {
 public:
  /// For the thread of world rank `rank` of `team`.
  ExitGuard(std::shared_ptr<Team> team, int rank) : team_(std::move(team)), rank_(rank) {}
  ExitGuard(const ExitGuard&) = delete;
  ExitGuard& operator=(const ExitGuard&) = delete;
  ~ExitGuard() {
    if (team_->finished(rank_)) return;
    std::string others;
    for (int r = 0; r < team_->size(); ++r) {
      if (r != rank_) others += "; " + team_->whereabouts(r);
    }
    std::fprintf(stderr, "smp: world rank %d has called exit%s; ending the process\n", rank_, others.c_str());
    std::fflush(stderr);
    std::_Exit(EXIT_FAILURE);
  }

 private:
  std::shared_ptr<Team> team_;
  int rank_;
};

/// Calls `function(Threads& world)` on `ranks` threads, one per rank, and returns when all have returned.
///
/// An exception that leaves the function on one rank ends the job: all other ranks throw `CommError` from the operation
/// they wait in, or call next, with the text of the first exception, and `launch` rethrows that one. A rank that stays
/// away is named by those who wait for it after `timeout`; if it then does not react either, the process ends. It also
/// ends, with EXIT_FAILURE, when a rank calls `std::exit`.
/// @throws the exception of the first rank that failed
template <class F>
void launch(int ranks, F&& function, LaunchOptions options = {}) {
  if (ranks < 1) {
    throw ConfigError("launch needs at least 1 rank, found " + std::to_string(ranks));
  }
  const auto team = std::make_shared<Team>(ranks, TeamOptions{options.timeout});
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto room = std::make_shared<Room>(team, "WORLD", std::move(everyone));

  const auto run = [&](int rank) {
    thread_local const ExitGuard guard(team, rank);
    if (options.pin) pin_rank(rank, ranks);
    try {
      Threads world(room, rank);
      function(world);
    } catch (const std::exception& e) {
      team->fail("world rank " + std::to_string(rank) + " has thrown: " + e.what(), std::current_exception());
    } catch (...) {
      team->fail("world rank " + std::to_string(rank) + " has thrown something that is no std::exception",
                 std::current_exception());
    }
    team->finish(rank);
  };

  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);

  const auto all_finished = [&] {
    for (int r = 0; r < ranks; ++r) {
      if (!team->finished(r)) return false;
    }
    return true;
  };
  // While all goes well the threads may take as long as they like; once the job has failed they have a time limit.
  Waiting waiting(0);
  while (!waiting.until(
             all_finished, [&] { return team->failed(); }, std::chrono::hours(1)) &&
         !team->failed()) {
  }
  const Clock::duration grace = team->blocked() ? std::chrono::milliseconds(500) : options.timeout;
  if (team->failed() && !waiting.until(
                            all_finished, [] { return false; }, grace))
    end_blocked_process(*team);
  for (std::thread& t : threads) t.join();
  if (const std::exception_ptr reason = team->reason()) std::rethrow_exception(reason);
}

}  // namespace smp::comm
