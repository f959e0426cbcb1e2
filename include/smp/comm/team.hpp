// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the thread ranks of one launch know of each other's fate: who has returned, who has failed and why, and what
/// each is doing.

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/device/waiting.hpp>

namespace smp::comm {

/// How long thread ranks wait for each other.
struct TeamOptions {
  /// After this time in one operation a rank reports who is missing, and the job ends.
  Clock::duration timeout = std::chrono::seconds(60);
};

/// The fate of the thread ranks of one launch.
class Team {
 public:
  /// A team of `ranks` ranks, none of which has begun.
  Team(int ranks, TeamOptions options)
      : options_(options), spins_(ranks <= available_cores() ? 4000 : 100), members_(static_cast<std::size_t>(ranks)) {}

  /// Number of ranks.
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  /// How long a rank waits in one operation.
  [[nodiscard]] Clock::duration timeout() const noexcept { return options_.timeout; }
  /// Polls before a waiting rank sleeps: few where the awaited one may need this core.
  [[nodiscard]] int spins() const noexcept { return spins_; }

  /// Says what a rank is doing; `nullptr`: its own code. Only for messages.
  void doing(int world_rank, const char* operation) noexcept {
    member(world_rank).operation.store(operation, std::memory_order_relaxed);
  }
  /// Says that the function of a rank has returned.
  void finish(int world_rank) noexcept { member(world_rank).finished.store(true); }
  /// True if the function of a rank has returned.
  [[nodiscard]] bool finished(int world_rank) const noexcept { return member(world_rank).finished.load(); }

  /// Ends the job: every rank that waits, or is going to, throws `text`. The first failure counts.
  /// @param blocked ranks are missing that had their time already
  void fail(const std::string& text, std::exception_ptr why, bool blocked = false) {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    text_ = text;
    why_ = std::move(why);
    blocked_ = blocked;
    failed_.store(true);
  }

  /// The job has ended.
  [[nodiscard]] bool failed() const noexcept { return failed_.load(); }
  /// Why, as every rank says it.
  [[nodiscard]] std::string failure() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }
  /// The exception that ended the job, or null.
  [[nodiscard]] std::exception_ptr reason() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }
  /// The job was ended by a rank that waited too long for another.
  [[nodiscard]] bool blocked() const {
    const std::lock_guard lock(mutex_);
    return blocked_;
  }

  /// "rank 2 has returned", "rank 2 is in its own code", "rank 2 is in a barrier"
  [[nodiscard]] std::string whereabouts(int world_rank) const {
    const std::string who = "world rank " + std::to_string(world_rank);
    if (finished(world_rank)) return who + " has returned from its function";
    const char* operation = member(world_rank).operation.load(std::memory_order_relaxed);
    return operation == nullptr ? who + " is in its own code" : who + " is in another operation (" + operation + ")";
  }

 private:
  struct alignas(64) Member {
    std::atomic<const char*> operation{nullptr};
    std::atomic<bool> finished{false};
  };

  [[nodiscard]] Member& member(int r) noexcept { return members_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] const Member& member(int r) const noexcept { return members_[static_cast<std::size_t>(r)]; }

  TeamOptions options_;
  int spins_;
  std::vector<Member> members_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::string text_;
  std::exception_ptr why_;
  bool blocked_ = false;
};

}  // namespace smp::comm
