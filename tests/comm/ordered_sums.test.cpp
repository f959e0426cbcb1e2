// SPDX-License-Identifier: Apache-2.0
// Sums keep the order of the ranks and round once: thread ranks, and ranks under any MPI, have the bits of one serial
// loop, whatever a transport cuts a buffer into.
#include "ordered_sums.hpp"

#include <array>

#include <doctest/doctest.h>

#include "support/full.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};
constexpr std::size_t large_size = (std::size_t{1} << 20) + 3;

TEST_CASE("reductions have the bits of a serial loop over the ranks") {
  on_ranks(worlds, [](World& world) {
    for_each_type(AllElements(), [&]<class T>() {
      for (const std::size_t n : {std::size_t{1}, std::size_t{17}, std::size_t{4096}, std::size_t{30011}}) {
        for_each_reduction<T>([&](auto op) { check_ordered_sums<T>(world, n, op); });
      }
      if (full()) for_each_reduction<T>([&](auto op) { check_ordered_sums<T>(world, large_size, op); });
    });
  });
}

TEST_CASE("reductions of 2^20+3 elements have the bits of a serial loop over the ranks") {
  on_ranks(worlds, [](World& world) {
    check_ordered_sums<float>(world, large_size, smp::sum);
    check_ordered_sums<smp::BFloat16>(world, large_size, smp::average);
    if (world.size() <= 3) check_ordered_sums<double>(world, large_size, smp::sum);
  });
}

template <class T>
void add_reference(std::uint64_t& hash, int ranks) {
  for_each_reduction<T>([&]<class Op>(Op) {
    for (std::size_t i = 0; i < 1000; ++i) {
      const T value = reduced_random<Op, T>(ranks, i);
      hash = fnv1a(std::as_bytes(std::span(&value, 1)), hash);
    }
  });
}

// What the serial loop computes must not depend on the build either, or two builds could agree with it and differ.
TEST_CASE("the serial loop has the same bits in every build") {
  constexpr std::array<std::uint64_t, 5> hashes{8205359012321542733u, 3707521100803275503u, 4997477631872902077u,
                                                11923638574058355912u, 4714411963080630640u};
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    std::uint64_t hash = fnv1a({});
    for_each_type(AllElements(), [&]<class T>() { add_reference<T>(hash, worlds[i]); });
    CHECK(hash == hashes[i]);
  }
}

}  // namespace
