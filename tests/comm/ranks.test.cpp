// SPDX-License-Identifier: Apache-2.0
// The harness of all tests on ranks: a body runs once on every rank of each size it names, and on no other.
#include "support/ranks.hpp"

#include <array>
#include <atomic>

#include <doctest/doctest.h>

namespace {

using smp::testing::on_ranks;
using smp::testing::World;

TEST_CASE("a body runs on every rank of each size") {
  std::array<std::atomic<int>, 5> runs{};  // by size; under MPI: those of this process
  on_ranks({1, 2, 4}, [&](World& world) {
    CHECK(world.rank() >= 0);
    CHECK(world.rank() < world.size());
    ++runs.at(static_cast<std::size_t>(world.size()));
  });
#if SMP_TEST_MPI
  const int size = smp::testing::mpi_world().size();
  for (int n : {1, 2, 4}) CHECK(runs.at(static_cast<std::size_t>(n)) == (n == size ? 1 : 0));
#else
  for (int n : {1, 2, 4}) CHECK(runs.at(static_cast<std::size_t>(n)) == n);
#endif
  CHECK(runs[3] == 0);
}

TEST_CASE("ranks of a body are one world") {
  on_ranks({1, 2, 3, 4, 8}, [](World& world) {
    smp::HostStream stream;
    std::array<int, 1> rank{world.rank()};
    world.all_reduce(stream, std::span<const int>(rank), std::span<int>(rank), smp::sum);
    CHECK(rank[0] == world.size() * (world.size() - 1) / 2);
  });
}

}  // namespace
