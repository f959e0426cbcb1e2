// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Adam (Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015, algorithm 1), and AdamW (Loshchilov,
/// Hutter: Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2), with epsilon where PyTorch has it: added to
/// the root of the corrected second moment.

#include <cmath>

#include <smp/optim/range.hpp>

namespace smp::optim {

/// The numbers that both kinds share.
struct AdamNumbers {
  double beta1 = 0.9;       ///< of the mean of gradients
  double beta2 = 0.999;     ///< of the mean of their squares
  double epsilon = 1e-8;    ///< added to the root
  double weight_decay = 0;  ///< added to the gradient, or decoupled
};

/// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;  w -= lr m^ / (sqrt(v^) + epsilon), where m^ and v^ are
/// m / (1 - beta1^t) and v / (1 - beta2^t). Decay is added to g, or, if `decoupled`, w is multiplied by 1 - lr decay.
template <class T>
void update_adam(const AdamNumbers& adam, bool decoupled, const Range<T>& range, const StepNumbers& numbers) {
  const double weight_decay = numbers.decay ? adam.weight_decay : 0;
  const auto steps = static_cast<double>(numbers.step);
  const double correction1 = 1 - std::pow(adam.beta1, steps);
  const double correction2 = 1 - std::pow(adam.beta2, steps);
  const auto factor = static_cast<T>(numbers.gradient_factor);
  const auto coupled = static_cast<T>(decoupled ? 0 : weight_decay);
  const auto shrink = static_cast<T>(decoupled ? 1 - numbers.learning_rate * weight_decay : 1);
  const auto keep1 = static_cast<T>(adam.beta1);
  const auto take1 = static_cast<T>(1 - adam.beta1);
  const auto keep2 = static_cast<T>(adam.beta2);
  const auto take2 = static_cast<T>(1 - adam.beta2);
  const auto root_factor = static_cast<T>(1 / std::sqrt(correction2));
  const auto rate = static_cast<T>(numbers.learning_rate / correction1);
  const auto epsilon = static_cast<T>(adam.epsilon);
  vectorized([=](auto) {
    for_each_block<2>(range, [=](auto& w, const auto& g, auto& m, auto& v) {
      alignas(64) T root[block_size];
      for (int i = 0; i < block_size; ++i) {
        const T gradient = factor * g[i] + coupled * w[i];
        m[i] = keep1 * m[i] + take1 * gradient;
        v[i] = keep2 * v[i] + take2 * (gradient * gradient);
        root[i] = v[i];
      }
      square_roots(root);
      for (int i = 0; i < block_size; ++i) w[i] = shrink * w[i] - rate * m[i] / (root[i] * root_factor + epsilon);
    });
  });
}

/// Adam; weight decay is part of the gradient.
struct Adam : AdamNumbers {
  /// Arrays of state: m and v.
  [[nodiscard]] static constexpr int states() noexcept { return 2; }
  /// Updates `range`.
  template <class T>
  void update(const Range<T>& range, const StepNumbers& numbers) const {
    update_adam(*this, false, range, numbers);
  }
};

/// Adam with decoupled weight decay.
struct AdamW : AdamNumbers {
  /// The numbers that are PyTorch's defaults.
  constexpr AdamW() noexcept : AdamNumbers{.weight_decay = 0.01} {}
  /// With these numbers.
  constexpr AdamW(const AdamNumbers& numbers) noexcept : AdamNumbers(numbers) {}
  /// Arrays of state: m and v.
  [[nodiscard]] static constexpr int states() noexcept { return 2; }
  /// Updates `range`.
  template <class T>
  void update(const Range<T>& range, const StepNumbers& numbers) const {
    update_adam(*this, true, range, numbers);
  }
};

static_assert(Optimizer<Adam> && Optimizer<AdamW>);

}  // namespace smp::optim
