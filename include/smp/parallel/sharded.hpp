// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Sharded data parallelism: a group of ranks holds one copy of parameters, gradients and optimizer state together, and
/// gathers parameters for the time they are used (Zhang et al.: MiCS, near-linear scaling for training gigantic models
/// on public cloud, 2022, sections 3.1 to 3.3; Rajbhandari et al.: ZeRO, 2020, stage 3). Groups are replicas of each
/// other.

#include <optional>
#include <string>
#include <utility>

#include <smp/comm/call.hpp>
#include <smp/context.hpp>
#include <smp/degrees.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/sharded_engine.hpp>
#include <smp/parallel/strategy.hpp>
#include <smp/topology.hpp>

namespace smp {

/// A model whose state `Degree` ranks hold together. Constructed with a context it trains:
///
///     smp::Sharded<Net, 4> trainer(ctx, Net{}, smp::optim::AdamW{}, {.clip = 1});
///     smp::step(ctx, trainer, loss, inputs, targets);
///     const double norm = trainer.step(ctx, learning_rate);
///
/// Constructed with a module alone, somewhere inside of a model, it says how the parameters of its units are held by
/// the strategy around the model: by the shard group, or with degree 1 whole on every rank.
/// @tparam Degree ranks of a shard group: `sdp` of the topology; or `smp::dynamic`
template <class M, int Degree, class Opt = optim::AdamW>
class Sharded : public Strategy<M, Opt, ShardedEngine> {
  static_assert(Degree >= 1 || Degree == dynamic,
                "smp::Sharded: the degree is the number of ranks that hold one copy of the model's state together: at "
                "least 1, or smp::dynamic");
  static_assert(
      !requires { M::cuts_optimizer_state; },
      "smp::Sharded: it cuts the optimizer state itself; leave out smp::ShardedOptimizer");
  using Base = Strategy<M, Opt, ShardedEngine>;

 public:
  static constexpr int shard_degree = Degree;  ///< for the layout

  /// As `Strategy`.
  /// @throws ConfigError if `Degree` is not the size of the shard groups
  template <class Ctx>
  Sharded(Ctx& ctx, M model, Opt optimizer = {}, const ShardedOptions& options = {})
      : Base(ctx, std::move(model), std::move(optimizer), options,
             {.persistence_threshold = options.persistence_threshold,
              .shard_degree = Degree,
              .groups = options.groups}) {}
  /// Says how the units of `module` are held.
  explicit Sharded(M module) : Base(std::move(module)) {}

  /// The module.
  [[nodiscard]] M& inner() noexcept { return this->module(); }

  /// Calls `f(name, shape, first, values, gradients)` for each parameter that this rank has elements of, with spans of
  /// its type; `first` is their place in the parameter, or 0 if all ranks have it whole. A frozen one has no gradients.
  /// Values may be written, if all ranks do and no stream is at work.
  template <class F>
  void for_each_shard(F&& f) {
    this->engine().storage().for_each_segment([&](const Block::Segment& s, auto values, auto gradients) {
      f(std::string_view(s.name), s.declaration->local_shape(), std::size_t{0}, values, gradients);
    });
    this->engine().shards().for_each_own([&](const Block::Segment& s, std::size_t first, auto values, auto gradients) {
      f(std::string_view(s.name), s.declaration->local_shape(), first, values, gradients);
    });
    this->engine().shards_written();
  }
};

}  // namespace smp
