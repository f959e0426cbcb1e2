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
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
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
#include <smp/tags.hpp>
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
        reduction_(layout, storage_, options.bucket_bytes, plain),
        ranks_(ctx.groups()[Group::dp].size()),
        parts_(plain ? 1 : ctx.groups()[Group::tp].size()) {
    if (ctx.groups()[Group::pp].size() > 1) {
      throw ConfigError("DataParallel holds all layers of a model: its topology has pp 1");
    }
    storage_.initialise(ctx.seed());
    if (options.checked) visibility_.emplace(layout, storage_, ctx.memory());
    if (ranks_ > 1 && options.overlap && comm::works_in_any_thread(ctx.groups()[Group::rdp])) {
      side_stream_ = std::make_unique<HostStream>(HostStream::Mode::worker);
    }
  }

  /// What a context is given for the time of a call. Hears of units.
  template <class Stream, class Groups>
  struct Hooks {
    DataParallelEngine& engine;  ///< who is told
    Stream& compute;             ///< of the context
    Groups& groups;              ///< of the context
    bool training;               ///< a forward will be followed by a backward
    bool in_backward;            ///< a forward is a repetition

    /// Brings the parameters of a unit.
    /// @throws Error for a backward after the last one of a step
    void enter(Unit& unit, Phase phase) {
      engine.show(compute, unit, phase);
      if (phase == Phase::forward && training && !in_backward) engine.reduction_.forward(unit);
      if (completes_gradients(phase) && engine.reduction_.reduced(unit)) {
        throw Error("a backward pass adds to gradients of \"" + unit.uses.front()->segments.front().name +
                    "\" that have been reduced over the ranks already: ctx.last_microbatch must be false in all passes "
                    "of a step but the last");
      }
    }
    /// Takes them away, and reduces what is complete.
    void leave(Unit& unit, Phase phase, bool last_microbatch) {
      engine.hide(compute, unit, phase);
      if (!completes_gradients(phase)) return;
      engine.reduction_.backward(unit);
      if (last_microbatch && engine.side_stream_) engine.launch(compute, groups, false);
    }
    /// An exception has left the unit.
    void abandon(Unit& unit, Phase phase) { engine.hide(compute, unit, phase); }
  };

  /// Runs `f(context)` with hooks, in the root unit.
  template <class Ctx, class F>
  decltype(auto) run(Ctx& ctx, Phase phase, F&& f) {
    using Stream = std::remove_cvref_t<decltype(ctx.stream())>;
    using Groups = std::remove_cvref_t<decltype(ctx.groups())>;
    Hooks<Stream, Groups> hooks{*this, ctx.stream(), ctx.groups(), ctx.training, phase != Phase::forward};
    auto inner = ctx.with(hooks);
    struct Visible {
      DataParallelEngine& engine;
      explicit Visible(DataParallelEngine& e) : engine(e) {
        if (engine.visibility_) engine.visibility_->hide_all();
      }
      Visible(const Visible&) = delete;
      Visible& operator=(const Visible&) = delete;
      ~Visible() {
        if (engine.visibility_) engine.storage_.show(engine.layout_);
      }
    } const outside_of_calls(*this);
    return inner.unit(&layout_.units().front(), phase, [&]() -> decltype(auto) { return f(inner); });
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
    reduction_.launch(compute, side_stream_ ? *side_stream_ : compute, groups, all);
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

/// A model on every rank of the RDP group. Owns the model, which stays where it is, its parameters, gradients and the
/// state of the optimizer. A parameter that a step, or a rank, has not used counts with the gradient zero: it is
/// reduced with the others, and the optimizer treats it like any other (momentum and decay go on), on all ranks alike.
///
///     smp::DataParallel trainer(ctx, Net{}, smp::optim::AdamW{}, {.clip = 1});
///     smp::step(ctx, trainer, loss, inputs, targets);
///     const double norm = trainer.step(ctx, learning_rate);
/// @tparam M a module
/// @tparam Opt an optimizer of `smp::optim`, or a type of yours with `states()` and `update(range, numbers)`
template <class M, class Opt = optim::AdamW>
class DataParallel {
  static_assert(ModuleTypes<M>,
                "smp::DataParallel: the model is no module; give it the nested types Input, Output and "
                "Saved");
  static_assert(optim::Optimizer<Opt>,
                "smp::DataParallel: the second argument is no optimizer; it needs 'int states() const' and "
                "'update(const optim::Range<T>&, const optim::StepNumbers&) const' for T = float and double");

 public:
  using Input = typename M::Input;    ///< of the model
  using Output = typename M::Output;  ///< of the model
  using Saved = typename M::Saved;    ///< of the model

  /// Places the parameters of `model`, with initial values that are a function of the seed and their names. All ranks
  /// of the group call it with equal models.
  /// @throws ConfigError for options that cannot work; on all ranks if the models are compared and differ
  template <class Ctx>
  DataParallel(Ctx& ctx, M model, Opt optimizer = {}, DataParallelOptions options = {})
      : model_(std::move(model)),
        layout_(model_),
        optimizer_(optimizer),
        engine_(std::make_unique<DataParallelEngine>(ctx, layout_, optimizer_.states(), is_plain<M>, options)) {
    if (options.compare_initial_values) engine_->compare(ctx);
  }
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// As the model.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    return engine_->run(ctx, Phase::forward, [&]<class Inner>(Inner& inner) {
      static_assert(expect_module<M, Inner>());
      return model_.forward(inner, x, saved);
    });
  }
  /// As the model. In the last micro-batch (`ctx.last_microbatch`) gradients are reduced as they are completed.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return engine_->run(ctx, Phase::backward,
                        [&](auto& inner) { return model_.backward(inner, std::move(dy), saved); });
  }
  /// The first part of the model's backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return engine_->run(ctx, Phase::backward_input,
                        [&](auto& inner) { return smp::backward_input(model_, inner, std::move(dy), saved); });
  }
  /// The second part.
  void backward_params(auto& ctx, Saved& saved) {
    engine_->run(ctx, Phase::backward_params, [&](auto& inner) { smp::backward_params(model_, inner, saved); });
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
    engine_->update(ctx, optimizer_, learning_rate);
  }
  /// Forgets the gradients since the last update, after an exception or because they are no good; all ranks do.
  template <class Ctx>
  void discard(Ctx& ctx) {
    engine_->discard(ctx);
  }
  /// The norm of the last update, once the stream has come to it.
  [[nodiscard]] double gradient_norm() const noexcept { return engine_->gradient_norm(); }

  /// Updates done so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return engine_->steps(); }
  /// Goes on after `steps` updates.
  void set_steps(std::int64_t steps) noexcept { engine_->set_steps(steps); }
  /// The gradients since the last update are sums over `weight` more samples or tokens (of all ranks), not means: the
  /// update divides them by all of it.
  void weigh(double weight) noexcept { engine_->weigh(weight); }

  /// Calls `f(name, shape, values, gradients)` for each parameter, with spans of its type; a frozen one has no
  /// gradients. Tied parameters are one. The values may be changed.
  template <class F>
  void for_each_parameter(F&& f) {
    engine_->storage().for_each_segment([&](const Block::Segment& s, auto values, auto gradients) {
      f(std::string_view(s.name), s.declaration->local_shape(), values, gradients);
    });
  }
  /// Number of all-reduces that one update needs.
  [[nodiscard]] std::size_t buckets() const noexcept { return engine_->reduction().size(); }
  /// Units and blocks of the model.
  [[nodiscard]] Layout& layout() noexcept { return layout_; }
  /// The model.
  [[nodiscard]] M& module() noexcept { return model_; }
  /// Room for what one micro-batch saves, for whoever runs one at a time: what it has allocated is kept.
  [[nodiscard]] Saved& saved() noexcept { return saved_; }

 private:
  M model_;
  Layout layout_;
  Opt optimizer_;
  std::unique_ptr<DataParallelEngine> engine_;
  Saved saved_{};
};

}  // namespace smp
