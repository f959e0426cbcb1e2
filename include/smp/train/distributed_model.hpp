// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A data-parallel model and its optimizer under the names that SageMaker's model-parallel library gives them, where
/// they mean the same. Conveniences: all they do is said with `DataParallel` and `step`, too.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <smp/error.hpp>
#include <smp/optim/adam.hpp>
#include <smp/optim/learning_rate.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/train/step.hpp>

namespace smp {

/// What a `DistributedModel` can be told; names and defaults are the reference's.
struct DistributedModelOptions {
  int microbatches = 1;                           ///< parts of a batch
  bool overlapping_allreduce = true;              ///< reduce gradients while backward goes on
  int backward_passes_per_step = 1;               ///< calls of `step` before the optimizer's
  bool average_grads_across_microbatches = true;  ///< false: sum them, for a loss that is a sum over samples
  double bucket_cap_mb = 25;                      ///< largest bucket of gradients, in MiB
  double gradient_clipping = 0;                   ///< largest L2 norm; 0: any
};

/// A model whose gradients are reduced over the ranks.
///
///     smp::DistributedModel model(worker, Net{}, smp::optim::AdaDelta{}, {.microbatches = 4});
///     smp::DistributedOptimizer optimizer(model, {.peak = 4.0});
///     for (...) {
///       const double loss = model.step(Loss{}, inputs, targets).mean();
///       optimizer.step();
///     }
/// @tparam W a `Worker`, which outlives the model
template <class W, class M, class Opt = optim::AdamW>
class DistributedModel {
 public:
  using Model = DataParallel<M, Opt>;  ///< what does the work
  using Input = typename M::Input;     ///< of the model
  using Output = typename M::Output;   ///< of the model

  /// Places `module`; all ranks call it with equal modules.
  /// @throws ConfigError as `DataParallel`
  DistributedModel(W& worker, M module, Opt optimizer = {}, const DistributedModelOptions& options = {})
      : context_(worker.context()),
        options_(checked(options)),
        model_(context_, std::move(module), std::move(optimizer),
               {.clip = options.gradient_clipping,
                .bucket_bytes = static_cast<std::size_t>(options.bucket_cap_mb * 1024 * 1024),
                .overlap = options.overlapping_allreduce}) {}

  /// Forward, loss and backward of this rank's batch: one of `backward_passes_per_step`.
  /// @throws ConfigError if the optimizer is due; as `smp::step`
  template <class Loss, class Targets, class Count = EqualSamples>
  auto step(Loss&& loss, const Input& inputs, const Targets& targets, const Count& count = {}) {
    const StepOptions options = next_pass();
    return smp::step(context_, model_, std::forward<Loss>(loss), inputs, targets, options, count);
  }
  /// What the model makes of `inputs`, by micro-batch, without gradients.
  [[nodiscard]] StepOutput<Output> operator()(const Input& inputs) {
    return predict(context_, model_, inputs, options_.microbatches);
  }

  /// Trains on what `next()` returns, an optional pair of inputs and targets, until it has nothing on any rank. A rank
  /// that has nothing any more takes part in what the others do. Samples count alike, on whatever rank they are.
  /// @param each called with the loss of each step, on all ranks alike
  /// @throws ConfigError if there are several passes to a step
  template <class Loss, class Optimizer, class Next, class Each>
  void join(Loss&& loss, Optimizer& optimizer, Next next, Each each) {
    using L = typename std::remove_cvref_t<Loss>::Output;
    if (options_.backward_passes_per_step != 1) {
      throw ConfigError("join needs backward_passes_per_step 1, found " +
                        std::to_string(options_.backward_passes_per_step) + ": a rank may end between two passes");
    }
    for (;;) {
      const auto batch = next();
      if (ranks_with(batch.has_value()) == 0) return;
      const StepLoss<L> result = batch ? step(loss, batch->first, batch->second, CountSamples{})
                                       : step_without_batch<L>(context_, model_, next_pass());
      optimizer.step();
      each(result.mean());
    }
  }

  /// Calls `f(name, shape, values, gradients)` for each parameter of this rank.
  template <class F>
  void local_named_parameters(F&& f) {
    model_.for_each_parameter(std::forward<F>(f));
  }
  /// Calls `f(values, gradients)` for each parameter of this rank.
  template <class F>
  void local_parameters(F&& f) {
    model_.for_each_parameter(
        [&](std::string_view, const Shape&, auto values, auto gradients) { f(values, gradients); });
  }
  /// True if the parameter is cut over tensor-parallel ranks: never, in a data-parallel model.
  [[nodiscard]] static constexpr bool is_distributed_parameter(std::string_view /*name*/) noexcept { return false; }

  /// Lets `hook()` be called after each step of the optimizer, in the order of registration, until the handle is gone
  /// or `remove()`d.
  template <class F>
  [[nodiscard]] auto register_post_step_hook(F hook) {
    std::shared_ptr<Hook> held = std::make_shared<HookOf<F>>(std::move(hook));
    std::erase_if(hooks_, [](const std::weak_ptr<Hook>& h) { return h.expired(); });
    hooks_.push_back(held);
    return Handle(std::move(held));
  }

  /// The module inside.
  [[nodiscard]] M& get_module() noexcept { return model_.module(); }
  /// The strategy inside.
  [[nodiscard]] Model& strategy() noexcept { return model_; }
  /// Stream, memory and communicators.
  [[nodiscard]] typename W::Context& context() noexcept { return context_; }

  /// What is called after each step of the optimizer.
  struct Hook {
    Hook() = default;
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;
    virtual ~Hook() = default;
    /// Calls it.
    virtual void call() = 0;
  };
  /// The end of a registration.
  class Handle {
   public:
    /// Of a hook.
    explicit Handle(std::shared_ptr<Hook> hook) : hook_(std::move(hook)) {}
    Handle(Handle&&) noexcept = default;
    Handle& operator=(Handle&&) = delete;
    ~Handle() = default;
    /// The hook is not called any more.
    void remove() { hook_.reset(); }

   private:
    std::shared_ptr<Hook> hook_;
  };

 private:
  template <class F>
  struct HookOf final : Hook {
    explicit HookOf(F f) : function(std::move(f)) {}
    void call() override { function(); }
    F function;
  };

  template <class Model>
  friend class DistributedOptimizer;

  static const DistributedModelOptions& checked(const DistributedModelOptions& o) {
    if (o.backward_passes_per_step < 1) {
      throw ConfigError("backward_passes_per_step is " + std::to_string(o.backward_passes_per_step) +
                        ", but must be at least 1");
    }
    return o;
  }
  StepOptions next_pass() {
    if (pass_ == options_.backward_passes_per_step) {
      throw ConfigError("the optimizer is due after " + std::to_string(pass_) + " backward passes: call its step()");
    }
    return {.microbatches = options_.microbatches,
            .passes = options_.backward_passes_per_step,
            .pass = pass_++,
            .average = options_.average_grads_across_microbatches};
  }
  /// Calls the hooks, after the update that ends the passes.
  double finish(double learning_rate) {
    if (pass_ != options_.backward_passes_per_step) {
      throw ConfigError("the optimizer's step() comes after " + std::to_string(options_.backward_passes_per_step) +
                        " backward passes, but there have been " + std::to_string(pass_));
    }
    const double norm = model_.step(context_, learning_rate);
    pass_ = 0;
    for (std::size_t i = 0; i < hooks_.size(); ++i) {  // a hook may register another
      if (const std::shared_ptr<Hook> hook = hooks_[i].lock()) hook->call();
    }
    return norm;
  }
  int ranks_with(bool batch) {
    std::int64_t ranks = batch ? 1 : 0;
    const std::span<std::int64_t> one(&ranks, 1);
    context_.groups()[Group::dp].all_reduce(context_.stream(), one, one, smp::sum, Purpose::control);
    context_.stream().synchronize();
    return static_cast<int>(ranks);
  }

  typename W::Context context_;
  DistributedModelOptions options_;
  Model model_;
  int pass_ = 0;
  std::vector<std::weak_ptr<Hook>> hooks_;  // their handles own them
};

/// Updates a `DistributedModel`, which outlives it, with a learning rate that is a function of the step.
template <class Model>
class DistributedOptimizer {
 public:
  /// For `model`.
  explicit DistributedOptimizer(Model& model, optim::LearningRate learning_rate = {})
      : model_(&model), learning_rate_(learning_rate) {}

  /// Reduces, clips, updates, clears the gradients, and calls the model's post-step hooks.
  /// @return the L2 norm of the gradient before it was clipped
  /// @throws ConfigError if the model has not had its backward passes
  double step() { return model_->finish(learning_rate()); }
  /// Of the next step.
  [[nodiscard]] double learning_rate() const noexcept { return learning_rate_(model_->strategy().steps()); }
  /// Forgets gradients. There is no need to: `step` leaves none.
  void zero_grad() {
    model_->strategy().discard(model_->context());
    model_->pass_ = 0;
  }

 private:
  Model* model_;
  optim::LearningRate learning_rate_;
};

}  // namespace smp
