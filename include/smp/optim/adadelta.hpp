// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// AdaDelta (Zeiler: ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701, algorithm 1), with the learning rate
/// that PyTorch multiplies the step by; 1 is the published method.

#include <smp/optim/range.hpp>

namespace smp::optim {

/// s = rho s + (1 - rho) g^2;  d = sqrt(u + epsilon) / sqrt(s + epsilon) g;  u = rho u + (1 - rho) d^2;  w -= lr d
struct AdaDelta {
  double rho = 0.9;         ///< of both running means
  double epsilon = 1e-6;    ///< inside of both roots
  double weight_decay = 0;  ///< added to the gradient

  /// Arrays of state: s and u.
  [[nodiscard]] static constexpr int states() noexcept { return 2; }

  /// Updates `range`.
  template <class T>
  void update(const Range<T>& range, const StepNumbers& numbers) const {
    const auto factor = static_cast<T>(numbers.gradient_factor);
    const auto decay = static_cast<T>(numbers.decay ? weight_decay : 0);
    const auto rate = static_cast<T>(numbers.learning_rate);
    const auto keep = static_cast<T>(rho);
    const auto take = static_cast<T>(1 - rho);
    const auto eps = static_cast<T>(epsilon);
    vectorized([=](auto) {
      for_each_block<2>(range, [=](auto& w, auto& g, auto& s, auto& u) {
        alignas(64) T below[block_size];
        alignas(64) T above[block_size];
        for (int i = 0; i < block_size; ++i) {
          g[i] = factor * g[i] + decay * w[i];
          s[i] = keep * s[i] + take * (g[i] * g[i]);
          below[i] = s[i] + eps;
          above[i] = u[i] + eps;
        }
        square_roots(below);
        square_roots(above);
        for (int i = 0; i < block_size; ++i) {
          const T delta = above[i] / below[i] * g[i];
          u[i] = keep * u[i] + take * (delta * delta);
          w[i] -= rate * delta;
        }
      });
    });
  }
};

static_assert(Optimizer<AdaDelta>);

}  // namespace smp::optim
