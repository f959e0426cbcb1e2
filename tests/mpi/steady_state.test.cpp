// SPDX-License-Identifier: Apache-2.0
// Communication of MPI ranks allocates nothing of our own once it is under way; what MPI does with malloc is its
// affair.
#include "comm/steady_state.hpp"

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

TEST_CASE("operations allocate nothing of our own") {
  on_ranks({1, 2, 4}, [](World& world) {
    smp::HostStream stream;
    check_steady_state(world, stream);
  });
}

TEST_CASE("operations cut into small messages allocate nothing of our own") {
  on_ranks({1, 2, 4}, [](World& world) {
    World cut(world.handle(), {.largest_message = 5000, .segment = 2000});
    smp::HostStream stream;
    check_steady_state(cut, stream);
  });
}

TEST_CASE("gathers between nodes and on nodes allocate nothing of our own") {
  on_ranks({1, 2, 4}, [](World& world) {
    smp::HostStream stream;
    check_gathers_in_steady_state(world, stream);
  });
}

}  // namespace
