// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How a host thread waits for another one: spin shortly, then sleep; wake when told to, and give up at a deadline.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace smp {

/// The clock of all deadlines.
using Clock = std::chrono::steady_clock;

/// Processors that this process may run on: its affinity mask, which a launcher or a container may have narrowed.
[[nodiscard]] inline int available_cores() noexcept {
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0 && CPU_COUNT(&mask) > 0) return CPU_COUNT(&mask);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : static_cast<int>(n);
}

/// Tells the processor that this is a waiting loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// A place to wait for conditions over atomics that other threads change.
///
/// The other side changes the atomic (sequentially consistent), then calls `wake()`, which costs one load when nobody
/// sleeps. Spinning first keeps a hand-over between two running threads below a microsecond; sleeping afterwards
/// keeps it bounded when there are more threads than cores, where pure spinning was measured at 8 ms a hand-over.
class Waiting {
 public:
  /// @param spins polls before sleeping; 0 where the other side cannot run while this one spins
  explicit Waiting(int spins = 2000) noexcept : spins_(spins) {}

  /// Wakes the sleepers to look at their conditions again.
  void wake() noexcept {
    if (sleepers_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    condition_.notify_all();
  }

  /// Waits until `ready()`. Returns false when `give_up()` says so or `timeout` has passed first; `give_up` is asked
  /// every few milliseconds while sleeping, so it may look at things nobody calls `wake()` for.
  template <class Ready, class GiveUp>
  [[nodiscard]] bool until(Ready ready, GiveUp give_up, Clock::duration timeout) {
    for (int i = 0; i < spins_; ++i) {
      if (ready()) return true;
      spin_pause();
    }
    const auto deadline = Clock::now() + timeout;
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    bool is_ready = ready();
    while (!is_ready && !give_up() && Clock::now() < deadline) {
      condition_.wait_for(lock, slice);
      is_ready = ready();
    }
    sleepers_.fetch_sub(1);
    return is_ready;
  }

  /// How long a sleeper goes without looking around.
  static constexpr std::chrono::milliseconds slice{20};

 private:
  int spins_;
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable condition_;
};

}  // namespace smp
