// SPDX-License-Identifier: Apache-2.0
// Checked on thread ranks: a rank that has returned, or has thrown, is known to come no more.
#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>
#include <smp/comm/launch.hpp>

namespace {

using namespace std::chrono_literals;
using smp::HostStream;
using smp::comm::Checked;
using smp::comm::CheckOptions;
using smp::comm::launch;
using smp::comm::Threads;

/// All ranks but `absent` call an operation that needs it, number `which`.
void call_without(int absent, int which, Checked<Threads>& world) {
  HostStream stream;
  std::vector<int> data(4);
  std::vector<int> more(4);
  switch (which) {
    case 0:
      return world.all_reduce(stream, data, data, smp::sum);
    case 1:
      return world.barrier(stream);
    case 2:
      return world.send(stream, data, absent);
    case 3:
      return world.recv(stream, data, absent);
    default:
      return world.send_recv(stream, data, absent, more, absent);
  }
}

TEST_CASE("a rank that has returned is named at once, not after the time-out") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (int absent = 0; absent < ranks; ++absent) {
      for (int which = 0; which < 5; ++which) {
        CAPTURE(ranks);
        CAPTURE(absent);
        CAPTURE(which);
        const auto begin = smp::Clock::now();
        std::vector<std::string> texts(static_cast<std::size_t>(ranks));
        launch(ranks, [&](Threads& world) {
          Checked<Threads> checked(world, CheckOptions{.timeout = 60s});
          if (world.rank() == absent) return;
          try {
            call_without(absent, which, checked);
          } catch (const smp::CommError& e) {
            texts[static_cast<std::size_t>(world.rank())] = e.what();
          }
        });
        CHECK(smp::Clock::now() - begin < 5s);
        for (int r = 0; r < ranks; ++r) {
          if (r == absent) continue;
          const std::string& text = texts[static_cast<std::size_t>(r)];
          CAPTURE(text);
          CHECK(text.find("rank " + std::to_string(absent) + " has not come to ") != std::string::npos);
          CHECK(text.find("and has returned") != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("the exception of one rank is told by every rank that waits for it") {
  for (int absent = 0; absent < 3; ++absent) {
    for (int which = 0; which < 5; ++which) {
      CAPTURE(absent);
      CAPTURE(which);
      std::array<std::string, 3> texts;
      const auto body = [&](Threads& world) {
        Checked<Threads> checked(world, CheckOptions{.timeout = 60s});
        if (world.rank() == absent) throw std::runtime_error("layer 3 is out of memory");
        try {
          call_without(absent, which, checked);
        } catch (const smp::CommError& e) {
          texts[static_cast<std::size_t>(world.rank())] = e.what();
          throw;
        }
      };
      const auto begin = smp::Clock::now();
      CHECK_THROWS_WITH_AS(launch(3, body), "layer 3 is out of memory", std::runtime_error);
      CHECK(smp::Clock::now() - begin < 5s);
      for (int r = 0; r < 3; ++r) {
        const std::string& text = texts[static_cast<std::size_t>(r)];
        CAPTURE(text);
        if (r == absent) continue;
        CHECK(text.find("WORLD group (world ranks 0,1,2), rank " + std::to_string(r)) != std::string::npos);
        CHECK(text.find("world rank " + std::to_string(absent) + " has thrown: layer 3 is out of memory") !=
              std::string::npos);
      }
    }
  }
}

}  // namespace
