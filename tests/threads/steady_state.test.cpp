// SPDX-License-Identifier: Apache-2.0
// Communication of thread ranks allocates nothing once it is under way, at once or in a stream with a worker.
#include "comm/steady_state.hpp"

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

TEST_CASE("operations allocate nothing") {
  on_ranks({1, 2, 3, 4}, [](World& world) {
    smp::HostStream stream;
    check_steady_state(world, stream);
  });
}

TEST_CASE("operations in a stream with a worker allocate nothing") {
  on_ranks({1, 2, 3, 4}, [](World& world) {
    smp::HostStream stream(smp::HostStream::Mode::worker);
    check_steady_state(world, stream);
  });
}

TEST_CASE("gathers between nodes and on nodes allocate nothing") {
  on_ranks({1, 2, 3, 4}, [](World& world) {
    smp::HostStream stream;
    check_gathers_in_steady_state(world, stream);
  });
}

}  // namespace
