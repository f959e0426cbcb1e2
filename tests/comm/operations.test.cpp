// SPDX-License-Identifier: Apache-2.0
// Every operation on every element type: with small integers, whose sums are exact, the result is the one of a double
// computation; no byte beside the output changes, whoever works in place.
#include "operations.hpp"

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::array<std::size_t, 4> small_sizes{0, 1, 17, 4096};
constexpr std::size_t large_size = (std::size_t{1} << 20) + 3;
constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};

TEST_CASE("every operation equals a double computation") {
  on_ranks(worlds, [](World& world) {
    for_each_type(AllElements(), [&]<class T>() {
      check_operations<T>(world, small_sizes);
      if (full()) check_operations<T>(world, std::span(&large_size, 1));
    });
  });
}

// Of the largest size one type of each width, each with another reduction; all of them under --full.
TEST_CASE("every operation on 2^20+3 elements equals a double computation") {
  on_ranks(worlds, [](World& world) {
    const InPlace choice = world.size() % 2 == 0 ? InPlace::odd_ranks : InPlace::nobody;
    check_moves<std::int8_t>(world, choice, large_size);
    check_reductions<std::int8_t>(world, choice, large_size, smp::minimum);
    check_reductions<smp::BFloat16>(world, choice, large_size, smp::sum);
    check_moves<float>(world, choice, large_size);
    check_reductions<float>(world, choice, large_size, smp::sum);
    if (world.size() <= 3) check_reductions<double>(world, InPlace::everybody, large_size, smp::average);
  });
}

}  // namespace
