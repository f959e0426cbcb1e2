// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Streams and events of the host, with the ordering rules of CUDA's: a stream runs its tasks in the order in which
/// they were enqueued, and only an event orders two streams.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/device/waiting.hpp>
#include <smp/error.hpp>

namespace smp {

class HostStream;

/// A point in a stream that others can wait for. Recorded again and again, but always in the same stream.
class HostEvent {
 public:
  HostEvent() : state_(std::make_shared<State>()) {}

  /// Everything enqueued before the last `record` has run. True if the event was never recorded.
  [[nodiscard]] bool ready() const noexcept { return state_->completed.load() >= state_->recorded.load(); }

  /// Blocks the calling thread until `ready()`.
  /// @throws what a task before the event threw; DeviceError after `timeout`
  void wait(Clock::duration timeout = std::chrono::minutes(10)) const {
    state_->wait_for(state_->recorded.load(), timeout);
  }

 private:
  friend class HostStream;

  struct State {
    std::atomic<std::uint64_t> recorded{0};
    std::atomic<std::uint64_t> completed{0};
    std::atomic<const void*> recorder{nullptr};
    std::mutex failure_mutex;
    std::exception_ptr failure;
    std::uint64_t failed = 0;  // the first record behind the failure: who waits for an earlier one may go on
    Waiting waiting;

    void complete(std::uint64_t ticket, const std::exception_ptr& why) {
      {
        const std::lock_guard lock(failure_mutex);
        if (why && !failure) failed = ticket;
        failure = why;
      }
      completed.store(ticket);
      waiting.wake();
    }

    void wait_for(std::uint64_t ticket, Clock::duration timeout) {
      const bool done = waiting.until([&] { return completed.load() >= ticket; }, [] { return false; }, timeout);
      if (!done) {
        const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout).count();
        throw DeviceError("an event did not complete within " + std::to_string(seconds) +
                          " s: a task before it in its stream is still running, or waits itself");
      }
      const std::lock_guard lock(failure_mutex);
      if (failure && ticket >= failed) std::rethrow_exception(failure);
    }
  };

  std::shared_ptr<State> state_;
};

/// An in-order queue of host tasks.
///
/// `Mode::at_once` runs a task inside `enqueue`, on the calling thread. `Mode::worker` has a thread of its own, and
/// the caller runs ahead of it by up to `capacity` tasks. When a task of a worker throws, the tasks behind it are
/// skipped, events recorded behind it carry the exception on, and `synchronize()` rethrows it; after that the stream is
/// usable again. One thread at a time may use a stream.
class HostStream {
 public:
  using Event = HostEvent;  ///< what orders two such streams

  /// Where the tasks run.
  enum class Mode : unsigned char { at_once, worker };

  /// Bytes that one task may capture. Nothing is allocated to enqueue one.
  static constexpr std::size_t task_bytes = 368;

  /// Runs tasks at once.
  HostStream() : HostStream(Mode::at_once) {}
  /// @param capacity tasks that may wait in the queue of a worker before `enqueue` blocks
  explicit HostStream(Mode mode, std::size_t capacity = 256) : mode_(mode), unwinding_(std::uncaught_exceptions()) {
    if (mode_ == Mode::at_once) return;
    ring_ = std::vector<Task>(capacity);
    worker_ = std::thread([this] { run(); });
  }

  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  /// Runs what is enqueued and ends the worker. While an exception unwinds the stack, what has not begun is dropped:
  /// a communication begun here might wait for ranks that will not come.
  ~HostStream() {
    if (mode_ == Mode::at_once) return;
    if (std::uncaught_exceptions() > unwinding_) dropping_.store(true);
    closing_.store(true);
    waiting_.wake();
    worker_.join();
  }

  /// Where tasks of this stream run.
  [[nodiscard]] Mode mode() const noexcept { return mode_; }

  /// Runs `task()` after everything enqueued before. `task` must be callable once and must not outlive what it refers
  /// to.
  template <class F>
  void enqueue(F&& task) {
    if (mode_ == Mode::at_once) {
      std::forward<F>(task)();
    } else {
      push(std::forward<F>(task));
    }
  }

  /// Makes `event` complete when everything enqueued before has run.
  /// @throws DeviceError if `event` was recorded in another stream before
  void record(HostEvent& event) {
    const void* none = nullptr;
    if (!event.state_->recorder.compare_exchange_strong(none, this) && none != this) {
      throw DeviceError("an event is recorded in one stream only; this one was recorded in another stream before");
    }
    const std::uint64_t ticket = event.state_->recorded.fetch_add(1) + 1;
    if (mode_ == Mode::at_once) {
      event.state_->complete(ticket, failure_);
      return;
    }
    push([state = event.state_, ticket, this] { state->complete(ticket, failure_); }, Kind::always);
  }

  /// Lets what is enqueued from now on wait until `event`, as recorded last, has completed.
  void wait(const HostEvent& event, Clock::duration timeout = std::chrono::minutes(10)) {
    enqueue(
        [state = event.state_, ticket = event.state_->recorded.load(), timeout] { state->wait_for(ticket, timeout); });
  }

  /// Waits for what is enqueued, as the destructor does: for an owner of what tasks use. While an exception unwinds the
  /// stack, what has not begun is dropped, and the stream is usable again.
  void settle() noexcept {
    if (mode_ == Mode::at_once) return;
    const bool drop = std::uncaught_exceptions() > unwinding_;
    dropping_.store(drop);
    const std::uint64_t all = pushed_.load();
    (void)waiting_.until([&] { return popped_.load() >= all; }, [] { return false; }, std::chrono::minutes(10));
    if (!drop) return;
    dropping_.store(false);
    failure_ = nullptr;
  }

  /// Blocks until everything enqueued has run.
  /// @throws what a task threw, once; the tasks behind it were skipped
  void synchronize(Clock::duration timeout = std::chrono::minutes(10)) {
    if (mode_ == Mode::worker) {
      const std::uint64_t all = pushed_.load();
      const bool done = waiting_.until([&] { return popped_.load() >= all; }, [] { return false; }, timeout);
      if (!done) throw DeviceError("a stream did not finish its tasks within the time given to synchronize()");
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  enum class Kind : unsigned char { skippable, always };

  struct Task {
    alignas(std::max_align_t) std::byte storage[task_bytes];
    void (*run)(void*, bool call) = nullptr;  // calls (or not), then destroys
    Kind kind = Kind::skippable;
  };

  template <class F>
  void push(F&& task, Kind kind = Kind::skippable) {
    using Callable = std::decay_t<F>;
    static_assert(sizeof(Callable) <= task_bytes && alignof(Callable) <= alignof(std::max_align_t),
                  "smp::HostStream: a task captures more than HostStream::task_bytes; capture pointers to the data, "
                  "not the data");
    Task& slot = claim();
    ::new (static_cast<void*>(slot.storage)) Callable(std::forward<F>(task));
    slot.run = &run_task<Callable>;
    slot.kind = kind;
    publish();
  }

  // A function, not a lambda, which would be three functions.
  template <class Callable>
  static void run_task(void* storage, bool call) {
    struct Destroy {
      Callable& callable;
      ~Destroy() { callable.~Callable(); }
    } const destroy{*std::launder(static_cast<Callable*>(storage))};
    if (call) destroy.callable();
  }

  // What does not depend on the type of a task is compiled once.
  [[gnu::noinline]] Task& claim() {
    const std::uint64_t index = pushed_.load();
    const bool room = waiting_.until([&] { return index - popped_.load() < ring_.size(); }, [] { return false; },
                                     std::chrono::minutes(10));
    if (!room) throw DeviceError("the queue of a stream stayed full for ten minutes: its running task does not end");
    return ring_[index % ring_.size()];
  }
  [[gnu::noinline]] void publish() {
    pushed_.store(pushed_.load() + 1);
    waiting_.wake();
  }

  void run() {
    for (;;) {
      const std::uint64_t index = popped_.load();
      while (!waiting_.until([&] { return pushed_.load() > index || closing_.load(); }, [] { return false; },
                             std::chrono::hours(1))) {
      }
      if (pushed_.load() == index) return;
      Task& task = ring_[index % ring_.size()];
      if (!failure_ && dropping_.load()) {
        failure_ =
            std::make_exception_ptr(DeviceError("an exception has dropped the tasks of a stream before they ran"));
      }
      const bool call = task.kind == Kind::always || !failure_;
      try {
        task.run(task.storage, call);
      } catch (...) {
        failure_ = std::current_exception();
      }
      popped_.store(index + 1);
      waiting_.wake();
    }
  }

  Mode mode_;
  int unwinding_;
  std::vector<Task> ring_;
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> popped_{0};
  std::atomic<bool> closing_{false};
  std::atomic<bool> dropping_{false};
  std::exception_ptr failure_;  // the worker's between two synchronize(), the caller's after one
  Waiting waiting_;
  std::thread worker_;
};

}  // namespace smp
