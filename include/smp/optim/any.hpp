// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// An optimizer that is chosen when the program runs. The kernels are the same as for one that is known to the
/// compiler, and so are the bits.

#include <concepts>
#include <utility>
#include <variant>

#include <smp/optim/adadelta.hpp>
#include <smp/optim/adam.hpp>
#include <smp/optim/sgd.hpp>

namespace smp::optim {

/// One of the optimizers of this library.
class Any {
 public:
  /// AdamW.
  Any() = default;
  /// Any of them.
  template <class O>
    requires(std::same_as<O, AdamW> || std::same_as<O, Adam> || std::same_as<O, Sgd> || std::same_as<O, AdaDelta>)
  Any(const O& optimizer) : which_(std::in_place_type<O>, optimizer) {}

  /// Arrays of state.
  [[nodiscard]] int states() const {
    return std::visit([](const auto& o) { return o.states(); }, which_);
  }
  /// Updates `range`.
  template <class T>
  void update(const Range<T>& range, const StepNumbers& numbers) const {
    std::visit([&](const auto& o) { o.update(range, numbers); }, which_);
  }

 private:
  std::variant<AdamW, Adam, Sgd, AdaDelta> which_;
};

static_assert(Optimizer<Any>);

}  // namespace smp::optim
