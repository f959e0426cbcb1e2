// SPDX-License-Identifier: Apache-2.0
// How thread ranks begin and end: one thread a rank, the first exception comes back as it was, worlds do not mix.
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/launch.hpp>

namespace {

using smp::CommError;
using smp::HostStream;
using smp::comm::launch;
using smp::comm::Threads;

int sum_of_ones(Threads& world) {
  HostStream stream;
  int sum = 1;
  world.all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum);
  return sum;
}

TEST_CASE("every rank is a thread of its own, and launch returns when all have returned") {
  std::vector<std::thread::id> ids(5);
  std::atomic<int> returned{0};
  launch(5, [&](Threads& world) {
    CHECK(world.size() == 5);
    CHECK(world.group().name == "WORLD");
    ids.at(static_cast<std::size_t>(world.rank())) = std::this_thread::get_id();
    ++returned;
  });
  CHECK(returned == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(ids[i] != std::this_thread::get_id());
    for (std::size_t j = 0; j < i; ++j) CHECK(ids[i] != ids[j]);
  }
}

TEST_CASE("a job needs at least one rank") {
  for (const int ranks : {0, -3}) {
    CHECK_THROWS_WITH_AS(launch(ranks, [](Threads&) {}),
                         doctest::Contains(("launch needs at least 1 rank, found " + std::to_string(ranks)).c_str()),
                         smp::ConfigError);
  }
}

struct NotStandard {
  int code;
};

TEST_CASE("the exception of the first rank that fails comes back with its type, whatever the others throw then") {
  for (int failing = 0; failing < 4; ++failing) {
    std::array<std::string, 4> seen;
    const auto body = [&](Threads& world) {
      try {
        if (world.rank() == failing) throw std::out_of_range("index 7");
        sum_of_ones(world);
      } catch (const CommError& e) {
        seen[static_cast<std::size_t>(world.rank())] = e.what();
        throw;
      }
    };
    CHECK_THROWS_WITH_AS(launch(4, body), "index 7", std::out_of_range);
    for (int r = 0; r < 4; ++r) {
      const std::string& text = seen[static_cast<std::size_t>(r)];
      if (r == failing) continue;
      CHECK(text.find("world rank " + std::to_string(failing) + " has thrown: index 7") != std::string::npos);
      CHECK(text.find("rank " + std::to_string(r) + ":") != std::string::npos);
    }
  }
  CHECK_THROWS_AS(launch(2,
                         [](Threads& world) {
                           if (world.rank() == 1) throw NotStandard{3};
                           sum_of_ones(world);
                         }),
                  NotStandard);
}

TEST_CASE("a rank that waits for one that has returned says so") {
  CHECK_THROWS_WITH_AS(launch(2,
                              [](Threads& world) {
                                if (world.rank() == 0) sum_of_ones(world);
                              }),
                       doctest::Contains("world rank 1 has returned from its function"), CommError);
}

TEST_CASE("after a failed job the next one works") {
  for (int i = 0; i < 20; ++i) {
    CHECK_THROWS_AS(launch(3,
                           [](Threads& world) {
                             if (world.rank() == 2) throw std::runtime_error("stop");
                             sum_of_ones(world);
                           }),
                    std::runtime_error);
    launch(3, [](Threads& world) { CHECK(sum_of_ones(world) == 3); });
  }
}

TEST_CASE("jobs at the same time, and a job inside of a job, are worlds of their own") {
  std::thread other([] { launch(3, [](Threads& world) { CHECK(sum_of_ones(world) == 3); }); });
  launch(2, [](Threads& world) {
    CHECK(sum_of_ones(world) == 2);
    launch(3, [](Threads& inner) { CHECK(sum_of_ones(inner) == 3); });
    CHECK(sum_of_ones(world) == 2);
  });
  other.join();
}

TEST_CASE("ranks need not be bound to cores") {
  launch(2, [](Threads& world) { CHECK(sum_of_ones(world) == 2); }, {.pin = false});
}

}  // namespace
