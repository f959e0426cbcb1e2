// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Mean of the negative logarithms of the probabilities that logits give to the right classes.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// The sum of exp(x[i] - most) over a row. Inside of `vectorized`.
template <class Unit, class T>
[[gnu::always_inline]] inline T sum_of_exponentials(Unit unit, std::int64_t n, const T* x, T most) {
  alignas(64) T sums[block_size] = {};
  for (std::int64_t i = 0; i < n; i += block_size) {
    const auto count = static_cast<int>(std::min<std::int64_t>(block_size, n - i));
    VectorBlock<T> e(x + i, count);
    for (int j = 0; j < block_size; ++j) e.v[j] -= most;
    unit.exp(e.v);
    for (int j = 0; j < block_size; ++j) sums[j] += j < count ? e.v[j] : T(0);
  }
  return fold(sums, [](T a, T b) { return a + b; });
}

/// The sum of the losses of the rows whose target is not `ignored`.
/// @param statistics receives the largest logit of each row and the sum of its exponentials (against the largest), and
/// then the number of rows that count
/// @throws ConfigError for a target that is no class
template <class T>
double cross_entropy_forward(std::int64_t rows, std::int64_t classes, std::int32_t ignored, const T* logits,
                             const std::int32_t* targets, T* statistics) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (targets[r] == ignored || (targets[r] >= 0 && targets[r] < classes)) continue;
    throw ConfigError("nn::CrossEntropy has " + std::to_string(classes) + " classes, but the target at place " +
                      std::to_string(r) + " is " + std::to_string(targets[r]));
  }
  return vectorized([=](auto unit) {
    double sum = 0;
    std::int64_t counted = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (targets[r] == ignored) continue;
      const T* x = logits + r * classes;
      const T most = largest(classes, x);
      const T exponentials = sum_of_exponentials(unit, classes, x, most);
      sum += static_cast<double>(std::log(exponentials) + (most - x[targets[r]]));
      statistics[2 * r] = most;
      statistics[2 * r + 1] = exponentials;
      ++counted;
    }
    statistics[2 * rows] = static_cast<T>(counted);
    return sum;
  });
}

/// The gradient of the logits: (probability - 1 for the right class) * dloss / rows that count; 0 in the other rows.
/// @param first the number of the first class, if these are some of them
template <class T>
void cross_entropy_backward(std::int64_t rows, std::int64_t first, std::int64_t classes, std::int32_t ignored,
                            const T* logits, const std::int32_t* targets, const T* statistics, T dloss, T* dlogits) {
  vectorized([=](auto target) {
    for (std::int64_t r = 0; r < rows; ++r) {
      T* out = dlogits + r * classes;
      if (targets[r] == ignored) {
        for (std::int64_t i = 0; i < classes; ++i) out[i] = 0;
        continue;
      }
      const T most = statistics[2 * r], share = dloss / statistics[2 * rows], scale = share / statistics[2 * r + 1];
      map_blocks(
          target, classes, out,
          [=](auto unit, auto& y, const auto& x) {
            for (int i = 0; i < block_size; ++i) y[i] = x[i] - most;
            unit.exp(y);
            for (int i = 0; i < block_size; ++i) y[i] *= scale;
          },
          logits + r * classes);
      const std::int64_t right = targets[r] - first;
      if (right >= 0 && right < classes) out[right] -= share;
    }
  });
}

/// The mean loss over the targets that are not `ignored`; 0, with gradients 0, if all are.
template <class T = float>
struct CrossEntropy {
  using Input = std::tuple<TensorOf<T>, Ids>;  ///< logits [..., classes] and targets [...]
  using Output = TensorOf<T>;                  ///< one number, of shape []
  /// The input, and two numbers a row.
  struct Saved {
    TensorOf<T> logits;      ///< the input
    Ids targets;             ///< the input
    TensorOf<T> statistics;  ///< largest logit and sum of exponentials of each row, and how many rows count
    static constexpr auto fields() {
      return smp::fields(smp::field("logits", &Saved::logits), smp::field("targets", &Saved::targets),
                         smp::field("statistics", &Saved::statistics));
    }
  };

  std::int32_t ignored = -100;  ///< a target that does not count

  /// @throws ConfigError if there is not one target for each row of logits, or one is no class
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto& [logits, targets] = x;
    const std::int64_t rows = static_cast<std::int64_t>(targets.size());
    if (logits.shape().rank() == 0 || logits.shape().with(-1, 1).elements() != targets.size()) {
      throw ConfigError("nn::CrossEntropy takes logits [..., classes] and one target a row, but was given " +
                        to_string(logits.shape()) + " and " + to_string(targets.shape()));
    }
    Output loss(ctx.memory(), {});
    TensorOf<T> statistics(ctx.memory(), {2 * rows + 1});
    ctx.stream().enqueue([rows, classes = logits.shape()[-1], skip = ignored, p = logits.data(), t = targets.data(),
                          s = statistics.data(), q = loss.data()] {
      const double sum = cross_entropy_forward(rows, classes, skip, p, t, s);
      *q = s[2 * rows] > 0 ? static_cast<T>(sum / static_cast<double>(s[2 * rows])) : T(0);
    });
    saved = {logits, targets, std::move(statistics)};
    return loss;
  }

  /// All of it: there are no parameters.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dloss, Saved& saved) {
    return backward_input(ctx, dloss, saved);
  }

  /// The gradient of the logits.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dloss, Saved& saved) {
    expect_shape({}, dloss.shape(), "CrossEntropy", "the gradient of the loss");
    TensorOf<T> dlogits(ctx.memory(), saved.logits.shape());
    ctx.stream().enqueue([rows = static_cast<std::int64_t>(saved.targets.size()), classes = saved.logits.shape()[-1],
                          skip = ignored, p = saved.logits.data(), t = saved.targets.data(),
                          s = saved.statistics.data(), g = dloss.data(),
                          q = dlogits.data()] { cross_entropy_backward<T>(rows, 0, classes, skip, p, t, s, *g, q); });
    saved = {};
    return {std::move(dlogits), NoGrad{}};
  }

  /// Nothing.
  void backward_params(auto&, Saved&) {}
};

}  // namespace smp::nn
