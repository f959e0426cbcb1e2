// SPDX-License-Identifier: Apache-2.0
// A slower network: calls take latency + bytes / bandwidth, results are the same, and the caller of a worker's stream
// has the time for itself.
#include <chrono>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/delayed.hpp>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using namespace std::chrono_literals;
using smp::comm::Delayed;
using smp::comm::Network;

template <class F>
std::chrono::nanoseconds time_of(F f) {
  const auto begin = smp::Clock::now();
  f();
  return smp::Clock::now() - begin;
}

TEST_CASE("the time of a call is latency plus bytes over bandwidth") {
  CHECK(Network{}.time(1 << 30) == 0ns);
  CHECK(Network{.latency = 5us}.time(1 << 30) == 5us);
  CHECK(Network{.latency = 5us, .bytes_per_second = 1e9}.time(1000) == 6us);
  CHECK(Network{.bytes_per_second = 1e6}.time(0) == 0ns);
}

TEST_CASE("an all_reduce of 40 kB on two ranks at 1 MB/s takes 40 ms and the latency") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    Delayed<World> slow(world, {.latency = 20ms, .bytes_per_second = 1e6});
    std::vector<float> data(10000, 1);
    world.barrier(stream);
    const auto time = time_of([&] { slow.all_reduce(stream, data, data, smp::sum); });  // sends 2(n-1)/n X = X
    CHECK(time >= 60ms);
    CHECK(time < 1s);
    CHECK(data.back() == 2);
  });
}

TEST_CASE("a sender pays for the bytes, a receiver for the latency") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    Delayed<World> slow(world, {.latency = 10ms, .bytes_per_second = 1e6});
    std::vector<float> data(10000);
    world.barrier(stream);
    const auto time = time_of([&] {
      if (world.rank() == 0) slow.send(stream, data, 1);
      if (world.rank() == 1) slow.recv(stream, data, 0);
    });
    CHECK(time >= (world.rank() == 0 ? 50ms : 10ms));
  });
}

TEST_CASE("parts are on the same network") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    Delayed<World> slow(world, {.latency = 30ms});
    Delayed<World> part = slow.split(0, 0, "PART");
    CHECK(part.group().name == "PART");
    CHECK(time_of([&] { part.barrier(stream); }) >= 30ms);
  });
}

TEST_CASE("with a worker the caller has the time of the call for itself") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream(smp::HostStream::Mode::worker);
    Delayed<World> slow(world, {.latency = 200ms});
    int sum = 1;
    const auto enqueued = time_of([&] { slow.all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum); });
    CHECK(enqueued < 150ms);
    CHECK(time_of([&] { stream.synchronize(); }) + enqueued >= 200ms);
    CHECK(sum == 2);
  });
}

}  // namespace
