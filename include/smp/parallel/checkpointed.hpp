// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Activation checkpointing (Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost, 2016, section
/// 4): a module keeps its input instead of its activations, and computes these again in backward.

#include <type_traits>
#include <utility>

#include <smp/context.hpp>
#include <smp/degrees.hpp>
#include <smp/module.hpp>

namespace smp {

/// `M` with activations that live in backward only. Random numbers are those of the first pass.
/// @tparam Enabled 1, 0, or `smp::dynamic`: said when it is constructed
template <class M, int Enabled = 1>
class Checkpointed {
  static_assert(Enabled == 0 || Enabled == 1 || Enabled == dynamic,
                "smp::Checkpointed: the second argument is 1, 0 or smp::dynamic");
  static_assert(
      !requires {
        typename M::Schedule;
        typename M::Rows;
      },
      "smp::Checkpointed: a Pipeline lies across stages, which cannot be computed again as one; wrap children of its "
      "model, or say PipelineOptions::checkpointing");
  static_assert(
      std::is_default_constructible_v<typename M::Input>,
      "smp::Checkpointed: the Input of the module must have a default constructor, for Saved is empty at first");

 public:
  using Input = typename M::Input;    ///< of the module
  using Output = typename M::Output;  ///< of the module
  /// The input, and where its random numbers were drawn.
  struct Saved {
    Input input{};              ///< kept from forward to backward
    RandomPosition position{};  ///< of the first pass
    bool training = true;       ///< of the first pass
    typename M::Saved inner{};  ///< empty between forward and backward, if enabled

    /// The tensors in it.
    static constexpr auto fields() { return smp::fields(field("input", &Saved::input), field("inner", &Saved::inner)); }
  };

  Checkpointed()
    requires std::is_default_constructible_v<M>
  = default;
  /// Always, or never.
  explicit Checkpointed(M module)
    requires(Enabled != dynamic)
      : module_(std::move(module)) {}
  /// If `enabled`.
  Checkpointed(M module, bool enabled)
    requires(Enabled == dynamic)
      : module_(std::move(module)), enabled_(enabled) {}

  /// The module.
  [[nodiscard]] M& inner() noexcept { return module_; }
  /// Whether activations are computed again.
  [[nodiscard]] bool enabled() const noexcept { return Enabled == dynamic ? enabled_ : Enabled == 1; }

  /// Keeps the input only.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    static_assert(expect_module<M, Ctx>());
    Output y = module_.forward(ctx, x, saved.inner);
    if (enabled()) {
      saved.inner = typename M::Saved{};
      saved.input = x;
      saved.position = ctx.position;
      saved.training = ctx.training;
    }
    return y;
  }
  /// Forward again, then backward.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    if (enabled()) recompute(ctx, saved);
    return module_.backward(ctx, std::move(dy), saved.inner);
  }
  /// Forward again, then the first part of backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    if (enabled()) recompute(ctx, saved);
    return smp::backward_input(module_, ctx, std::move(dy), saved.inner);
  }
  /// The second part, with what the first one has left.
  void backward_params(auto& ctx, Saved& saved) { smp::backward_params(module_, ctx, saved.inner); }

 private:
  template <class Ctx>
  void recompute(Ctx& ctx, Saved& saved) const {
    const RunAgain again(ctx, saved.position, saved.training);
    (void)module_.forward(ctx, saved.input, saved.inner);
    saved.input = Input{};
  }

  M module_{};
  [[no_unique_address]] bool enabled_ = Enabled == 1;
};

}  // namespace smp
