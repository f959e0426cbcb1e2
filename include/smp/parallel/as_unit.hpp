// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A mark for members of hand-written composites.

#include <type_traits>
#include <utility>

#include <smp/module.hpp>

namespace smp {

/// A member of a hand-written module whose parameters come and go by themselves, not with the module's. Adds no name.
template <class M>
class AsUnit {
 public:
  using Input = typename M::Input;    ///< of the member
  using Output = typename M::Output;  ///< of the member
  using Saved = typename M::Saved;    ///< of the member

  AsUnit()
    requires std::is_default_constructible_v<M>
  = default;
  /// The member.
  explicit AsUnit(M module) : module_(std::move(module)) {}

  /// The member.
  [[nodiscard]] M& marked() noexcept { return module_; }
  /// Its unit; set by the layout.
  Unit* unit = nullptr;

  /// In its unit.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    static_assert(expect_module<M, Ctx>());
    return ctx.unit(unit, Phase::forward, [&] { return module_.forward(ctx, x, saved); });
  }
  /// In its unit.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return ctx.unit(unit, Phase::backward, [&] { return module_.backward(ctx, std::move(dy), saved); });
  }
  /// In its unit.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return ctx.unit(unit, Phase::backward_input,
                    [&] { return smp::backward_input(module_, ctx, std::move(dy), saved); });
  }
  /// In its unit.
  void backward_params(auto& ctx, Saved& saved) {
    ctx.unit(unit, Phase::backward_params, [&] { smp::backward_params(module_, ctx, saved); });
  }

 private:
  M module_{};
};

}  // namespace smp
