// SPDX-License-Identifier: Apache-2.0
// Streams and events of the host: order, running ahead, and what becomes of exceptions.
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/host_stream.hpp>

#include "support/allocations.hpp"

namespace {

using smp::DeviceError;
using smp::HostEvent;
using smp::HostStream;
using smp::testing::allocations;
using namespace std::chrono_literals;

/// Holds a stream until it is opened.
class Gate {
 public:
  void open() { open_.store(true); }
  void pass() const {
    while (!open_.load()) std::this_thread::sleep_for(100us);
  }

 private:
  std::atomic<bool> open_{false};
};

/// The text of the exception that `f` throws.
template <class F>
std::string thrown(F f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}

TEST_CASE("a stream that runs at once runs a task inside of enqueue, on the calling thread") {
  HostStream stream;
  CHECK(stream.mode() == HostStream::Mode::at_once);
  std::thread::id id;
  stream.enqueue([&] { id = std::this_thread::get_id(); });
  CHECK(id == std::this_thread::get_id());
  CHECK(thrown([&] { stream.enqueue([] { throw std::runtime_error("task"); }); }) == "task");
  bool next_ran = false;
  stream.enqueue([&] { next_ran = true; });
  CHECK(next_ran);
  stream.synchronize();
  HostEvent event;
  stream.record(event);
  CHECK(event.ready());
  stream.wait(event);
}

TEST_CASE("a worker runs tasks in the order in which they were enqueued, on one other thread") {
  std::vector<int> order;  // no lock: that is the worker's promise
  std::thread::id id;
  HostStream stream(HostStream::Mode::worker);
  for (int i = 0; i < 10000; ++i) {
    stream.enqueue([&order, &id, i] {
      order.push_back(i);
      id = std::this_thread::get_id();
    });
  }
  stream.synchronize();
  REQUIRE(order.size() == 10000);
  for (int i = 0; i < 10000; ++i) {
    if (order[static_cast<std::size_t>(i)] != i) FAIL_CHECK("out of order");
  }
  CHECK(id != std::this_thread::get_id());
}

TEST_CASE("the caller runs ahead of a worker") {
  Gate gate;
  std::atomic<int> ran{0};
  HostStream stream(HostStream::Mode::worker);
  HostEvent event;
  stream.enqueue([&] { gate.pass(); });
  for (int i = 0; i < 100; ++i) stream.enqueue([&] { ++ran; });
  stream.record(event);
  CHECK(ran == 0);
  CHECK_FALSE(event.ready());
  gate.open();
  event.wait();
  CHECK(ran == 100);
  CHECK(event.ready());
}

TEST_CASE("a full queue holds the caller until a task has run") {
  Gate gate;
  std::atomic<int> ran{0};
  HostStream stream(HostStream::Mode::worker, 4);
  stream.enqueue([&] { gate.pass(); });
  for (int i = 0; i < 3; ++i) stream.enqueue([&] { ++ran; });
  std::atomic<bool> enqueued{false};
  std::thread caller([&] {
    stream.enqueue([&] { ++ran; });
    enqueued = true;
  });
  std::this_thread::sleep_for(60ms);
  CHECK_FALSE(enqueued.load());
  gate.open();
  caller.join();
  CHECK(enqueued.load());
  stream.synchronize();
  CHECK(ran == 4);
}

TEST_CASE("an event lets one stream wait for another") {
  HostStream producer(HostStream::Mode::worker), consumer(HostStream::Mode::worker);
  HostEvent produced, consumed;
  int value = 0;  // no lock: the events order all accesses
  long sum = 0;
  for (int i = 1; i <= 1000; ++i) {
    producer.wait(consumed);  // never recorded the first time: nothing to wait for
    producer.enqueue([&value, i] { value = i; });
    producer.record(produced);
    consumer.wait(produced);
    consumer.enqueue([&] { sum += value; });
    consumer.record(consumed);
  }
  consumer.synchronize();
  producer.synchronize();
  CHECK(sum == 500500);
}

TEST_CASE("a wait is for what was recorded when it was enqueued, not for what is recorded later") {
  Gate first, second;
  HostStream a(HostStream::Mode::worker), b(HostStream::Mode::worker);
  HostEvent event;
  a.enqueue([&] { first.pass(); });
  a.record(event);
  b.wait(event);
  std::atomic<bool> b_ran{false};
  b.enqueue([&] { b_ran = true; });
  a.enqueue([&] { second.pass(); });
  a.record(event);
  std::this_thread::sleep_for(30ms);
  CHECK_FALSE(b_ran.load());
  first.open();
  b.synchronize();
  CHECK(b_ran.load());
  CHECK_FALSE(event.ready());
  second.open();
  event.wait();
  CHECK(event.ready());
}

TEST_CASE("an event that was never recorded is ready") {
  HostEvent event;
  CHECK(event.ready());
  event.wait();
  HostStream stream(HostStream::Mode::worker);
  stream.wait(event);
  stream.synchronize();
}

TEST_CASE("an event is recorded in one stream only") {
  HostStream a(HostStream::Mode::worker), b(HostStream::Mode::worker), inline_stream;
  HostEvent event;
  a.record(event);
  a.record(event);
  CHECK_THROWS_WITH_AS(b.record(event),
                       "smp: an event is recorded in one stream only; this one was recorded in another stream before",
                       DeviceError);
  CHECK_THROWS_AS(inline_stream.record(event), DeviceError);
  a.synchronize();
  CHECK(event.ready());
}

TEST_CASE("an exception skips the tasks behind it, is carried on by events, and is rethrown once") {
  HostStream stream(HostStream::Mode::worker), other(HostStream::Mode::worker);
  HostEvent before, behind;
  int ran = 0, other_ran = 0;
  stream.enqueue([&] { ++ran; });
  stream.record(before);
  stream.enqueue([] { throw std::runtime_error("micro-batch 2"); });
  stream.enqueue([&] { ++ran; });
  stream.record(behind);
  other.enqueue([&] { ++other_ran; });
  other.wait(behind);
  other.enqueue([&] { ++other_ran; });

  before.wait();
  CHECK(thrown([&] { behind.wait(); }) == "micro-batch 2");
  CHECK(thrown([&] { behind.wait(); }) == "micro-batch 2");
  CHECK(thrown([&] { stream.synchronize(); }) == "micro-batch 2");
  CHECK(ran == 1);
  stream.synchronize();
  CHECK(thrown([&] { other.synchronize(); }) == "micro-batch 2");
  CHECK(other_ran == 1);
  other.synchronize();

  // Both are usable again, and so is the event.
  stream.enqueue([&] { ++ran; });
  stream.record(behind);
  other.wait(behind);
  other.enqueue([&] { ++other_ran; });
  other.synchronize();
  behind.wait();
  CHECK(ran == 2);
  CHECK(other_ran == 2);
}

TEST_CASE("who waits late for what was recorded before an exception goes on") {
  HostStream stream(HostStream::Mode::worker), late(HostStream::Mode::worker);
  HostEvent event;
  Gate gate;
  int ran = 0;
  late.enqueue([&] { gate.pass(); });
  stream.record(event);
  late.wait(event);
  late.enqueue([&] { ++ran; });
  stream.enqueue([] { throw std::runtime_error("micro-batch 2"); });
  stream.record(event);
  CHECK(thrown([&] { stream.synchronize(); }) == "micro-batch 2");
  gate.open();
  late.synchronize();
  CHECK(ran == 1);
}

TEST_CASE("of two exceptions the first counts") {
  HostStream stream(HostStream::Mode::worker);
  stream.enqueue([] { throw std::runtime_error("first"); });
  stream.enqueue([] { throw std::runtime_error("second"); });
  CHECK(thrown([&] { stream.synchronize(); }) == "first");
}

TEST_CASE("what tasks capture is destroyed when they have run, and when they are skipped") {
  const auto token = std::make_shared<int>(7);
  auto only_movable = std::make_unique<int>(1);
  int seen = 0;
  HostStream stream(HostStream::Mode::worker);
  stream.enqueue([token] {});
  stream.enqueue([&seen, p = std::move(only_movable)] { seen = *p; });
  stream.enqueue([] { throw std::runtime_error("task"); });
  stream.enqueue([token] {});
  CHECK_THROWS(stream.synchronize());
  CHECK(token.use_count() == 1);
  CHECK(seen == 1);
}

TEST_CASE("a destroyed stream runs what is enqueued first") {
  std::atomic<int> ran{0};
  HostEvent event;
  {
    HostStream stream(HostStream::Mode::worker);
    for (int i = 0; i < 100; ++i) stream.enqueue([&] { ++ran; });
    stream.record(event);
  }
  CHECK(ran == 100);
  event.wait();  // outlives its stream
}

TEST_CASE("a stream destroyed by an exception drops what has not begun") {
  const auto token = std::make_shared<int>(7);
  std::atomic<int> ran{0};
  HostEvent event;
  Gate gate;
  std::thread opener([&] {
    std::this_thread::sleep_for(50ms);  // the stream is being destroyed by then
    gate.open();
  });
  try {
    HostStream stream(HostStream::Mode::worker);
    stream.enqueue([&] { gate.pass(); });
    for (int i = 0; i < 10; ++i) stream.enqueue([&, token] { ++ran; });
    stream.record(event);
    throw std::runtime_error("user code");
  } catch (const std::runtime_error& e) {
    CHECK(std::string(e.what()) == "user code");
  }
  opener.join();
  CHECK(ran == 0);
  CHECK(token.use_count() == 1);
  CHECK(thrown([&] { event.wait(); }) ==
        "smp: an exception has dropped the tasks of a stream before they ran");  // who waits for it does not hang
}

TEST_CASE("who owns what tasks use waits for them; when destroyed by an exception, it drops what has not begun") {
  struct Owner {
    HostStream& stream;
    ~Owner() { stream.settle(); }
  };
  HostStream stream(HostStream::Mode::worker);
  std::atomic<int> ran{0};
  Gate gate;
  const auto enqueue = [&] {
    for (int i = 0; i < 10; ++i) stream.enqueue([&] { ++ran; });
  };
  {
    Owner owner{stream};
    enqueue();
  }
  CHECK(ran == 10);
  std::thread opener([&] {
    std::this_thread::sleep_for(50ms);
    gate.open();
  });
  try {
    Owner owner{stream};
    stream.enqueue([&] { gate.pass(); });
    enqueue();
    throw std::runtime_error("user code");
  } catch (const std::runtime_error&) {
    CHECK(ran == 10);
  }
  opener.join();
  enqueue();
  stream.synchronize();
  CHECK(ran == 20);
}

TEST_CASE("a stream made and destroyed while an exception unwinds is not dropped") {
  std::atomic<int> ran{0};
  struct InDestructor {
    std::atomic<int>& ran;
    ~InDestructor() {
      HostStream stream(HostStream::Mode::worker);
      for (int i = 0; i < 10; ++i) stream.enqueue([this] { ++ran; });
    }
  };
  try {
    InDestructor guard{ran};
    throw std::runtime_error("user code");
  } catch (const std::runtime_error&) {
  }
  CHECK(ran == 10);
}

TEST_CASE("nothing is allocated to enqueue, record and wait") {
  HostStream a(HostStream::Mode::worker), b(HostStream::Mode::worker), at_once;
  HostEvent event, at_once_event;
  struct Large {
    std::byte bytes[HostStream::task_bytes - sizeof(void*)];
  };
  const Large large{};
  std::atomic<int> ran{0};
  const auto step = [&] {
    a.enqueue([large, counter = &ran] { *counter += 1 + static_cast<int>(large.bytes[0]); });
    a.record(event);
    b.wait(event);
    b.enqueue([&] { ++ran; });
    at_once.enqueue([&] { ++ran; });
    at_once.record(at_once_event);
    b.wait(at_once_event);
  };
  step();
  a.synchronize();
  b.synchronize();
  const long before = allocations.load();
  for (int i = 0; i < 1000; ++i) step();
  a.synchronize();
  b.synchronize();
  CHECK(allocations.load() == before);
  CHECK(ran == 3 * 1001);
}

TEST_CASE("a wait that takes too long says what it waits for") {
  Gate gate;
  HostStream stream(HostStream::Mode::worker);
  HostEvent event;
  stream.enqueue([&] { gate.pass(); });
  stream.record(event);
  CHECK(thrown([&] { event.wait(30ms); }).find("an event did not complete within") != std::string::npos);
  CHECK(thrown([&] { stream.synchronize(30ms); }).find("did not finish its tasks within the time") !=
        std::string::npos);
  gate.open();
  stream.synchronize();
}

}  // namespace
