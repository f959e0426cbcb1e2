// SPDX-License-Identifier: Apache-2.0
// A control: a case that fails on rank 1 only. Both mains must make a failed test of it.
#include <doctest/doctest.h>

#include "ranks.hpp"

TEST_CASE("fails on rank 1") {
  smp::testing::on_ranks({2}, [](auto& world) { CHECK(world.rank() == 0); });
}
