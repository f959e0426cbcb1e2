// SPDX-License-Identifier: Apache-2.0
// Parts of a group: ordered by key, ties by old rank, whatever keys look like. Libraries have passed the key on as if
// it were the new rank, split one of two communicators that belong together, and MPI builds have misordered equal or
// falling keys.
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

/// The world ranks of a group, as its members find them by communicating, in the order of their ranks there.
std::vector<int> members(World& group, int world_rank) {
  smp::HostStream stream;
  std::vector<int> found(static_cast<std::size_t>(group.size()));
  group.all_gather(stream, std::span(&world_rank, 1), found);
  return found;
}

/// The group knows its members, its size and this rank's place, and says what communication finds.
void check_group(World& group, int world_rank, const std::vector<int>& expected) {
  CHECK(group.group().world_ranks == expected);
  CHECK(group.size() == static_cast<int>(expected.size()));
  REQUIRE(group.rank() < group.size());
  CHECK(expected[static_cast<std::size_t>(group.rank())] == world_rank);
  CHECK(members(group, world_rank) == expected);
}

TEST_CASE("six ranks split by r % 2 with falling keys {50,40,30,20,10,0}") {
  on_ranks({6}, [](World& world) {
    constexpr std::array keys{50, 40, 30, 20, 10, 0};
    const int r = world.rank();
    World part = world.split(r % 2, keys[static_cast<std::size_t>(r)], "HALF");
    check_group(part, r, r % 2 == 0 ? std::vector{4, 2, 0} : std::vector{5, 3, 1});
    CHECK(part.rank() == 2 - r / 2);
    CHECK(part.group().name == "HALF");
  });
}

TEST_CASE("six ranks split by r % 2 with equal keys keep their order") {
  on_ranks({6}, [](World& world) {
    const int r = world.rank();
    for (const int key : {0, 7, -7}) {
      World part = world.split(r % 2, key, "HALF");
      check_group(part, r, r % 2 == 0 ? std::vector{0, 2, 4} : std::vector{1, 3, 5});
      CHECK(part.rank() == r / 2);
    }
  });
}

TEST_CASE("keys order a part, ties by old rank, and a key is no rank") {
  on_ranks({1, 2, 3, 4, 6, 8}, [](World& world) {
    const int r = world.rank();
    std::vector<int> everybody(static_cast<std::size_t>(world.size()));
    std::iota(everybody.begin(), everybody.end(), 0);

    World falling = world.split(0, 1000 - 10 * r, "FALLING");
    check_group(falling, r, std::vector(everybody.rbegin(), everybody.rend()));

    std::vector<int> odd_first = everybody;  // keys 1, -1, 1, -1, ...
    std::stable_partition(odd_first.begin(), odd_first.end(), [](int x) { return x % 2 == 1; });
    World ties = world.split(1 << 20, r % 2 == 1 ? -1 : 1, "TIES");
    check_group(ties, r, odd_first);

    World alone = world.split(r, 5, "ALONE");
    check_group(alone, r, {r});
  });
}

TEST_CASE("parts of parts count in world ranks and keep to themselves") {
  on_ranks({4, 6, 8}, [](World& world) {
    smp::HostStream stream;
    const int r = world.rank();
    World half = world.split(r % 2, -r, "HALF");
    World pair = half.split(half.rank() / 2, 0, "PAIR");
    // Halves are in falling order: 4 2 0 | 5 3 1; pairs of them: 4 2 | 0 | 5 3 | 1.
    std::vector<int> expected;
    const int last = (world.size() - 2) + r % 2;  // of this half
    const int first_of_pair = half.rank() / 2 * 2;
    for (int i = first_of_pair; i < std::min(first_of_pair + 2, half.size()); ++i) expected.push_back(last - 2 * i);
    check_group(pair, r, expected);

    // All three at work at the same time, some pairs before their half and some behind it: no message of one group is
    // seen by another.
    const bool pair_first = half.rank() / 2 % 2 == 0;
    for (int round = 0; round < 20; ++round) {
      std::array<int, 3> sums{1, 1, 1};
      pair.all_reduce(stream, std::span(sums).subspan(0, 1), std::span(sums).subspan(0, 1), smp::sum);
      if (pair_first) pair.barrier(stream);
      half.all_reduce(stream, std::span(sums).subspan(1, 1), std::span(sums).subspan(1, 1), smp::sum);
      if (!pair_first) pair.barrier(stream);
      world.all_reduce(stream, std::span(sums).subspan(2, 1), std::span(sums).subspan(2, 1), smp::sum);
      CHECK(sums == std::array{pair.size(), half.size(), world.size()});
    }
  });
}

TEST_CASE("copies of a communicator are the same place in the same group") {
  on_ranks({1, 2, 3, 4, 6, 8}, [](World& world) {
    smp::HostStream stream;
    World copy = world;
    World other = world.split(0, 0, "OTHER");
    other = copy;
    CHECK(other.group().name == world.group().name);
    World& self = other;
    other = self;
    World moved = std::move(copy);
    int sum = 1;
    (world.rank() % 2 == 0 ? moved : other).all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum);
    CHECK(sum == world.size());
  });
}

}  // namespace
