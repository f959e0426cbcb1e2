// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A strategy that is chosen when the program runs: the model is compiled once, for all of them.

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include <smp/degrees.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/flat_engine.hpp>
#include <smp/parallel/sharded_engine.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/parallel/strategy.hpp>

namespace smp {

/// Which strategy, and what it is told.
using AnyStrategyOptions = std::variant<DataParallelOptions, ShardedOptimizerOptions, ShardedOptions>;

/// One of the engines.
class AnyEngine {
 public:
  /// The engine that `options` are for, and the rest as its constructor.
  template <class Ctx>
  AnyEngine(Ctx& ctx, Layout& layout, int states, bool plain, const AnyStrategyOptions& options)
      : engine_(choose(ctx, layout, states, plain, options)) {}

  /// Calls `f` with the engine.
  template <class F>
  decltype(auto) visit(F&& f) const {
    return std::visit([&](const auto& engine) -> decltype(auto) { return f(*engine); }, engine_);
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
  [[nodiscard]] FlatEngine::Call call() { return FlatEngine::Call(flat()); }

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

  /// True if ranks have to run the same units in the same order.
  [[nodiscard]] bool runs_together() const noexcept {
    const auto* sharded = std::get_if<std::unique_ptr<ShardedEngine>>(&engine_);
    return sharded != nullptr && (*sharded)->runs_together();
  }
  /// The norm of the last gradient, once the compute stream has come to it.
  [[nodiscard]] double gradient_norm() const { return flat().gradient_norm(); }
  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const { return flat().steps(); }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) { flat().set_steps(steps); }
  /// The gradients since the last update are sums over `weight` more samples or tokens, which the update divides by.
  void weigh(double weight) { flat().weigh(weight); }

 private:
  using Engine = std::variant<std::unique_ptr<DataParallelEngine>, std::unique_ptr<ShardedOptimizerEngine>,
                              std::unique_ptr<ShardedEngine>>;

  template <class Ctx>
  static Engine choose(Ctx& ctx, Layout& layout, int states, bool plain, const AnyStrategyOptions& options) {
    if (const auto* o = std::get_if<ShardedOptions>(&options)) {
      return std::make_unique<ShardedEngine>(ctx, layout, states, plain, *o);
    }
    if (const auto* o = std::get_if<ShardedOptimizerOptions>(&options)) {
      return std::make_unique<ShardedOptimizerEngine>(ctx, layout, states, plain, *o);
    }
    return std::make_unique<DataParallelEngine>(ctx, layout, states, plain, std::get<DataParallelOptions>(options));
  }
  /// What all of them have in common.
  [[nodiscard]] FlatEngine& flat() const {
    return visit([](auto& engine) -> FlatEngine& { return engine; });
  }

  Engine engine_;
};

/// A model under the strategy that its options name: `DataParallel`, `ShardedOptimizer`, or `Sharded` over the shard
/// groups of the topology.
///
///     smp::AnyStrategyOptions options = smp::DataParallelOptions{.clip = 1};
///     if (sharded) options = smp::ShardedOptions{.clip = 1};
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
    LayoutOptions layout{.cuts_apart = std::holds_alternative<ShardedOptimizerOptions>(options)};
    if (const auto* o = std::get_if<ShardedOptions>(&options)) {
      layout.persistence_threshold = o->persistence_threshold;
      layout.shard_degree = dynamic;
    }
    std::visit([&](const auto& o) { layout.groups = o.groups; }, options);
    return layout;
  }
};

}  // namespace smp
