// SPDX-License-Identifier: Apache-2.0
// Broadcasts and reductions with every rank as root, and pieces of every shape.
#include <array>

#include <doctest/doctest.h>

#include "operations.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};
constexpr std::array<std::size_t, 5> sizes{0, 1, 17, 4096, 50021};

TEST_CASE("every rank can be the root") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Types<float, smp::BFloat16, std::uint8_t, std::int64_t>(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const Pattern<T> expected = reduced_integers<smp::Sum, T>(world.size());
      for (int root = 0; root < world.size(); ++root) {
        CAPTURE(root);
        for (const std::size_t n : sizes) {
          CAPTURE(n);
          OperationsOn<T, World>(world, InPlace::nobody).broadcast(n, root);
          for (const InPlace choice : in_place_choices) {
            OperationsOn<T, World>(world, choice).reduce(smp::sum, expected, n, root);
          }
        }
      }
    });
  });
}

TEST_CASE("only the root of a reduce needs an output") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    for (const std::size_t n : sizes) {
      std::vector<float> in(n), out(world.rank() == 0 ? n : 0);
      small_integers<float>(world.rank()).fill(in);
      world.reduce(stream, in, out, smp::sum, 0);
      CHECK(reduced_integers<smp::Sum, float>(world.size()).matches(out));
    }
  });
}

TEST_CASE("pieces of different sizes: one rank has all, has nothing, nobody has anything") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Types<float, smp::Float16, std::int8_t, std::uint64_t>(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const Pattern<T> expected = reduced_integers<smp::Maximum, T>(world.size());
      const auto ranks = static_cast<std::size_t>(world.size());
      std::vector<std::vector<std::size_t>> shapes(2, std::vector<std::size_t>(ranks, 0));
      shapes[0].back() = 30011;
      shapes.emplace_back(ranks, 1001).front() = 0;
      for (std::size_t r = 0; r < ranks; ++r) shapes.emplace_back(ranks, r).at(r) = 7;
      for (const auto& counts : shapes) {
        for (const InPlace choice : in_place_choices) {
          OperationsOn<T, World> on(world, choice);
          on.all_gather_v(counts);
          on.reduce_scatter_v(smp::maximum, expected, counts);
        }
      }
    });
  });
}

}  // namespace
