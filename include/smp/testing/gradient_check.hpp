// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Compares what a module says its gradients are with what they are: for tests of modules, yours included.
///
///     smp::testing::OneRank<Conv> rank(Conv(1, 32));
///     rank.randomise(0.5);
///     const auto found = smp::testing::check_gradients(rank, rank.random<double>({2, 28, 28, 1}));
///     CHECK_MESSAGE(found.relative <= 1e-7, found.where);

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/tensor.hpp>
#include <smp/testing/one_rank.hpp>

namespace smp::testing {

/// The largest difference between a gradient and its numerical value.
struct Difference {
  double relative = 0;      ///< to the largest gradient in the same tensor
  std::string where = "-";  ///< the element, and both values
};

/// The tensors of a value that can have a gradient, in order.
template <class V>
[[nodiscard]] std::vector<std::pair<double*, std::size_t>> numbers_of(V& value) {
  std::vector<std::pair<double*, std::size_t>> all;
  for_each_tensor(value, [&](auto& t) {
    using Traits = TensorTraits<std::remove_cvref_t<decltype(t)>>;
    if constexpr (std::same_as<typename Traits::element, double>) {
      all.emplace_back(const_cast<double*>(Traits::data(t).data()), Traits::data(t).size());
    }
  });
  return all;
}

/// A gradient for the output `y`: random numbers, so that the sum of their products with `y` depends on all of it.
template <class Output, class M>
[[nodiscard]] GradOf<Output> random_gradient(OneRank<M>& rank, const Output& y) {
  std::vector<Shape> shapes;
  for_each_tensor(y, [&](const auto& t) {
    using Traits = TensorTraits<std::remove_cvref_t<decltype(t)>>;
    if constexpr (std::floating_point<typename Traits::element>) shapes.push_back(Traits::shape(t));
  });
  GradOf<Output> dy{};
  std::size_t next = 0;
  for_each_tensor(dy, [&](auto& t) {
    using Traits = TensorTraits<std::remove_cvref_t<decltype(t)>>;
    t = Traits::make(rank.memory, shapes.at(next));
    std::size_t i = 0;
    for (auto& x : Traits::data(t)) {
      const RandomStream draw{7, next};
      x = static_cast<typename Traits::element>(Init{Init::Kind::normal, 1}.value(draw, i++));
    }
    ++next;
  });
  return dy;
}

/// Checks the gradients of all parameters and of all inputs of a module in double precision, by central differences of
/// fourth order. The relative error of a tensor whose gradient should be zero (the bias of a key) is taken against a
/// thousandth of the largest gradient of all.
/// @param step of the differences; where the module has kinks (ReLU), a value within two steps of one gives an error
/// @throws ConfigError if a parameter is not of type double
template <class M>
[[nodiscard]] Difference check_gradients(OneRank<M>& rank, typename M::Input input, double step = 1e-4) {
  auto ctx = rank.context();
  typename M::Saved saved{};
  auto y = rank.model.forward(ctx, input, saved);
  auto dy = random_gradient(rank, y);
  const auto weights = numbers_of(dy);
  const auto loss = [&] {
    typename M::Saved unused{};
    auto output = rank.model.forward(ctx, input, unused);
    const auto outputs = numbers_of(output);
    long double sum = 0;
    for (std::size_t t = 0; t < outputs.size(); ++t) {
      for (std::size_t i = 0; i < outputs[t].second; ++i) {
        sum += static_cast<long double>(outputs[t].first[i]) * weights[t].first[i];
      }
    }
    return sum;
  };

  rank.clear_gradients();
  auto dx = rank.model.backward(ctx, dy, saved);

  struct Checked {
    std::string name;
    std::vector<double> found, expected;
  };
  std::vector<Checked> tensors;
  const auto check = [&](std::string name, double* x, const double* gradient, std::size_t n) {
    Checked c{std::move(name), {gradient, gradient + n}, {}};
    for (std::size_t i = 0; i < n; ++i) {
      const double before = x[i];
      const auto at = [&](double steps) {
        x[i] = before + steps * step;
        return loss();
      };
      c.expected.push_back(static_cast<double>((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)));
      x[i] = before;
    }
    tensors.push_back(std::move(c));
  };
  for (const Block& b : rank.layout().blocks()) {
    for (const Block::Segment& s : b.segments) {
      if (b.element_bytes != sizeof(double)) throw ConfigError("gradients are checked in double precision");
      if (b.frozen) continue;
      check(s.name, static_cast<double*>(b.value) + s.begin, static_cast<double*>(b.grad) + s.begin, s.end - s.begin);
    }
  }
  const auto inputs = numbers_of(input), input_gradients = numbers_of(dx);
  if (inputs.size() != input_gradients.size()) throw ConfigError("backward does not return a gradient for each input");
  for (std::size_t t = 0; t < inputs.size(); ++t) {
    if (inputs[t].second != input_gradients[t].second) throw ConfigError("an input and its gradient differ in size");
    check("input " + std::to_string(t), inputs[t].first, input_gradients[t].first, inputs[t].second);
  }

  const auto size = [](double most, double x) { return std::isfinite(x) ? std::max(most, std::abs(x)) : HUGE_VAL; };
  double largest = 0;
  for (const Checked& c : tensors) {
    for (const double x : c.expected) largest = size(largest, x);
  }
  Difference worst;
  for (const Checked& c : tensors) {
    double scale = largest / 1000;
    for (const double x : c.expected) scale = size(scale, x);
    for (std::size_t i = 0; i < c.found.size(); ++i) {
      const double difference = std::abs(c.found[i] - c.expected[i]);
      if (!std::isfinite(difference)) return {HUGE_VAL, c.name + "[" + std::to_string(i) + "] is not a number"};
      if (difference <= worst.relative * scale) continue;
      worst = {difference / scale, c.name + "[" + std::to_string(i) + "]: " + std::to_string(c.found[i]) +
                                       ", numerically " + std::to_string(c.expected[i])};
    }
  }
  return worst;
}

/// True if the backward of a module in two parts gives the same bits as at once: input gradients and parameter
/// gradients.
template <class M>
[[nodiscard]] bool split_backward_agrees(OneRank<M>& rank, const typename M::Input& input) {
  auto ctx = rank.context();
  std::vector<std::vector<std::byte>> results[2];
  for (auto& result : results) {
    const bool whole = &result == &results[0];
    rank.clear_gradients();
    typename M::Saved saved{};
    const auto y = rank.model.forward(ctx, input, saved);
    const auto dy = random_gradient(rank, y);
    auto dx = whole ? rank.model.backward(ctx, dy, saved) : rank.model.backward_input(ctx, dy, saved);
    if (!whole) rank.model.backward_params(ctx, saved);
    const auto keep = [&](const void* data, std::size_t bytes) {
      const auto* first = static_cast<const std::byte*>(data);
      result.emplace_back(first, first + bytes);
    };
    for_each_tensor(dx, [&](const auto& t) { keep(t.data(), t.size() * sizeof(*t.data())); });
    for (const Block& b : rank.layout().blocks()) {
      if (b.grad != nullptr) keep(b.grad, b.size * b.element_bytes);
    }
  }
  return results[0] == results[1];
}

}  // namespace smp::testing
