// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A plain module among distributed values.

#include <utility>

#include <smp/parallel/boundary.hpp>

namespace smp {

/// A plain module that says how the values it takes and returns are distributed, in the same way. `Sequential` does so
/// by itself; a loss of a model that is cut, which knows nothing of ranks, needs it:
///
///     smp::step(ctx, trainer, smp::Lifted<nn::CrossEntropy<>, smp::Invariant>{}, inputs, targets);
///
/// Adds no name to a path.
template <class M, DistributionTag D>
class Lifted {
  using Inside = Joint<M, Tags<D>>;

 public:
  using Input = typename Inside::Input;    ///< the module's, with tags
  using Output = typename Inside::Output;  ///< the module's, with tags
  using Saved = typename M::Saved;         ///< the module's

  Lifted() = default;
  /// Around `module`.
  explicit Lifted(M module) : module_(std::move(module)) {}

  /// The module.
  [[nodiscard]] M& inner() noexcept { return module_; }

  /// As the module.
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return Inside::forward(module_, ctx, x, saved); }
  /// As the module.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return Inside::backward(module_, ctx, std::move(dy), saved);
  }
  /// The first part of backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return Inside::backward_input(module_, ctx, std::move(dy), saved);
  }
  /// The second part of backward.
  void backward_params(auto& ctx, Saved& saved) { Inside::backward_params(module_, ctx, saved); }

 private:
  M module_{};
};

}  // namespace smp
