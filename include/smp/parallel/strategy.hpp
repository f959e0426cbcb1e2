// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What all strategies that hold a model's parameters have in common: a model that is run with hooks, and an engine
/// that knows nothing of its type and hears of units.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/range.hpp>
#include <smp/tags.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What a context is given for the time of a call: brings the parameters of units, and takes them away.
template <class Engine, class Stream, class Groups>
struct UnitHooks {
  Engine& engine;    ///< who is told
  Stream& compute;   ///< of the context
  Groups& groups;    ///< of the context
  bool training;     ///< a forward will be followed by a backward
  bool in_backward;  ///< a forward is a repetition

  /// Before a unit runs.
  void enter(Unit& unit, Phase phase) { engine.enter(*this, unit, phase); }
  /// After it has run.
  void leave(Unit& unit, Phase phase, bool last_microbatch) { engine.leave(*this, unit, phase, last_microbatch); }
  /// An exception has left it.
  void abandon(Unit& unit, Phase phase) { engine.abandon(*this, unit, phase); }
};

/// @throws ConfigError on all ranks if no rank has a parameter of a group of the options: its name is written wrong
template <class Ctx>
void expect_members(Ctx& ctx, const Layout& layout) {
  if (layout.groups().empty()) return;
  std::vector<std::uint64_t> members(layout.members().begin(), layout.members().end());
  ctx.groups()[Group::world].all_reduce(ctx.stream(), members, members, sum, Purpose::control);
  ctx.stream().synchronize();
  for (std::size_t g = 0; g < members.size(); ++g) {
    if (members[g] > 0) continue;
    throw ConfigError("no parameter of the model is called \"" + layout.groups()[g].names +
                      "\", or all that are belong to an earlier group: this parameter group has none");
  }
}

/// A model whose parameters an engine holds: the body of `DataParallel`, `ShardedOptimizer` and `Sharded`. Owns the
/// model, its parameters, gradients and the state of the optimizer.
/// @tparam M a module
/// @tparam Opt an optimizer of `smp::optim`, or a type of yours with `states()` and `update(range, numbers)`
/// @tparam Engine the strategy: `enter`, `leave`, `abandon` of units, `update` and `discard` at the end of a step
template <class M, class Opt, class Engine>
class Strategy {
  static_assert(ModuleTypes<M>,
                "smp: the model of a strategy is no module; give it the nested types Input, Output and Saved");
  static_assert(optim::Optimizer<Opt>,
                "smp: the second argument of a strategy is no optimizer; it needs 'int states() const' and "
                "'update(const optim::Range<T>&, const optim::StepNumbers&) const' for T = float and double");

 public:
  using Input = typename M::Input;    ///< of the model
  using Output = typename M::Output;  ///< of the model
  using Saved = typename M::Saved;    ///< of the model

  /// Places the parameters of `model`, with initial values that are a function of the seed and their names. All ranks
  /// of the group call it with equal models.
  /// @throws ConfigError for options that cannot work; on all ranks if the models are compared and differ, or if no
  /// rank has a parameter of a group
  template <class Ctx, class Options>
  Strategy(Ctx& ctx, M model, Opt optimizer, const Options& options, LayoutOptions layout = {})
      : held_(std::make_unique<Held>(std::move(model), std::move(optimizer))) {
    layout.one_part = ctx.groups()[Group::tp].size() == 1;
    held_->layout.emplace(held_->model, std::move(layout));
    expect_members(ctx, *held_->layout);
    held_->engine = std::make_unique<Engine>(ctx, *held_->layout, held_->optimizer.states(), is_plain<M>, options);
  }

  /// As the model.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    return run(ctx, Phase::forward, [&]<class Inner>(Inner& inner) {
      static_assert(expect_module<M, Inner>());
      return std::as_const(held_->model).forward(inner, x, saved);
    });
  }
  /// As the model. In the last micro-batch (`ctx.last_microbatch`) gradients are reduced as they are completed.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return run(ctx, Phase::backward, [&](auto& inner) { return held_->model.backward(inner, std::move(dy), saved); });
  }
  /// The first part of the model's backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return run(ctx, Phase::backward_input,
               [&](auto& inner) { return smp::backward_input(held_->model, inner, std::move(dy), saved); });
  }
  /// The second part.
  void backward_params(auto& ctx, Saved& saved) {
    run(ctx, Phase::backward_params, [&](auto& inner) { smp::backward_params(held_->model, inner, saved); });
  }

  /// Runs `f(context)` in the root unit: part of a forward or backward of the model, which hears of its units.
  template <class Ctx, class F>
  decltype(auto) run(Ctx& ctx, Phase phase, F&& f) const {
    if constexpr (Ctx::has_hooks) {
      return std::forward<F>(f)(ctx);  // inside of a model that another strategy holds
    } else {
      if (held_->engine == nullptr) return std::forward<F>(f)(ctx);
      return run_with_hooks(ctx, phase, std::forward<F>(f));
    }
  }

  /// Sums gradients over the ranks, clips them, updates the parameters, and sets the gradients to zero. All ranks of
  /// the group call it. Waits for the update.
  /// @return the L2 norm of the gradient before it was clipped
  template <class Ctx>
  double step(Ctx& ctx, double learning_rate) {
    update(ctx, learning_rate);
    ctx.stream().synchronize();
    return gradient_norm();
  }
  /// The same without waiting.
  template <class Ctx>
  void update(Ctx& ctx, double learning_rate) {
    engine().update(ctx, held_->optimizer, learning_rate);
  }
  /// Forgets the gradients since the last update, after an exception or because they are no good; all ranks do.
  template <class Ctx>
  void discard(Ctx& ctx) {
    held_->engine->discard(ctx);
  }
  /// The norm of the last update, once the stream has come to it.
  [[nodiscard]] double gradient_norm() const noexcept { return held_->engine->gradient_norm(); }

  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return held_->engine->steps(); }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) noexcept { held_->engine->set_steps(steps); }
  /// The gradients since the last update are sums over `weight` more samples or tokens (of all ranks), not means: the
  /// update divides them by all of it.
  void weigh(double weight) noexcept { held_->engine->weigh(weight); }

  /// True if ranks have to run the same units in the same order, as those that hold parameters together have.
  [[nodiscard]] bool runs_together() const noexcept {
    if constexpr (requires(const Engine& e) { e.runs_together(); }) {
      return held_->engine->runs_together();
    } else {
      return false;
    }
  }

  /// Calls `f(block)` while the values of the block are on this rank. All ranks call it.
  template <class Ctx, class F>
  void with_values(Ctx& ctx, Block& block, F&& f) {
    held_->engine->with_values(ctx, block, std::forward<F>(f));
  }

  /// Units and blocks of the model.
  [[nodiscard]] Layout& layout() noexcept { return *held_->layout; }
  /// The model.
  [[nodiscard]] M& module() noexcept { return held_->model; }
  /// The engine.
  [[nodiscard]] Engine& engine() noexcept { return *held_->engine; }
  /// Room for what one micro-batch saves, for whoever runs one at a time: what it has allocated is kept.
  [[nodiscard]] Saved& saved() noexcept { return held_->saved; }

 protected:
  /// Holds no parameters: for a place inside of a model that another strategy holds.
  explicit Strategy(M model) : held_(std::make_unique<Held>(std::move(model), Opt{})) {}

 private:
  // Units, blocks and events are referred to: a strategy may be moved, what it holds stays where it is.
  struct Held {
    Held(M m, Opt o) : model(std::move(m)), optimizer(std::move(o)) {}

    M model;
    std::optional<Layout> layout{};
    Opt optimizer;
    std::unique_ptr<Engine> engine{};
    Saved saved{};
  };

  template <class Ctx, class F>
  decltype(auto) run_with_hooks(Ctx& ctx, Phase phase, F&& f) const {
    using Stream = std::remove_cvref_t<decltype(ctx.stream())>;
    using Groups = std::remove_cvref_t<decltype(ctx.groups())>;
    UnitHooks<Engine, Stream, Groups> hooks{*held_->engine, ctx.stream(), ctx.groups(), ctx.training,
                                            phase != Phase::forward};
    auto inner = ctx.with(hooks);
    const auto call = held_->engine->call();
    return inner.unit(&held_->layout->units().front(), phase, [&]() -> decltype(auto) { return f(inner); });
  }

  std::unique_ptr<Held> held_;
};

}  // namespace smp
