// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tests the law of `TensorParallelTraits`: the parts sum to the whole, forward and backward. For modules of yours,
/// too.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/launch.hpp>
#include <smp/comm/threads.hpp>
#include <smp/parallel/tensor_parallel.hpp>
#include <smp/testing/gradient_check.hpp>
#include <smp/testing/one_rank.hpp>

namespace smp::testing {

/// Communicators of a job that is one tensor-parallel group.
struct TpGroup {
  comm::Threads& world;  ///< of the group
  /// The group, whatever is asked for.
  [[nodiscard]] comm::Threads& operator[](Group) const noexcept { return world; }
};

/// Output, gradient of the input, and gradients of all parameters, by name.
using Results = std::map<std::string, std::vector<double>>;

/// A tensor of numbers that depend on their place alone.
[[nodiscard]] inline Tensor64 numbers(Memory& memory, const Shape& shape, std::uint64_t stream) {
  Tensor64 t(memory, shape);
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = 2 * RandomStream{11, stream}.uniform(i) - 1;
  return t;
}

/// What `module` computes of one tensor by itself.
template <class M>
[[nodiscard]] Results results_of_whole(const M& module, const Shape& input) {
  OneRank<M> rank(module);
  rank.randomise(0.5);
  auto ctx = rank.context();
  typename M::Saved saved{};
  Results all;
  Tensor64 y = rank.model.forward(ctx, numbers(rank.memory, input, 1), saved);
  const Tensor64 dx = rank.model.backward(ctx, numbers(rank.memory, y.shape(), 2), saved);
  all["output"].assign(std::as_const(y).begin(), std::as_const(y).end());
  all["input gradient"].assign(dx.begin(), dx.end());
  for (const Block& b : rank.layout().blocks()) {
    for (const Block::Segment& s : b.segments) {
      const auto* g = static_cast<const double*>(b.grad);
      all[s.name].assign(g + s.begin, g + s.end);
    }
  }
  return all;
}

/// How far the parts of a module are from the whole: relative to the largest number of the same tensor.
/// @param module with parameters and activations in double precision; Input and Output are one tensor
/// @param input a shape that can be cut into `ranks` slices in the ways of the rule
/// @return the largest difference, and where it is: output, input gradient, or a parameter's gradient
template <class M, Split S = Split::usual, DistributionTag At = Invariant>
[[nodiscard]] Difference check_parts(const M& module, const Shape& input, int ranks) {
  const Results whole = results_of_whole(module, input);
  std::vector<Difference> worst(static_cast<std::size_t>(ranks));
  comm::launch(ranks, [&](comm::Threads& world) {
    using Cut = TensorParallel<M, S, At>;
    OneRank<Cut> rank(Cut(module, world.rank(), world.size()));
    rank.randomise(0.5);
    const TpGroup groups{world};
    smp::Context<HostStream, const TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    typename Cut::Saved saved{};
    const Dist<Tensor64, Invariant> x{numbers(rank.memory, input, 1)};
    const auto y = rank.model.forward(ctx, move_to<At>(ctx, x), saved);
    using End = typename std::remove_cvref_t<decltype(y)>::tp;
    const auto joined = move_to<Invariant>(ctx, y);
    const Dist<Tensor64, Invariant> dy{numbers(rank.memory, joined.local.shape(), 2)};
    const auto dx = move_to<Invariant>(ctx, rank.model.backward(ctx, move_to<GradOn<End>>(ctx, dy), saved));

    Difference& mine = worst[static_cast<std::size_t>(world.rank())];
    const auto compare = [&](const std::string& name, const std::vector<double>& expected, const double* found,
                             std::size_t n, auto&& place) {
      double scale = 1e-30;
      for (const double e : expected) scale = std::max(scale, std::abs(e));
      for (std::size_t i = 0; i < n; ++i) {
        const double off = std::abs(found[i] - expected.at(place(i))) / scale;
        if (!(off <= mine.relative)) mine = {off, name + "[" + std::to_string(i) + "]"};
      }
    };
    const auto in_place = [](std::size_t i) { return i; };
    compare("output", whole.at("output"), joined.local.data(), joined.local.size(), in_place);
    compare("input gradient", whole.at("input gradient"), dx.local.data(), dx.local.size(), in_place);
    for (const Block& b : rank.layout().blocks()) {
      std::vector<double> g(static_cast<const double*>(b.grad), static_cast<const double*>(b.grad) + b.size);
      if (b.summed_over_tp) world.all_reduce(ctx.stream(), g, g, sum);
      for (const Block::Segment& s : b.segments) {
        compare("gradient of " + s.name, whole.at(s.name), g.data() + s.begin, s.end - s.begin,
                [&](std::size_t i) { return s.declaration->global_index(i); });
      }
    }
  });
  return *std::max_element(worst.begin(), worst.end(),
                           [](const Difference& a, const Difference& b) { return a.relative < b.relative; });
}

}  // namespace smp::testing
