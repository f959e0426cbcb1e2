// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The learning rate as a function of the step alone, so that it needs no state and survives a restart.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

#include <smp/error.hpp>

namespace smp::optim {

/// How the learning rate falls after the warm-up.
enum class Decay : unsigned char { constant, linear, cosine };

/// A decay by name: "constant", "linear", "cosine".
/// @throws ConfigError for another name
[[nodiscard]] inline Decay parse_decay(std::string_view name) {
  if (name == "constant") return Decay::constant;
  if (name == "linear") return Decay::linear;
  if (name == "cosine") return Decay::cosine;
  throw ConfigError("the learning rate is constant, linear or cosine, found \"" + std::string(name) + "\"");
}

/// Rises linearly for `warmup` steps, then falls from `peak` to `minimum`, where it stays from step `total` on.
struct LearningRate {
  Decay decay = Decay::constant;  ///< how it falls
  double peak = 1e-3;             ///< the largest
  double minimum = 0;             ///< the smallest after the warm-up; not of `constant`
  std::int64_t warmup = 0;        ///< steps until the peak; step s of them has (s + 1) / (warmup + 1) of it
  std::int64_t total = 0;         ///< steps until the minimum, warm-up included

  /// The rate at `step`, counted from 0.
  [[nodiscard]] double operator()(std::int64_t step) const noexcept {
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
    if (decay == Decay::constant) return peak;
    if (step >= total) return minimum;
    const double fallen = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    const double left = decay == Decay::linear ? 1 - fallen : 0.5 * (1 + std::cos(std::numbers::pi * fallen));
    return minimum + left * (peak - minimum);
  }
};

}  // namespace smp::optim
