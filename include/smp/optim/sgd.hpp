// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Stochastic gradient descent with momentum (Sutskever et al.: On the importance of initialization and momentum in
/// deep learning, ICML 2013), in the form that PyTorch has: the learning rate multiplies the whole step.

#include <smp/optim/range.hpp>

namespace smp::optim {

/// g' = g + decay w;  b = momentum b + g';  w -= lr (nesterov ? g' + momentum b : b)
struct Sgd {
  double momentum = 0;      ///< 0: keeps no state
  bool nesterov = false;    ///< looks ahead by one step of the momentum
  double weight_decay = 0;  ///< added to the gradient

  /// Arrays of state.
  [[nodiscard]] constexpr int states() const noexcept { return momentum != 0 ? 1 : 0; }

  /// Updates `range`.
  template <class T>
  void update(const Range<T>& range, const StepNumbers& numbers) const {
    const auto factor = static_cast<T>(numbers.gradient_factor);
    const auto decay = static_cast<T>(numbers.decay ? weight_decay : 0);
    const auto rate = static_cast<T>(numbers.learning_rate);
    const auto inertia = static_cast<T>(momentum);
    const auto ahead = static_cast<T>(nesterov ? momentum : 1);  // b' = g' + ahead b, or just b
    const auto direct = static_cast<T>(nesterov ? 1 : 0);
    if (momentum == 0) {
      vectorized([=](auto) {
        for_each_block<0>(range, [=](auto& w, const auto& g, auto&, auto&) {
          for (int i = 0; i < block_size; ++i) w[i] -= rate * (factor * g[i] + decay * w[i]);
        });
      });
    } else {
      vectorized([=](auto) {
        for_each_block<1>(range, [=](auto& w, const auto& g, auto& b, auto&) {
          for (int i = 0; i < block_size; ++i) {
            const T gradient = factor * g[i] + decay * w[i];
            b[i] = inertia * b[i] + gradient;
            w[i] -= rate * (direct * gradient + ahead * b[i]);
          }
        });
      });
    }
  }
};

static_assert(Optimizer<Sgd>);

}  // namespace smp::optim
