// SPDX-License-Identifier: Apache-2.0
// Broadcasts and reductions with every rank as root, and pieces of every shape.
#include <array>
#include <vector>

#include <doctest/doctest.h>

#include "operations.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};
constexpr std::array<std::size_t, 5> sizes{0, 1, 17, 4096, 50021};

const std::array reductions{
    reduction_calls<float, smp::Sum, World>(), reduction_calls<smp::BFloat16, smp::Average, World>(),
    reduction_calls<std::uint8_t, smp::Maximum, World>(), reduction_calls<std::int64_t, smp::Minimum, World>()};

TEST_CASE("every rank can be the root") {
  on_ranks(worlds, [](World& world) {
    for (const auto& calls : reductions) {
      for (int root = 0; root < world.size(); ++root) {
        for (const std::size_t n : sizes) {
          CAPTURE(calls.element);
          CAPTURE(root);
          CAPTURE(n);
          OperationsOn<World>(world, InPlace::nobody, calls).broadcast(n, root);
          for (const InPlace choice : in_place_choices)
            OperationsOn<World>(world, choice, calls).reduce(calls, n, root);
        }
      }
    }
  });
}

TEST_CASE("only the root of a reduce needs an output") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    for (const std::size_t n : sizes) {
      std::vector<float> in(n), out(world.rank() == 0 ? n : 0);
      small_integers<float>(world.rank()).fill(std::span(in));
      world.reduce(stream, in, out, smp::sum, 0);
      CHECK(reduced_integers<smp::Sum, float>(world.size()).matches(std::span(out)));
    }
  });
}

TEST_CASE("pieces of different sizes: one rank has all, has nothing, nobody has anything") {
  on_ranks(worlds, [](World& world) {
    const auto ranks = static_cast<std::size_t>(world.size());
    std::vector<std::vector<std::size_t>> shapes(2, std::vector<std::size_t>(ranks, 0));
    shapes[0].back() = 30011;
    shapes.emplace_back(ranks, 1001).front() = 0;
    for (std::size_t r = 0; r < ranks; ++r) shapes.emplace_back(ranks, r).at(r) = 7;
    for (const auto& calls : reductions) {
      for (const auto& counts : shapes) {
        for (const InPlace choice : in_place_choices) {
          OperationsOn<World> on(world, choice, calls);
          on.all_gather_v(counts);
          on.reduce_scatter_v(calls, counts);
        }
      }
    }
  });
}

}  // namespace
