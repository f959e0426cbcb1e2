// SPDX-License-Identifier: Apache-2.0
// What `vectorized` gains for GELU (tanh): nanoseconds for each element on each vector unit, and the ratio to the plain
// loop over std::tanh, compiled as this file is.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/device/vectorized.hpp>

#include "paired.hpp"

namespace {

using smp::VectorUnit;

constexpr std::int64_t elements = 4096;

template <class T>
void plain(std::int64_t n, T* y, const T* x) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T z = T(0.7978845608028654) * (x[i] + T(0.044715) * x[i] * x[i] * x[i]);
    y[i] = T(0.5) * x[i] * (1 + std::tanh(z));
  }
}

template <class T>
void in_blocks(VectorUnit unit, std::int64_t n, T* y, const T* x) {
  smp::vectorized_on(unit, [=](auto on) {
    const auto gelu = [](auto u, auto& out, const auto& in) {
      for (int i = 0; i < 64; ++i) out[i] = T(0.7978845608028654) * (in[i] + T(0.044715) * in[i] * in[i] * in[i]);
      u.tanh(out);
      for (int i = 0; i < 64; ++i) out[i] = T(0.5) * in[i] * (1 + out[i]);
    };
    smp::map_blocks(on, n, y, gelu, x);
  });
}

template <class T>
void gelu(benchmark::State& state, VectorUnit unit) {
  std::vector<T> x(elements), y(elements);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(4 * std::sin(static_cast<double>(i)));
  const auto rounds = smp::benchmarks::alternate(
      0.2, 20, [] {}, [](bool yes) { return yes; },
      [&] {
        in_blocks(unit, elements, y.data(), x.data());
        benchmark::DoNotOptimize(y.data());
        benchmark::ClobberMemory();
      },
      [&] {
        plain(elements, y.data(), x.data());
        benchmark::DoNotOptimize(y.data());
        benchmark::ClobberMemory();
      });
  smp::benchmarks::report(state, rounds, 2.0 * static_cast<double>(sizeof(T)) * elements);
  state.counters["ns/element"] =
      1e9 / elements * smp::benchmarks::median(rounds, [](const auto& round) { return round.ours; });
}

template <class T>
void add() {
  for (const VectorUnit unit : {VectorUnit::baseline, VectorUnit::avx2, VectorUnit::avx512}) {
    if (unit > smp::vector_unit()) continue;
    benchmark::RegisterBenchmark(
        (std::string("GELU/") + (sizeof(T) == 4 ? "f32/" : "f64/") + smp::to_string(unit)).c_str(), gelu<T>, unit)
        ->UseManualTime()
        ->Iterations(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  add<float>();
  add<double>();
  benchmark::RunSpecifiedBenchmarks();
}
