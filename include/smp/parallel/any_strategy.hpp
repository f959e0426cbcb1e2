// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A strategy that is chosen when the program runs: the model is compiled once, for all of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/any.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/flat_engine.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/parallel/strategy.hpp>

namespace smp {

/// Which strategy, and what it is told.
using AnyStrategyOptions = std::variant<DataParallelOptions, ShardedOptimizerOptions>;

/// One of the engines.
class AnyEngine {
 public:
  /// The engine that `options` are for, and the rest as its constructor.
  template <class Ctx>
  AnyEngine(Ctx& ctx, Layout& layout, int states, bool plain, const AnyStrategyOptions& options)
      : engine_(std::visit([&](const auto& o) { return make(ctx, layout, states, plain, o); }, options)) {}

  /// Calls `f` with the engine.
  template <class F>
  decltype(auto) visit(F&& f) {
    return std::visit([&](auto& engine) -> decltype(auto) { return f(*engine); }, engine_);
  }
  /// The same for one that is not changed.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit([&](const auto& engine) -> decltype(auto) { return f(std::as_const(*engine)); }, engine_);
  }

  /// Brings the parameters of a unit.
  template <class Hooks>
  void enter(Hooks& hooks, Unit& unit, Phase phase) {
    visit([&](auto& engine) { engine.enter(hooks, unit, phase); });
  }
  /// Takes them away, and reduces what is complete.
  template <class Hooks>
  void leave(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch) {
    visit([&](auto& engine) { engine.leave(hooks, unit, phase, last_microbatch); });
  }
  /// An exception has left the unit.
  template <class Hooks>
  void abandon(Hooks& hooks, Unit& unit, Phase phase) {
    visit([&](auto& engine) { engine.abandon(hooks, unit, phase); });
  }

  /// The time of a call of the model.
  class Call {
   public:
    /// It begins.
    explicit Call(AnyEngine& any) {
      any.visit([&]<class Engine>(Engine& engine) { call_.emplace<typename Engine::Call>(engine); });
    }

   private:
    std::variant<std::monostate, FlatEngine::Call> call_;
  };
  /// Begins a call.
  [[nodiscard]] Call call() { return Call(*this); }

  /// Calls `f(block)` while its values are on this rank.
  template <class Ctx, class F>
  void with_values(Ctx& ctx, Block& block, F&& f) {
    visit([&](auto& engine) { engine.with_values(ctx, block, f); });
  }
  /// Reduces what is left, and enqueues the update.
  template <class Ctx, class Opt>
  void update(Ctx& ctx, const Opt& optimizer, double learning_rate) {
    visit([&](auto& engine) { engine.update(ctx, optimizer, learning_rate); });
  }
  /// Forgets the gradients since the last update; all ranks do, after the same backward passes.
  template <class Ctx>
  void discard(Ctx& ctx) {
    visit([&](auto& engine) { engine.discard(ctx); });
  }

  /// The norm of the last gradient, once the compute stream has come to it.
  [[nodiscard]] double gradient_norm() const noexcept {
    return visit([](const auto& engine) { return engine.gradient_norm(); });
  }
  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const noexcept {
    return visit([](const auto& engine) { return engine.steps(); });
  }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) noexcept {
    visit([&](auto& engine) { engine.set_steps(steps); });
  }
  /// The gradients since the last update are sums over `weight` more samples or tokens, which the update divides by.
  void weigh(double weight) noexcept {
    visit([&](auto& engine) { engine.weigh(weight); });
  }

 private:
  using Engine = std::variant<std::unique_ptr<DataParallelEngine>, std::unique_ptr<ShardedOptimizerEngine>>;

  template <class Ctx>
  static Engine make(Ctx& ctx, Layout& layout, int states, bool plain, const DataParallelOptions& options) {
    return std::make_unique<DataParallelEngine>(ctx, layout, states, plain, options);
  }
  template <class Ctx>
  static Engine make(Ctx& ctx, Layout& layout, int states, bool plain, const ShardedOptimizerOptions& options) {
    return std::make_unique<ShardedOptimizerEngine>(ctx, layout, states, plain, options);
  }

  Engine engine_;
};

/// A model under the strategy that its options name: `DataParallel` or `ShardedOptimizer`, with the same numbers.
///
///     smp::AnyStrategyOptions options = smp::DataParallelOptions{.clip = 1};
///     if (shard) options = smp::ShardedOptimizerOptions{.clip = 1};
///     smp::AnyStrategy trainer(ctx, Net{}, smp::optim::AdamW{}, options);
template <class M, class Opt = optim::AdamW>
class AnyStrategy : public Strategy<M, Opt, AnyEngine> {
 public:
  /// As `Strategy`.
  template <class Ctx>
  AnyStrategy(Ctx& ctx, M model, Opt optimizer, const AnyStrategyOptions& options)
      : Strategy<M, Opt, AnyEngine>(ctx, std::move(model), std::move(optimizer), options, layout_options(options)) {}

 private:
  static LayoutOptions layout_options(const AnyStrategyOptions& options) {
    return {.cuts_apart = std::holds_alternative<ShardedOptimizerOptions>(options)};
  }
};

}  // namespace smp
