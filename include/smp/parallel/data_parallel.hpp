// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Data parallelism: every rank has the whole model and its own samples; gradients are summed over the ranks.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/communicator.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/config.hpp>
#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/checked_visibility.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_reduction.hpp>
#include <smp/parallel/parameter_update.hpp>
#include <smp/parallel/strategy.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What data parallelism can be told.
struct DataParallelOptions {
  double clip = 0;                              ///< largest L2 norm of the gradient; 0: any
  std::size_t bucket_bytes = 25 * 1024 * 1024;  ///< largest bucket of gradients, unless a parameter is larger
  bool overlap = true;  ///< reduce buckets while backward goes on; an MPI without threads cannot. The bits are the same
  bool checked = check_level >= 2;                 ///< find modules that keep pointers to parameters (they compute NaN)
  bool compare_initial_values = check_level >= 2;  ///< between the ranks; they are equal if the models are
};

/// What DataParallel does, whatever the type of the model.
class DataParallelEngine {
 public:
  /// For the model that `layout` was made of.
  /// @param plain the model knows nothing of tensor-parallel ranks: each of them has samples of its own
  template <class Ctx>
  DataParallelEngine(Ctx& ctx, Layout& layout, int states, bool plain, const DataParallelOptions& options)
      : layout_(for_degree(layout, ctx.groups()[Group::tp].size())),
        options_(options),
        storage_(layout, ctx.memory(), states),
        reduction_(layout.blocks().size(), storage_.gradients(plain), options.bucket_bytes),
        ranks_(ctx.groups()[Group::dp].size()),
        parts_(plain ? 1 : ctx.groups()[Group::tp].size()) {
    if (ctx.groups()[Group::pp].size() > 1) {
      throw ConfigError("DataParallel holds all layers of a model: its topology has pp 1");
    }
    storage_.initialise(ctx.seed());
    if (options.compare_initial_values) compare(ctx);
    if (options.checked) visibility_.emplace(layout, storage_, ctx.memory());
    if (ranks_ > 1 && options.overlap && comm::works_in_any_thread(ctx.groups()[Group::rdp])) {
      side_stream_ = std::make_unique<HostStream>(HostStream::Mode::worker);
    }
  }

  /// Brings the parameters of a unit.
  /// @throws Error for a backward after the last one of a step
  template <class Hooks>
  void enter(Hooks& hooks, Unit& unit, Phase phase) {
    show(hooks.compute, unit, phase);
    if (phase == Phase::forward && hooks.training && !hooks.in_backward) reduction_.forward(unit);
    if (completes_gradients(phase) && reduction_.reduced(unit)) {
      throw Error("a backward pass adds to gradients of \"" + unit.uses.front()->segments.front().name +
                  "\" that have been reduced over the ranks already: ctx.last_microbatch must be false in all passes "
                  "of a step but the last");
    }
  }
  /// Takes them away, and reduces what is complete.
  template <class Hooks>
  void leave(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch) {
    hide(hooks.compute, unit, phase);
    if (!completes_gradients(phase)) return;
    reduction_.backward(unit);
    if (last_microbatch && side_stream_) launch(hooks.compute, hooks.groups, false);
  }
  /// An exception has left the unit.
  template <class Hooks>
  void abandon(Hooks& hooks, Unit& unit, Phase phase) {
    hide(hooks.compute, unit, phase);
  }

  /// The time of a call of the model; outside of it all parameters are there.
  [[nodiscard]] auto call() {
    struct Call {
      DataParallelEngine& engine;
      explicit Call(DataParallelEngine& e) : engine(e) {
        if (engine.visibility_) engine.visibility_->hide_all();
      }
      Call(const Call&) = delete;
      Call& operator=(const Call&) = delete;
      ~Call() {
        if (engine.visibility_) engine.storage_.show(engine.layout_);
      }
    };
    return Call(*this);
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
    if (ranks_ > 1) {
      launch(compute, ctx.groups(), true);
      if (side_stream_) {
        side_stream_->record(reduced_);
        compute.wait(reduced_);
      }
    }
    ++steps_;
    square(compute);
    if (parts_ > 1) {
      const std::span<double> parts(&scale_.squares_of_parts, 1);
      ctx.groups()[Group::tp].all_reduce(compute, parts, parts, sum, Purpose::norm);
    }
    compute.enqueue(
        [scale = &scale_, divisor = weight_ > 0 ? weight_ : 1, clip = options_.clip] { scale->finish(divisor, clip); });
    storage_.for_each_type([&](auto& arrays) {
      update_runs(compute, optimizer, arrays, {.step = steps_, .learning_rate = learning_rate}, &scale_);
    });
    reduction_.reset();
    weight_ = 0;
  }

  /// Forgets the gradients since the last update; all ranks do, after the same backward passes.
  template <class Ctx>
  void discard(Ctx& ctx) {
    auto& compute = ctx.stream();
    if (side_stream_) {
      side_stream_->record(reduced_);
      compute.wait(reduced_);
    }
    storage_.for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      compute.enqueue(
          [data = arrays.gradients.data(), size = arrays.gradients.size()] { std::fill_n(data, size, T(0)); });
    });
    reduction_.reset();
    weight_ = 0;
  }

  /// Compares layout and values with those of rank 0 of the group.
  /// @throws ConfigError on all ranks if they differ
  template <class Ctx>
  void compare(Ctx& ctx) {
    auto& group = ctx.groups()[Group::rdp];
    if (group.size() == 1) return;
    ctx.stream().synchronize();
    const std::uint64_t own = digest();
    std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
    group.all_gather(ctx.stream(), std::span(&own, 1), all, Purpose::control);
    ctx.stream().synchronize();
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      throw ConfigError("rank " + std::to_string(r) +
                        " of the RDP group has other parameters than rank 0: names, "
                        "shapes, seed and values must be equal on all ranks");
    }
  }

  /// The storage.
  [[nodiscard]] FlatStorage& storage() noexcept { return storage_; }
  /// The plan of the reductions.
  [[nodiscard]] const GradientReduction& reduction() const noexcept { return reduction_; }
  /// The norm of the last gradient, once the compute stream has come to it.
  [[nodiscard]] double gradient_norm() const noexcept { return scale_.norm; }
  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) noexcept { steps_ = steps; }
  /// The gradients since the last update are sums over `weight` more samples or tokens, which the update divides by.
  void weigh(double weight) noexcept { weight_ += weight; }

 private:
  /// One tensor-parallel rank has nobody to sum with: its parameters are reduced as if nothing could be cut.
  static Layout& for_degree(Layout& layout, int tp) noexcept {
    if (tp > 1) return layout;
    for (Block& block : layout.blocks()) block.summed_over_tp = false;
    return layout;
  }
  template <class Stream>
  void square(Stream& compute) {
    compute.enqueue([scale = &scale_] { scale->squares = scale->squares_of_parts = 0; });
    storage_.for_each_type([&](auto& arrays) {
      if (parts_ == 1) {
        compute.enqueue([scale = &scale_, data = arrays.gradients.data(), size = arrays.gradients.size()] {
          scale->squares += sum_of_squares(data, size);
        });
        return;
      }
      for (const FlatRun& run : arrays.runs) {
        compute.enqueue([squares = run.cut ? &scale_.squares_of_parts : &scale_.squares,
                         data = arrays.gradients.data() + run.begin,
                         size = run.end - run.begin] { *squares += sum_of_squares(data, size); });
      }
    });
  }
  template <class Stream>
  void show(Stream& stream, Unit& unit, Phase phase) {
    if (!visibility_) return;
    for (Block* b : unit.uses) visibility_->show(stream, *b, phase != Phase::forward);
  }
  template <class Stream>
  void hide(Stream& stream, Unit& unit, Phase phase) {
    if (!visibility_) return;
    for (Block* b : unit.uses) visibility_->hide(stream, *b, phase != Phase::forward);
  }
  template <class Groups>
  void launch(HostStream& compute, Groups& groups, bool all) {
    HostStream& reduce = side_stream_ ? *side_stream_ : compute;
    reduction_.launch(compute, reduce, all, [&](auto gradients, std::size_t bucket) {
      const bool summed = reduction_.buckets()[bucket].over_tp == OverTp::summands;
      auto& group = groups.beside(comm::Lane::reduce, summed ? Group::dp : Group::rdp);
      group.all_reduce(reduce, gradients, gradients, sum, Purpose::gradient);
    });
  }
  [[nodiscard]] std::uint64_t digest() {
    std::uint64_t hash = stream_of("");
    storage_.for_each_segment([&](const Block::Segment& s, auto values, auto) {
      const auto add = [&](std::string_view bytes) { hash = hash * 1099511628211u ^ stream_of(bytes); };
      add(s.name);
      add(to_string(s.declaration->shape()));
      add({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    });
    return hash;
  }

  Layout& layout_;
  DataParallelOptions options_;
  FlatStorage storage_;
  GradientReduction reduction_;
  std::optional<CheckedVisibility> visibility_;
  int ranks_;  // that reduce gradients
  int parts_;  // over which parameters are cut
  GradientScale scale_;
  HostEvent reduced_;
  std::int64_t steps_ = 0;
  double weight_ = 0;
  std::unique_ptr<HostStream> side_stream_;  // reductions beside the computation; ends before what its tasks use
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
      : Strategy<M, Opt, DataParallelEngine>(ctx, std::move(model), std::move(optimizer), options) {}

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
