// ranks: 1 3
// Where MPI ranks are: case 7 with a real launcher, whose variables, host names and shared memory are read.
#include <cstddef>

#include <doctest/doctest.h>

#include <smp/comm/nodes.hpp>

#include "support/ranks.hpp"

TEST_CASE("all ranks of this machine are on one node, each with a number of its own") {
  smp::testing::on_ranks({1, 3}, [](smp::comm::Mpi& world) {
    const smp::comm::NodeLayout layout = smp::comm::node_layout(world);
    CHECK(layout.nodes() == 1);
    CHECK(layout.local_size(world.rank()) == world.size());
    for (int local = 0; local < world.size(); ++local) {
      const int rank = layout.ranks.at(0).at(static_cast<std::size_t>(local));
      CHECK(layout.local_rank.at(static_cast<std::size_t>(rank)) == local);
    }
  });
}
