// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Data parallelism: every rank has the whole model and its own samples; gradients are summed over the ranks.

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <smp/comm/call.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/config.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/flat_engine.hpp>
#include <smp/parallel/parameter_update.hpp>
#include <smp/parallel/strategy.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What data parallelism can be told.
struct DataParallelOptions {
  double clip = 0;                              ///< largest L2 norm of the gradient; 0: any
  std::vector<ParameterGroup> groups{};         ///< what is updated in other ways
  std::size_t bucket_bytes = 25 * 1024 * 1024;  ///< largest bucket of gradients, unless a parameter is larger
  bool overlap = true;  ///< reduce buckets while backward goes on; an MPI without threads cannot. The bits are the same
  bool checked = check_level >= 2;                 ///< find modules that keep pointers to parameters (they compute NaN)
  bool compare_initial_values = check_level >= 2;  ///< between the ranks; they are equal if the models are
};

/// What DataParallel does, whatever the type of the model.
class DataParallelEngine : public FlatEngine {
 public:
  /// For the model that `layout` was made of.
  /// @param plain the model knows nothing of tensor-parallel ranks: each of them has samples of its own
  template <class Ctx>
  DataParallelEngine(Ctx& ctx, Layout& layout, int states, bool plain, const DataParallelOptions& options)
      : FlatEngine(ctx, layout, states, plain, options), parts_(plain ? 1 : ctx.groups()[Group::tp].size()) {}

  /// Brings the parameters of a unit.
  /// @throws Error for a backward after the last one of a step
  template <class Hooks>
  void enter(Hooks& hooks, Unit& unit, Phase phase) {
    begin_unit(hooks, unit, phase);
  }
  /// Takes them away, and reduces what is complete.
  template <class Hooks>
  void leave(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch) {
    end_unit(hooks, unit, phase, last_microbatch, all_reduce(hooks.groups));
  }
  /// Calls `f(block)`; the values are always here.
  template <class Ctx, class F>
  void with_values(Ctx& ctx, Block& block, F&& f) {
    ctx.stream().synchronize();
    f(block);
  }

  /// Reduces what is left, and enqueues the update.
  template <class Ctx, class Opt>
  void update(Ctx& ctx, const Opt& optimizer, double learning_rate) {
    auto& compute = ctx.stream();
    sum_over_stages(ctx);
    finish_reduction(compute, all_reduce(ctx.groups()));
    compute.enqueue([scale = &scale()] { scale->squares = scale->squares_of_parts = 0; });
    storage().for_each_type([&](auto& arrays) { add_squares(compute, arrays, parts_ > 1, &scale()); });
    if (parts_ > 1) {
      const std::span<double> parts(&scale().squares_of_parts, 1);
      ctx.groups()[Group::tp].all_reduce(compute, parts, parts, sum, Purpose::norm);
    }
    const optim::StepNumbers numbers = finish_scale(ctx, learning_rate);
    storage().for_each_type([&](auto& arrays) { update_runs(compute, optimizer, arrays, numbers, &scale()); });
    begin_step();
  }

 private:
  int parts_;  // over which parameters are cut
};

/// A model on every rank of the RDP group. A parameter that a step, or a rank, has not used counts with the gradient
/// zero: it is reduced with the others, and the optimizer treats it like any other (momentum and decay go on), on all
/// ranks alike.
///
///     smp::DataParallel trainer(ctx, Net{}, smp::optim::AdamW{}, {.clip = 1});
///     smp::step(ctx, trainer, loss, inputs, targets);
///     const double norm = trainer.step(ctx, learning_rate);
template <class M, class Opt = optim::AdamW>
class DataParallel : public Strategy<M, Opt, DataParallelEngine> {
 public:
  /// As `Strategy`.
  template <class Ctx>
  DataParallel(Ctx& ctx, M model, Opt optimizer = {}, DataParallelOptions options = {})
      : Strategy<M, Opt, DataParallelEngine>(ctx, std::move(model), std::move(optimizer), options,
                                             {.groups = options.groups}) {}

  /// Calls `f(name, shape, values, gradients)` for each parameter, with spans of its type; a frozen one has no
  /// gradients. Tied parameters are one. The values may be changed.
  template <class F>
  void for_each_parameter(F&& f) {
    this->engine().storage().for_each_segment([&](const Block::Segment& s, auto values, auto gradients) {
      f(std::string_view(s.name), s.declaration->local_shape(), values, gradients);
    });
  }
  /// Number of all-reduces that one update needs.
  [[nodiscard]] std::size_t buckets() { return this->engine().reduction().buckets().size(); }
};

}  // namespace smp
