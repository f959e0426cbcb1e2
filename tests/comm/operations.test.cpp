// SPDX-License-Identifier: Apache-2.0
// Every operation on every element type. With small integers, whose sums are exact, the result is the one of a double
// computation, and no byte beside the output changes, whoever works in place. With values that round, the result has
// the bits of one serial loop over the ranks: thread ranks and ranks under any MPI are held against the same numbers.
#include "operations.hpp"

#include <array>
#include <string_view>

#include <doctest/doctest.h>

#include "ordered_sums.hpp"
#include "support/full.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::array<std::size_t, 4> small_sizes{0, 1, 17, 4096};
constexpr std::size_t large_size = (std::size_t{1} << 20) + 3;
constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};

const std::vector<ReductionCalls<World>> reductions = all_reductions<World>();

const ReductionCalls<World>& reduction(std::string_view element, std::string_view op) {
  for (const auto& r : reductions) {
    if (r.element == element && r.reduction == op) return r;
  }
  FAIL("no such reduction");
  return reductions.front();
}

TEST_CASE("every operation equals a double computation") {
  on_ranks(worlds, [](World& world) {
    check_operations(world, small_sizes);
    if (full()) check_operations(world, std::span(&large_size, 1));
  });
}

// Of the largest size one type of each width, each with another reduction; all of them under --full.
TEST_CASE("every operation on 2^20+3 elements equals a double computation") {
  on_ranks(worlds, [](World& world) {
    const InPlace choice = world.size() % 2 == 0 ? InPlace::odd_ranks : InPlace::nobody;
    check_moves(world, choice, large_size, reduction("int8", "minimum"));
    check_reductions(world, choice, large_size, reduction("int8", "minimum"));
    check_reductions(world, choice, large_size, reduction("bf16", "sum"));
    check_moves(world, choice, large_size, reduction("float", "sum"));
    check_reductions(world, choice, large_size, reduction("float", "sum"));
    if (world.size() <= 3) check_reductions(world, InPlace::everybody, large_size, reduction("double", "average"));
  });
}

TEST_CASE("reductions have the bits of a serial loop over the ranks") {
  on_ranks(worlds, [](World& world) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{4096}, std::size_t{30011}}) {
      for (const auto& calls : reductions) check_ordered_sums(world, n, calls);
    }
    if (!full()) return;
    for (const auto& calls : reductions) check_ordered_sums(world, large_size, calls);
  });
}

TEST_CASE("reductions of 2^20+3 elements have the bits of a serial loop over the ranks") {
  on_ranks(worlds, [](World& world) {
    check_ordered_sums(world, large_size, reduction("float", "sum"));
    check_ordered_sums(world, large_size, reduction("bf16", "average"));
    if (world.size() <= 3) check_ordered_sums(world, large_size, reduction("double", "sum"));
  });
}

// What the serial loop computes must not depend on the build either, or two builds could agree with it and differ.
TEST_CASE("the serial loop has the same bits in every build") {
  constexpr std::array<std::uint64_t, 5> hashes{8205359012321542733u, 3707521100803275503u, 4997477631872902077u,
                                                11923638574058355912u, 4714411963080630640u};
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    std::uint64_t hash = fnv1a({});
    for (const auto& calls : reductions) hash = fnv1a(calls.reduced_random(worlds[i], 1000), hash);
    CHECK(hash == hashes[i]);
  }
}

}  // namespace
