// SPDX-License-Identifier: Apache-2.0
// Checked: what only the time tells, parts of a group, options, and other communicators around and inside.
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>
#include <smp/comm/counted.hpp>

#include "support/ranks.hpp"

namespace {

using namespace std::chrono_literals;
using smp::HostStream;
using smp::comm::Checked;
using smp::comm::CheckOptions;
using smp::testing::on_ranks;
using smp::testing::World;

struct Thrown {
  std::string text;
  std::chrono::duration<double> after{};
  [[nodiscard]] bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

/// What `action` throws, and when.
template <class F>
Thrown thrown_by(F action) {
  const auto begin = smp::Clock::now();
  try {
    action();
  } catch (const smp::CommError& e) {
    return {e.what(), smp::Clock::now() - begin};
  }
  return {};
}

/// The sum of the ranks, or -1 if the communicator is of no use.
template <class C>
int sum_of_ranks(C& world) {
  HostStream stream;
  std::array<int, 1> value{world.rank()};
  const Thrown t = thrown_by([&] { world.all_reduce(stream, value, value, smp::sum); });
  if (!t.text.empty()) MESSAGE("rank " << world.rank() << ": " << t.text);
  return t.text.empty() ? value[0] : -1;
}

int expected_sum(int ranks) { return ranks * (ranks - 1) / 2; }

TEST_CASE("sends in a circle are named within the time-out, and the communicator stays usable") {
  on_ranks({3, 4}, [](World& world) {
    Checked<World> checked(world, CheckOptions{.timeout = 1500ms});
    HostStream stream;
    const std::array<int, 3> out{};
    for (int repetition = 0; repetition < 2; ++repetition) {
      const Thrown t = thrown_by([&] { checked.send(stream, out, (world.rank() + 1) % world.size()); });
      CHECK(t.says(" has not come to send"));
      CHECK(t.says("checked.test.cpp:"));
      CHECK(t.says("within 1500 ms"));
      CHECK(t.after.count() < 2);
      CHECK(sum_of_ranks(checked) == expected_sum(world.size()));
    }
  });
}

TEST_CASE("a rank that comes too late is named by those who wait, and hears of it itself") {
  on_ranks({2, 3}, [](World& world) {
    Checked<World> checked(world, CheckOptions{.timeout = 1000ms});
    HostStream stream;
    std::vector<int> data(5);
    const int late = world.size() - 1;
    if (world.rank() == late) std::this_thread::sleep_for(1500ms);
    const Thrown t = thrown_by([&] { checked.broadcast(stream, data, 0); });
    CHECK(t.says("rank " + std::to_string(late) + " has not come to broadcast of 5 int32 with root 0"));
    CHECK(t.after.count() < 2);
    CHECK(sum_of_ranks(checked) == expected_sum(world.size()));
  });
}

TEST_CASE("calls from different lines are a mismatch, unless that is switched off") {
  on_ranks({2, 3}, [](World& world) {
    const auto call = [&](Checked<World>& checked) {
      HostStream stream;
      if (world.rank() == 0) {
        checked.barrier(stream);
      } else {
        checked.barrier(stream);
      }
    };
    Checked<World> strict(world, CheckOptions{.timeout = 10s});
    CHECK(thrown_by([&] { call(strict); }).says("the ranks disagree about the call site: rank "));
    CHECK(sum_of_ranks(strict) == expected_sum(world.size()));
    Checked<World> lenient(world, CheckOptions{.timeout = 10s, .same_call_site = false});
    CHECK(thrown_by([&] { call(lenient); }).text == "");
    CHECK(sum_of_ranks(lenient) == expected_sum(world.size()));
  });
}

TEST_CASE("an error in one part of a group is not seen in the other, nor in the whole") {
  on_ranks({4}, [](World& world) {
    Checked<World> whole(world, CheckOptions{.timeout = 10s});
    Checked<World> half = whole.split(world.rank() / 2, world.rank(), "HALF");
    HostStream stream;
    std::vector<float> data(world.rank() == 3 ? 4 : 3);
    const Thrown t = thrown_by([&] { half.all_reduce(stream, data, data, smp::sum); });
    if (world.rank() >= 2) {
      CHECK(t.says("on HALF group (world ranks 2,3), rank " + std::to_string(world.rank() - 2)));
      CHECK(t.says("the ranks disagree about the count: rank 0 calls all_reduce of 3 float (sum) at "));
    } else {
      CHECK(t.text == "");
    }
    CHECK(sum_of_ranks(half) == 1);
    CHECK(sum_of_ranks(whole) == 6);
  });
}

TEST_CASE("a split against another operation is named on every rank") {
  on_ranks({2, 3}, [](World& world) {
    Checked<World> checked(world, CheckOptions{.timeout = 10s});
    HostStream stream;
    std::array<int, 1> value{};
    const Thrown t = thrown_by([&] {
      if (world.rank() == 0) {
        (void)checked.split(0, 0, "PART");
      } else {
        checked.all_reduce(stream, value, value, smp::sum);
      }
    });
    CHECK(t.says("the ranks disagree about the operation: rank 0 calls split at checked.test.cpp:"));
    CHECK(sum_of_ranks(checked) == expected_sum(world.size()));
  });
}

TEST_CASE("two checked communicators of one group do not meet") {
  on_ranks({2, 3}, [](World& world) {
    Checked<World> first(world, CheckOptions{.timeout = 10s});
    HostStream stream;
    std::vector<int> data(world.rank() == 0 ? 1 : 2);
    CHECK(thrown_by([&] { first.all_reduce(stream, data, data, smp::sum); }).says("count"));
    Checked<World> second(world, CheckOptions{.timeout = 10s});
    CHECK(sum_of_ranks(second) == expected_sum(world.size()));
    CHECK(sum_of_ranks(first) == expected_sum(world.size()));
  });
}

TEST_CASE("counted outside counts what is called, counted inside what is performed") {
  on_ranks({2}, [](World& world) {
    using smp::Purpose;
    using smp::comm::Counted;
    using smp::comm::Operation;
    HostStream stream;
    std::vector<int> data(world.rank() == 0 ? 1 : 2);
    const int peer = 1 - world.rank();
    const auto use = [&](auto& c) {
      CHECK(thrown_by([&] { c.all_reduce(stream, data, data, smp::sum); }).says("count"));
      std::vector<int> out(3, world.rank());
      std::vector<int> in(3);
      c.send_recv(stream, out, peer, in, peer);
      CHECK(in == std::vector<int>(3, peer));
    };
    Counted<Checked<World>> outside(Checked<World>(world, CheckOptions{.timeout = 10s}));
    use(outside);
    CHECK(outside.counters().get("WORLD", Operation::all_reduce, Purpose::other).calls == 1);
    CHECK(outside.counters().get("WORLD", Operation::send_recv, Purpose::other).calls == 1);
    Checked<Counted<World>> inside(Counted<World>(world), CheckOptions{.timeout = 10s});
    use(inside);
    CHECK(inside.inner().counters().get("WORLD", Operation::all_reduce, Purpose::other).calls == 0);
    CHECK(inside.inner().counters().get("WORLD", Operation::send_recv, Purpose::other).calls == 1);
    CHECK(inside.inner().counters().get("WORLD", Operation::send_recv, Purpose::other).bytes == 12);
  });
}

TEST_CASE("a group of one rank has nothing to compare") {
  on_ranks({1}, [](World& world) {
    Checked<World> checked(world);
    CHECK(sum_of_ranks(checked) == 0);
  });
}

}  // namespace
