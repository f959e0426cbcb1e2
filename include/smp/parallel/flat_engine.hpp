// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What strategies have in common that keep whole values and whole gradients on every rank: when gradients are reduced,
/// what a unit sees, what is counted up to an update.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
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
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/parallel/checked_visibility.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_reduction.hpp>
#include <smp/parallel/parameter_update.hpp>
#include <smp/parallel/tied_stages.hpp>
#include <smp/topology.hpp>

namespace smp {

/// The base of an engine over `FlatStorage`. Reductions, and what else need not hold up the computation, run in a
/// stream beside it, if communicators work there.
class FlatEngine {
 public:
  FlatEngine(const FlatEngine&) = delete;
  FlatEngine& operator=(const FlatEngine&) = delete;

  /// An exception has left the unit.
  template <class Hooks>
  void abandon(Hooks& hooks, Unit& unit, Phase phase) {
    hide(hooks.compute, unit, phase);
  }

  /// The time of a call of the model; outside of it all parameters are there.
  class Call {
   public:
    /// It begins.
    explicit Call(FlatEngine& engine) : engine_(engine) {
      if (engine_.visibility_) engine_.visibility_->hide_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      if (engine_.visibility_) engine_.storage_.show(engine_.layout_);
    }

   private:
    FlatEngine& engine_;
  };
  /// Begins a call.
  [[nodiscard]] Call call() { return Call(*this); }

  /// Forgets the gradients since the last update, and what tasks have thrown; all ranks do, after the same backward
  /// passes. Waits for what is under way: the host may be about to write where its tasks do.
  template <class Ctx>
  void discard(Ctx& ctx) {
    forget(ctx.stream());
    if (side_stream_) forget(*side_stream_);
    storage_.for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      ctx.stream().enqueue(
          [data = arrays.gradients.data(), size = arrays.gradients.size()] { std::fill_n(data, size, T(0)); });
    });
    begin_step();
  }

  /// Compares layout and values with those of rank 0 of the group.
  /// @throws ConfigError on all ranks if they differ
  template <class Ctx>
  void compare(Ctx& ctx) {
    if (ctx.groups()[Group::rdp].size() == 1) return;
    ctx.stream().synchronize();
    compare_over(ctx, Group::rdp, digest());
  }

  /// The storage.
  [[nodiscard]] FlatStorage& storage() noexcept { return storage_; }
  /// The order of the reductions.
  [[nodiscard]] const GradientReduction& reduction() const noexcept { return reduction_; }
  /// The norm of the last gradient, once the compute stream has come to it.
  [[nodiscard]] double gradient_norm() const noexcept { return scale_.norm; }
  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) noexcept { steps_ = steps; }
  /// The gradients since the last update are sums over `weight` more samples or tokens, which the update divides by.
  void weigh(double weight) noexcept { weight_ += weight; }

 protected:
  /// For the model that `layout` was made of.
  /// @param states of the optimizer that are kept for all parameters
  /// @param plain the model knows nothing of tensor-parallel ranks: each of them has samples of its own
  template <class Ctx, class Options>
  FlatEngine(Ctx& ctx, Layout& layout, int states, bool plain, const Options& options)
      : FlatEngine(ctx, layout, states, plain, options, options.bucket_bytes, [](const Block&) { return true; }) {
    check_visibility(ctx.memory(), options.checked);
  }
  /// For those blocks that are `here(block)` whole.
  template <class Ctx, class Options, class Here>
  FlatEngine(Ctx& ctx, Layout& layout, int states, bool plain, const Options& options, std::size_t bucket_bytes,
             Here here)
      : layout_(layout),
        ties_(ctx, layout_),
        storage_(layout, ctx.memory(), states, here),
        reduction_(layout.blocks().size(), storage_.gradients(plain), bucket_bytes),
        ranks_(ctx.groups()[Group::dp].size()),
        clip_(options.clip) {
    storage_.initialise(ctx.seed());
    prepare(ctx, {{comm::Lane::reduce, Group::rdp}, {comm::Lane::reduce, Group::dp}});
    for (const Block& block : layout.blocks()) {
      if (block.shared_by_stages) reduction_.hold(block);
    }
    if (options.compare_initial_values) compare(ctx);
    if (ranks_ > 1 && options.overlap && comm::works_in_any_thread(ctx.groups()[Group::rdp])) {
      side_stream_ = &ctx.groups().stream(comm::Lane::reduce);
    }
  }
  ~FlatEngine() { end_streams(); }
  /// Waits for what runs beside the computation, in `others` too, and for the computation, for who owns something that
  /// they use.
  void end_streams(std::initializer_list<HostStream*> others = {}) noexcept {
    if (side_stream_ != nullptr) side_stream_->settle();
    for (HostStream* stream : others) {
      if (stream != nullptr) stream->settle();
    }
    if (compute_ != nullptr) compute_->settle();
  }
  /// Waits for a stream, whatever comes of it.
  template <class Stream>
  static void forget(Stream& stream) {
    try {
      stream.synchronize();
    } catch (...) {
      // Whoever discards has seen it, or does not mind.
    }
  }

  /// Shows the parameters of a unit.
  /// @throws Error for a backward after the last one of a step
  template <class Hooks>
  void begin_unit(Hooks& hooks, Unit& unit, Phase phase) {
    compute_ = &hooks.compute;
    show(hooks.compute, unit, phase);
    if (phase == Phase::forward && hooks.training && !hooks.in_backward) reduction_.forward(unit);
    if (completes_gradients(phase)) reduction_.expect_open(unit);
  }
  /// Takes them away, and calls `f(stream, gradients, bucket)` for what is complete.
  template <class Hooks, class F>
  void end_unit(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch, F&& reduce) {
    hide(hooks.compute, unit, phase);
    if (!completes_gradients(phase)) return;
    reduction_.backward(unit);
    if (last_microbatch && side_stream_) launch(hooks.compute, false, reduce);
  }

  /// What sums a bucket over the ranks that have summands of it.
  template <class Groups>
  auto all_reduce(Groups& groups) {
    return [this, &groups](auto& stream, auto gradients, std::size_t bucket) {
      const bool summed = reduction().buckets()[bucket].over_tp == OverTp::summands;
      auto& group = groups.beside(comm::Lane::reduce, summed ? Group::dp : Group::rdp);
      group.all_reduce(stream, gradients, gradients, sum, Purpose::gradient);
    };
  }

  /// Sums the gradients of what several stages of a pipeline have whole, before they are reduced.
  template <class Ctx>
  void sum_over_stages(Ctx& ctx) {
    ties_.sum(ctx, [&](const Block& block, auto&& f) { storage_.visit_gradient(block, f); });
  }
  /// What stages have in common.
  [[nodiscard]] const TiedStages& ties() const noexcept { return ties_; }

  /// Calls `f(stream, gradients, bucket)` for what is left. The compute stream goes on when all is reduced.
  template <class F>
  void finish_reduction(HostStream& compute, F&& reduce) {
    if (ranks_ == 1) return;
    launch(compute, true, reduce);
    if (!side_stream_) return;
    side_stream_->record(side_done_);
    compute.wait(side_done_);
  }

  /// Enqueues the norm and the factor of the gradients, of which `scale()` has the squares of this stage.
  /// @return the numbers of the update
  template <class Ctx>
  optim::StepNumbers finish_scale(Ctx& ctx, double learning_rate) {
    auto& compute = ctx.stream();
    compute_ = &compute;
    auto& stages = ctx.groups()[Group::pp];
    if (stages.size() > 1) {
      compute.enqueue([scale = &scale_] { scale->squares += std::exchange(scale->squares_of_parts, 0.0); });
      const std::span<double> squares(&scale_.squares, 1);
      stages.all_reduce(compute, squares, squares, sum, Purpose::norm);
    }
    compute.enqueue(
        [scale = &scale_, divisor = weight_ > 0 ? weight_ : 1, clip = clip_] { scale->finish(divisor, clip); });
    return {.step = ++steps_, .learning_rate = learning_rate};
  }

  /// Makes communicators that will be needed, on all ranks alike.
  template <class Ctx>
  static void prepare(Ctx& ctx, std::initializer_list<std::pair<comm::Lane, Group>> needed) {
    for (const auto& [lane, kind] : needed) (void)ctx.groups().beside(lane, kind);
  }
  /// Compares a hash of a rank's parameters with that of rank 0 of a group.
  /// @throws ConfigError on all ranks if they differ
  template <class Ctx>
  static void compare_over(Ctx& ctx, Group kind, std::uint64_t own) {
    auto& group = ctx.groups()[kind];
    std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
    group.all_gather(ctx.stream(), std::span<const std::uint64_t>(&own, 1), all, Purpose::control);
    ctx.stream().synchronize();
    for (std::size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      throw ConfigError("rank " + std::to_string(r) + " of the " + std::string(to_string(kind)) +
                        " group has other parameters than rank 0: names, shapes, seed and values must be equal on all "
                        "ranks");
    }
  }
  /// Lets units see their parameters at changing places, if `checked`.
  void check_visibility(Memory& memory, bool checked) {
    if (checked) visibility_.emplace(layout_, storage_, memory);
  }
  /// Nothing has been added to the gradients.
  void begin_step() noexcept {
    reduction_.reset();
    weight_ = 0;
  }

  /// The layout.
  [[nodiscard]] Layout& layout() noexcept { return layout_; }
  /// Ranks that reduce gradients, in all.
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// What gradients are multiplied by, where the compute stream is.
  [[nodiscard]] GradientScale& scale() noexcept { return scale_; }
  /// What runs beside the computation, or `compute` if nothing does.
  [[nodiscard]] HostStream& beside(HostStream& compute) noexcept { return side_stream_ ? *side_stream_ : compute; }

 private:
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
  template <class F>
  void launch(HostStream& compute, bool all, F& reduce) {
    HostStream& stream = beside(compute);
    reduction_.launch(compute, stream, all,
                      [&](auto gradients, std::size_t bucket) { reduce(stream, gradients, bucket); });
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
  TiedStages ties_;
  FlatStorage storage_;
  GradientReduction reduction_;
  std::optional<CheckedVisibility> visibility_;
  int ranks_;
  double clip_;
  GradientScale scale_;
  HostEvent side_done_;
  std::int64_t steps_ = 0;
  double weight_ = 0;
  HostStream* compute_ = nullptr;      // that has been used last
  HostStream* side_stream_ = nullptr;  // null: nothing runs beside the computation
};

}  // namespace smp
