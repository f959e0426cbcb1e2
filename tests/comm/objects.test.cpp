// SPDX-License-Identifier: Apache-2.0
// Objects between ranks: texts, lists, a user's own type; and what arrives as something else than was expected.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/objects.hpp>

#include "support/ranks.hpp"
#include "support/user_object.hpp"

namespace {

using namespace smp::testing;
using smp::CommError;

std::vector<std::string> names_of(int rank) {
  std::vector<std::string> names;
  for (int i = 0; i < rank * 3; ++i)
    names.push_back("h." + std::to_string(i) + std::string(static_cast<std::size_t>(i), 'x'));
  return names;
}

TEST_CASE("an object is sent to the next rank") {
  on_ranks({2, 3, 4, 8}, [](World& world) {
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    const Settings mine{"rank " + std::to_string(world.rank()), std::vector<double>(1000, world.rank())};
    const auto expected = Settings{"rank " + std::to_string(previous), std::vector<double>(1000, previous)};
    if (world.rank() == 0) {
      smp::comm::send_object(world, mine, next);
      CHECK(smp::comm::recv_object<Settings>(world, previous) == expected);
    } else {
      CHECK(smp::comm::recv_object<Settings>(world, previous) == expected);
      smp::comm::send_object(world, mine, next);
    }
  });
}

TEST_CASE("every rank can broadcast an object; what the others pass is ignored") {
  on_ranks({1, 2, 3, 4, 8}, [](World& world) {
    for (int root = 0; root < world.size(); ++root) {
      CHECK(smp::comm::broadcast_object(world, names_of(world.rank()), root) == names_of(root));
      CHECK(smp::comm::broadcast_object(world, world.rank(), root) == root);
    }
  });
}

TEST_CASE("objects of different sizes are gathered by rank") {
  on_ranks({1, 2, 3, 4, 8}, [](World& world) {
    const auto all = smp::comm::all_gather_object(world, names_of(world.rank()));
    REQUIRE(all.size() == static_cast<std::size_t>(world.size()));
    for (int r = 0; r < world.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == names_of(r));
    const auto settings = smp::comm::all_gather_object(world, Settings{std::string(), {1.0 * world.rank()}});
    for (int r = 0; r < world.size(); ++r) CHECK(settings[static_cast<std::size_t>(r)].rates.at(0) == r);
  });
}

TEST_CASE("an object of another type than was sent is an error, and the next one is right again") {
  on_ranks({2}, [](World& world) {
    if (world.rank() == 0) {
      smp::comm::send_object(world, std::string("not a number"), 1);
      smp::comm::send_object(world, 7, 1);
    } else {
      CHECK_THROWS_WITH_AS(static_cast<void>(smp::comm::recv_object<int>(world, 0)),
                           doctest::Contains("of another type"), CommError);
      CHECK(smp::comm::recv_object<int>(world, 0) == 7);
    }
  });
}

TEST_CASE("an object of 2^40 bytes is announced: refused by name, no memory made") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    const std::uint64_t announced = std::uint64_t{1} << 40;
    if (world.rank() == 0) {
      world.send(stream, std::span(&announced, 1), 1);
    } else {
      CHECK_THROWS_WITH_AS(static_cast<void>(smp::comm::recv_object<std::string>(world, 0)),
                           "smp: an object of 1099511627776 bytes was announced; at most 1073741824 are accepted",
                           CommError);
    }
    world.barrier(stream);
  });
}

}  // namespace
