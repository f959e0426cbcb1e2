// SPDX-License-Identifier: Apache-2.0
// How long it takes to plan a step of 1,000 units and 4 micro-batches, by what fits; once in a training run.
#include <cstddef>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/plan/gather_plan.hpp>

namespace {

constexpr int units = 1000, microbatches = 4;

// Unit 0 is the root. `uneven`: sizes that do not fill each other's places.
void make_plan(benchmark::State& state, bool uneven) {
  std::vector<std::vector<int>> blocks;
  std::vector<std::size_t> sizes;
  for (int u = 0; u <= units; ++u) {
    blocks.push_back({u});
    sizes.push_back(uneven ? 256 * (1 + static_cast<std::size_t>(u) * 7919 % 13) : 1024);
  }
  std::vector<smp::GatherUse> order;
  for (int pass = 0; pass < 2 * microbatches; ++pass) {
    const int begin = static_cast<int>(order.size());
    order.push_back({0, begin + units + 1});
    for (int u = 0; u < units; ++u) order.push_back({pass % 2 == 0 ? u + 1 : units - u, begin + u + 2});
  }
  const std::size_t whole = static_cast<std::size_t>(units) * 1024 * (uneven ? 7 : 4) / 4;
  const std::size_t max_live = whole * static_cast<std::size_t>(state.range(0)) / 100;
  std::size_t gathers = 0;
  for (auto _ : state) gathers = smp::make_gather_plan(order, blocks, sizes, max_live).gathers();
  state.counters["gathers"] = static_cast<double>(gathers);
}

}  // namespace

BENCHMARK_CAPTURE(make_plan, equal, false)
    ->ArgName("percent")
    ->DenseRange(0, 100, 25)
    ->Arg(1)
    ->Arg(99)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(make_plan, uneven, true)
    ->ArgName("percent")
    ->DenseRange(0, 100, 25)
    ->Arg(1)
    ->Arg(99)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_MAIN();
