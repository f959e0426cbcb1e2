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
#include <tuple>
#include <type_traits>
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

/// A value of type `X`: a tensor of numbers of the first shape, or ids from 0 to 7, or a tuple of such tensors, one for
/// each shape. `stream` is that of the first.
template <class X>
[[nodiscard]] X numbers_like(Memory& memory, const std::vector<Shape>& shapes, std::uint64_t stream) {
  if constexpr (is_dist<X>) {
    return {numbers(memory, shapes.at(0), stream)};
  } else if constexpr (std::is_same_v<X, Ids>) {
    Ids ids(memory, shapes.at(0));
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>((5 * i + stream) % 8);
    return ids;
  } else if constexpr (TensorLike<X>) {
    return numbers(memory, shapes.at(0), stream);
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return X{numbers_like<std::tuple_element_t<I, X>>(memory, {shapes.at(I)}, stream + 10 * I)...};
    }(std::make_index_sequence<std::tuple_size_v<X>>{});
  }
}

/// All numbers of a value, one tensor after the other.
template <class X>
[[nodiscard]] std::vector<double> all_numbers(const X& value) {
  std::vector<double> all;
  for_each_tensor(value, [&]<class T>(const T& t) {
    if constexpr (std::is_same_v<T, Tensor64>) all.insert(all.end(), t.begin(), t.end());
  });
  return all;
}

/// What `module` computes by itself.
template <class M>
[[nodiscard]] Results results_of_whole(const M& module, const std::vector<Shape>& inputs) {
  OneRank<M> rank(module);
  rank.randomise(0.5);
  auto ctx = rank.context();
  typename M::Saved saved{};
  Results all;
  const Tensor64 y = rank.model.forward(ctx, numbers_like<typename M::Input>(rank.memory, inputs, 1), saved);
  all["output"] = all_numbers(y);
  all["input gradient"] = all_numbers(rank.model.backward(ctx, numbers(rank.memory, y.shape(), 2), saved));
  for (const Block& b : rank.layout().blocks()) {
    for (const Block::Segment& s : b.segments) {
      const auto* g = static_cast<const double*>(b.grad);
      all[s.name].assign(g + s.begin, g + s.end);
    }
  }
  return all;
}

/// How far the parts of a module are from the whole: relative to the largest number of the same tensor.
/// @param module with parameters and activations in double precision; Input is one tensor or a tuple of tensors, of
/// numbers or ids; Output one tensor
/// @param inputs a shape for each tensor, that can be cut into `ranks` slices in the ways of the rule
/// @return the largest difference, and where it is: output, input gradient, or a parameter's gradient
template <class M, Split S = Split::usual, DistributionTag At = Invariant>
[[nodiscard]] Difference check_parts(const M& module, const std::vector<Shape>& inputs, int ranks) {
  const Results whole = results_of_whole(module, inputs);
  std::vector<Difference> worst(static_cast<std::size_t>(ranks));
  comm::launch(ranks, [&](comm::Threads& world) {
    using Cut = TensorParallel<M, S, At>;
    OneRank<Cut> rank(Cut(module, world.rank(), world.size()));
    rank.randomise(0.5);
    const TpGroup groups{world};
    smp::Context<HostStream, const TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    typename Cut::Saved saved{};
    const auto x = numbers_like<SpreadAs<typename M::Input, Tags<Invariant>>>(rank.memory, inputs, 1);
    const auto y = rank.model.forward(ctx, moved<At>(ctx, x), saved);
    using End = typename std::remove_cvref_t<decltype(y)>::tp;
    const auto joined = move_to<Invariant>(ctx, y);
    const Dist<Tensor64, Invariant> dy{numbers(rank.memory, joined.local.shape(), 2)};
    const auto dx = all_numbers(moved<Invariant>(ctx, rank.model.backward(ctx, move_to<GradOn<End>>(ctx, dy), saved)));

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
    compare("input gradient", whole.at("input gradient"), dx.data(), dx.size(), in_place);
    for (const Block& b : rank.layout().blocks()) {
      std::vector<double> g(static_cast<const double*>(b.grad), static_cast<const double*>(b.grad) + b.size);
      if (b.summed_over_tp) world.all_reduce(ctx.stream(), g, g, sum);
      for (const Block::Segment& s : b.segments) {
        if (whole.count(s.name) == 0) {
          mine = {HUGE_VAL, "a part has a parameter " + s.name + ", the whole has none of that name"};
          continue;
        }
        compare("gradient of " + s.name, whole.at(s.name), g.data() + s.begin, s.end - s.begin,
                [&](std::size_t i) { return s.declaration->global_index(i); });
      }
    }
  });
  return *std::max_element(worst.begin(), worst.end(),
                           [](const Difference& a, const Difference& b) { return a.relative < b.relative; });
}

/// The same of a module that takes one tensor.
template <class M, Split S = Split::usual, DistributionTag At = Invariant>
[[nodiscard]] Difference check_parts(const M& module, const Shape& input, int ranks) {
  return check_parts<M, S, At>(module, std::vector<Shape>{input}, ranks);
}

}  // namespace smp::testing
