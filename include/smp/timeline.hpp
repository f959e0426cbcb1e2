// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank does when: a list of intervals that whoever runs something adds to.

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace smp {

/// Something that took some time.
struct TimelineEvent {
  std::string row;       ///< who did it: "compute", or the name of a group
  std::string name;      ///< "F3", "all_reduce"
  std::string category;  ///< "forward", "gradient": events of one kind have one colour
  double begin = 0;      ///< in seconds
  double end = 0;        ///< in seconds
};

/// The events of one rank. Several threads may add some.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;  ///< of the events

  /// From now on events are kept, with times that begin at 0. Those of before are forgotten.
  void start() {
    const std::lock_guard lock(mutex_);
    zero_ = Clock::now();
    events_.clear();
    running_ = true;
  }
  /// From now on events are not kept.
  void stop() {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  /// What has been kept.
  [[nodiscard]] std::vector<TimelineEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

  /// Adds the event that lasts as long as this object.
  class Scope {
   public:
    /// It begins; nothing does if `timeline` is null.
    Scope(Timeline* timeline, std::string row, std::string name, std::string category)
        : timeline_(timeline), event_{std::move(row), std::move(name), std::move(category)}, begin_(Clock::now()) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (timeline_ != nullptr) timeline_->add(std::move(event_), begin_, Clock::now());
    }

   private:
    Timeline* timeline_;
    TimelineEvent event_;
    Clock::time_point begin_;
  };

 private:
  void add(TimelineEvent event, Clock::time_point begin, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    if (!running_ || begin < zero_) return;
    event.begin = std::chrono::duration<double>(begin - zero_).count();
    event.end = std::chrono::duration<double>(end - zero_).count();
    events_.push_back(std::move(event));
  }

  mutable std::mutex mutex_;
  std::vector<TimelineEvent> events_;
  Clock::time_point zero_{};
  bool running_ = false;
};

}  // namespace smp
