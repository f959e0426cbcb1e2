// SPDX-License-Identifier: Apache-2.0
// The communicator of a rank that is alone: every operation copies, and what would wait for ever is refused.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/self.hpp>

#include "comm/operations.hpp"

namespace {

using smp::CommError;
using smp::HostStream;
using smp::comm::Self;
using smp::comm::Transfer;

TEST_CASE("every operation of one rank copies") {
  Self world;
  CHECK(world.rank() == 0);
  CHECK(world.size() == 1);
  constexpr std::array<std::size_t, 4> sizes{0, 1, 17, 4096};
  smp::testing::check_operations(world, sizes, smp::testing::Types<double, smp::BFloat16, std::int8_t>());
}

TEST_CASE("every operation of one rank copies in a stream with a worker") {
  HostStream stream(HostStream::Mode::worker);
  Self world;
  std::vector<int> a{1, 2, 3}, b(3), c(3);
  world.all_reduce(stream, a, b, smp::sum);
  world.barrier(stream);
  world.send_recv(stream, b, 0, c, 0);
  stream.synchronize();
  CHECK(c == a);
}

TEST_CASE("a rank that is alone can send to itself what it receives in the same operation") {
  HostStream stream;
  Self world;
  const std::array<int, 2> first{1, 2};
  const std::array<int, 1> second{3};
  std::array<int, 2> to_first{};
  std::array<int, 1> to_second{};
  const std::array transfers{Transfer::from(0, std::span<int>(to_first)), Transfer::to(0, std::span<const int>(first)),
                             Transfer::to(0, std::span<const int>(second)),
                             Transfer::from(0, std::span<int>(to_second))};
  world.exchange(stream, transfers);
  CHECK(to_first == first);
  CHECK(to_second == second);
  world.exchange(stream, {});
}

TEST_CASE("a send without its receive is refused: nobody else could complete it") {
  HostStream stream;
  Self world;
  std::vector<int> a(3), b(2);
  const std::string text = "a rank that is alone can only send to itself what it receives";
  CHECK_THROWS_WITH_AS(world.send(stream, a, 0), doctest::Contains(text.c_str()), CommError);
  CHECK_THROWS_WITH_AS(world.recv(stream, a, 0), doctest::Contains(text.c_str()), CommError);
  CHECK_THROWS_WITH_AS(world.send_recv(stream, a, 0, b, 0), doctest::Contains(text.c_str()), CommError);
  const std::array one{Transfer::to(0, std::span<const int>(a))};
  CHECK_THROWS_WITH_AS(world.exchange(stream, one), doctest::Contains(text.c_str()), CommError);
  CHECK_THROWS_AS(world.send(stream, a, 1), CommError);
  world.all_reduce(stream, a, a, smp::sum);
}

TEST_CASE("a part of one rank is that rank under another name") {
  Self world("ALL");
  Self part = world.split(7, -3, "TP");
  CHECK(world.group().name == "ALL");
  CHECK(part.group().name == "TP");
  CHECK(part.group().world_ranks == std::vector<int>{0});
}

}  // namespace
