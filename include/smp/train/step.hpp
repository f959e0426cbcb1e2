// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One pass of training: a batch in micro-batches, forward, loss and backward, with gradients that are those of the
/// mean over all samples, whatever the batch is cut into. The update is the strategy's `step`.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/comm/call.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/tags.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>
#include <smp/train/batch.hpp>
#include <smp/train/step_output.hpp>

namespace smp {

/// How a batch is run.
struct StepOptions {
  int microbatches = 1;  ///< parts that are run one after the other; a batch with fewer samples has fewer
  int passes = 1;        ///< calls of `step` before the update: gradient accumulation
  int pass = 0;          ///< which of them this is
  /// The tensor-parallel ranks are given the same samples. Else each has its own, and a model that is cut over them is
  /// given those of all, which are gathered first.
  bool prescaled = false;
  bool average = true;  ///< false: gradients of micro-batches and passes are summed, for a loss that is a sum already
  /// Number, in the global batch, of the batch's first sample; else that of `BatchPlan::samples_of`: every rank reads
  /// consecutive samples, pass after pass.
  std::optional<std::uint64_t> first_sample{};
};

/// Every micro-batch counts by its samples, and all ranks and passes have the same number of them.
struct EqualSamples {};

/// Every micro-batch counts by its samples, and ranks and passes may have different numbers, or none.
struct CountSamples {
  /// The weight of a micro-batch.
  template <class Targets>
  [[nodiscard]] double operator()(const Targets& targets) const {
    return static_cast<double>(batch_size(targets));
  }
};

/// Every micro-batch counts by its targets that are not ignored: for a loss that is a mean over tokens, of which
/// sequences have different numbers.
struct CountTargets {
  std::int32_t ignored = -100;  ///< what stands for a target that does not count
  /// The weight of a micro-batch.
  [[nodiscard]] double operator()(const Ids& targets) const noexcept {
    double count = 0;
    for (const std::int32_t t : targets) count += t != ignored ? 1 : 0;
    return count;
  }
};

/// The tensor of a value that may be distributed.
template <class X>
struct LocalT {
  using type = X;  ///< itself
};
/// As a type.
template <class X>
using LocalOf = typename LocalT<X>::type;
template <class T, class Tp, class Cp>
struct LocalT<Dist<T, Tp, Cp>> {
  using type = T;
};

/// The loss of a pass.
template <TensorLike L>
struct StepLoss {
  StepOutput<L> microbatches;  ///< of this rank
  double sum = 0;              ///< over all ranks, each micro-batch times its weight
  double weight = 0;           ///< over all ranks: samples, or targets
  /// The mean over all samples, or targets, of all ranks.
  [[nodiscard]] double mean() const noexcept { return sum / weight; }
};

/// Says in words why a loss does not fit.
template <class Model, class Loss, class Targets>
consteval bool expect_loss() {
  constexpr bool fits = std::same_as<typename Loss::Input, std::tuple<typename Model::Output, Targets>>;
  static_assert(fits,
                "smp::step: the loss must take what the model gives and the targets: its Input is "
                "std::tuple<Model::Output, Targets>");
  static_assert(TensorLike<LocalOf<typename Loss::Output>>, "smp::step: the loss must return a tensor, of one element");
  using D = TagsOf<typename Loss::Output>;
  if constexpr (!std::same_as<D, NoTags>) {
    constexpr Spread kind = D::tp::on.kind;
    static_assert(kind != Spread::partial,
                  "smp::step: the loss is still a sum over tp (Partial); end the model with AllReduce");
    static_assert(kind != Spread::shard,
                  "smp::step: this loss is the mean over one tp rank's slice; a mean of means is not the mean; let the "
                  "loss give local sums (Partial) and AllReduce them");
    static_assert(
        kind != Spread::replicated,
        "smp::step: this loss is Replicated: its gradient would be counted once per tp rank; let the loss end "
        "Invariant");
  }
  return fits;
}

/// The ranks whose samples are different: those of the RDP group if the tensor-parallel ranks compute one loss
/// together, which its type says, else those of the DP group.
template <class Loss>
[[nodiscard]] constexpr Group feeds_of() {
  using D = TagsOf<typename Loss::Output>;
  if constexpr (!std::same_as<D, NoTags>) {
    if (D::tp::on.kind == Spread::invariant) return Group::rdp;
  }
  return Group::dp;
}

/// The samples of all tensor-parallel ranks, one rank's after the other's. Waits for them: the host reads targets, to
/// count and to check them.
template <class Ctx, class V>
[[nodiscard]] V gathered_over_tp(Ctx& ctx, const V& batch) {
  auto& tp = ctx.groups()[Group::tp];
  V all = batch;
  for_each_tensor(all, [&]<class T>(T& tensor) {
    const T own = tensor;
    const Shape& shape = TensorTraits<T>::shape(own);
    tensor = TensorTraits<T>::make(ctx.memory(), shape.with(0, shape[0] * tp.size()));
    tp.all_gather(ctx.stream(), TensorTraits<T>::data(own), TensorTraits<T>::data(tensor), Purpose::activation);
  });
  ctx.stream().synchronize();
  return all;
}

/// True if the loss is one of all tensor-parallel ranks, and each has samples of its own.
template <class Loss, class Ctx>
[[nodiscard]] bool gathers_samples(Ctx& ctx, bool prescaled) {
  return feeds_of<Loss>() == Group::rdp && !prescaled && ctx.groups()[Group::tp].size() > 1;
}

/// Calls `f(range, last)` for each micro-batch of a batch.
template <class F>
void for_each_microbatch(std::int64_t samples, int microbatches, F&& f) {
  if (microbatches < 1) {
    throw ConfigError("microbatches is " + std::to_string(microbatches) + ", but must be at least 1");
  }
  const int parts = samples < microbatches ? static_cast<int>(samples) : microbatches;
  for (int part = 0; part < parts; ++part) f(microbatch(samples, parts, part), part + 1 == parts);
}

/// The sums of a pass, which the stream adds up.
class LossSums {
 public:
  /// Zeros.
  template <class Ctx>
  explicit LossSums(Ctx& ctx) : sums_(ctx.memory(), {count}, MemoryUse::buffer) {
    ctx.stream().enqueue([sums = sums_.data()] {
      for (int i = 0; i < count; ++i) sums[i] = 0;
    });
  }
  /// Adds a loss.
  template <class Ctx, class L>
  void add(Ctx& ctx, const L& loss, double weight) {
    const auto values = TensorTraits<L>::data(loss);
    if (values.size() != 1) {
      throw ConfigError("a loss is one number, but this one has the shape " + to_string(TensorTraits<L>::shape(loss)));
    }
    ctx.stream().enqueue([sums = sums_.data(), value = values.data(), weight] {
      sums[0] += weight * static_cast<double>(*value);
      sums[1] += weight;
    });
  }
  /// Adds the sums of all ranks, and waits for them.
  /// @throws ConfigError, on all ranks, if their weights must be `equal` and are not
  template <class Ctx>
  void finish(Ctx& ctx, Group feeds, bool equal) {
    auto& group = ctx.groups()[feeds];
    if (group.size() > 1) {
      ctx.stream().enqueue([sums = sums_.data()] { sums[2] = sums[1] * sums[1]; });
      group.all_reduce(ctx.stream(), sums_, sums_, smp::sum, Purpose::loss);
    }
    ctx.stream().synchronize();
    const double* sums = sums_.data();
    // Numbers are equal if and only if their squares sum up to the square of the sum, divided by how many they are.
    if (equal && group.size() > 1 && sums[2] * group.size() != sums[1] * sums[1]) {
      throw ConfigError("the ranks have batches of different sizes: " + std::to_string(std::as_const(sums_).data()[1]) +
                        " samples on " + std::to_string(group.size()) + " ranks; count them (smp::CountSamples)");
    }
  }
  /// All losses times their weights.
  [[nodiscard]] double sum() const noexcept { return sums_.data()[0]; }
  /// All weights.
  [[nodiscard]] double weight() const noexcept { return sums_.data()[1]; }

 private:
  static constexpr std::int64_t count = 3;  // sum, weight, square of a rank's weight
  TensorOf<double> sums_;
};

/// Runs forward, loss and backward of `inputs` and `targets`, this rank's share of the global batch. Gradients add up
/// until the model's own `step`.
/// @param count the weight of a micro-batch, a function of its targets; EqualSamples needs no communication before the
///   gradients are complete, others divide gradients when the parameters are updated
/// @throws ConfigError if the sizes do not fit, on all ranks if theirs differ and are not counted
template <class Ctx, class Model, class Loss, class Targets, class Count = EqualSamples>
StepLoss<LocalOf<typename std::remove_cvref_t<Loss>::Output>> step(Ctx ctx, Model& model, Loss&& loss,
                                                                   const typename Model::Input& inputs,
                                                                   const Targets& targets,
                                                                   const StepOptions& options = {},
                                                                   const Count& count = {}) {
  using L = std::remove_cvref_t<Loss>;
  static_assert(expect_loss<Model, L, Targets>());
  constexpr bool counted = !std::same_as<Count, EqualSamples>;
  const std::int64_t samples = batch_size(targets);
  if (batch_size(inputs) != samples) {
    throw ConfigError("a batch has " + std::to_string(batch_size(inputs)) + " inputs, but " + std::to_string(samples) +
                      " targets");
  }
  if (options.passes < 1 || options.pass < 0 || options.pass >= options.passes) {
    throw ConfigError("pass is " + std::to_string(options.pass) + ", but must be 0 to passes - 1, and passes is " +
                      std::to_string(options.passes));
  }
  if (gathers_samples<L>(ctx, options.prescaled)) {
    StepOptions all = options;
    all.prescaled = true;
    if (all.first_sample) *all.first_sample -= static_cast<std::uint64_t>(ctx.groups()[Group::tp].rank() * samples);
    return step(ctx, model, loss, gathered_over_tp(ctx, inputs), gathered_over_tp(ctx, targets), all, count);
  }
  auto& feeds = ctx.groups()[feeds_of<L>()];
  const auto batches_before = static_cast<std::uint64_t>(feeds.rank() * options.passes + options.pass);
  const std::uint64_t first_sample =
      options.first_sample.value_or(batches_before * static_cast<std::uint64_t>(samples));
  const double share = 1.0 / (static_cast<double>(samples) * feeds.size() * options.passes);  // of one sample

  using Value = LocalOf<typename L::Output>;
  StepLoss<Value> result{StepOutput<Value>(ctx.memory(), options.microbatches)};
  LossSums sums(ctx);
  auto& saved = model.saved();
  for_each_microbatch(samples, options.microbatches, [&](SampleRange range, bool last) {
    const Targets part = batch_slice(targets, range);
    double weight = static_cast<double>(range.size());
    if constexpr (counted) weight = count(part);
    if (weight == 0) return;  // its loss is a mean over nothing
    ctx.last_microbatch = last && options.pass + 1 == options.passes;
    ctx.position = {static_cast<std::uint64_t>(model.steps()), first_sample + static_cast<std::uint64_t>(range.first)};

    typename L::Saved loss_saved{};
    Value value =
        local<Value>(loss.forward(ctx, {model.forward(ctx, batch_slice(inputs, range), saved), part}, loss_saved));
    sums.add(ctx, value, weight);
    double seed = 1.0 / feeds.size();
    if (options.average) seed = counted ? weight : weight * share;
    auto gradient = TensorTraits<GradOf<Value>>::make(ctx.memory(), TensorTraits<Value>::shape(value));
    ctx.stream().enqueue([to = TensorTraits<GradOf<Value>>::data(gradient).data(), seed] {
      *to = static_cast<std::remove_cvref_t<decltype(*to)>>(seed);
    });
    auto dy = std::get<0>(loss.backward(ctx, spread<GradOf<typename L::Output>>(std::move(gradient)), loss_saved));
    loss_saved = {};
    (void)model.backward(ctx, std::move(dy), saved);
    saved = {};
    result.microbatches.add(std::move(value), range.size());
  });
  sums.finish(ctx, feeds_of<L>(), !counted);
  result.sum = sums.sum();
  result.weight = sums.weight();
  if (counted && options.average) model.weigh(result.weight);
  return result;
}

/// The part of a rank that has no samples in a pass in which the others count theirs: the sums of `step`.
/// @return the loss of the others
template <class L, class Ctx, class Model>
StepLoss<L> step_without_batch(Ctx ctx, Model& model, const StepOptions& options = {}) {
  StepLoss<L> result{StepOutput<L>(ctx.memory(), 0)};
  LossSums sums(ctx);
  sums.finish(ctx, Group::dp, false);
  result.sum = sums.sum();
  result.weight = sums.weight();
  if (options.average) model.weigh(result.weight);
  return result;
}

/// The loss of `inputs` and `targets` without gradients: `ctx.training` is false for the modules. Ranks may have
/// different numbers of samples, or none; the tensor-parallel ranks of a model that is cut over them have the same
/// ones.
template <class Ctx, class Model, class Loss, class Targets, class Count = CountSamples>
StepLoss<LocalOf<typename std::remove_cvref_t<Loss>::Output>> evaluate(Ctx ctx, Model& model, Loss&& loss,
                                                                       const typename Model::Input& inputs,
                                                                       const Targets& targets, int microbatches = 1,
                                                                       const Count& count = {}) {
  using L = std::remove_cvref_t<Loss>;
  using Value = LocalOf<typename L::Output>;
  static_assert(expect_loss<Model, L, Targets>());
  ctx.training = false;
  StepLoss<Value> result{StepOutput<Value>(ctx.memory(), microbatches)};
  LossSums sums(ctx);
  auto& saved = model.saved();
  for_each_microbatch(batch_size(targets), microbatches, [&](SampleRange range, bool) {
    const Targets part = batch_slice(targets, range);
    const double weight = count(part);
    if (weight == 0) return;
    typename L::Saved loss_saved{};
    auto y = model.forward(ctx, batch_slice(inputs, range), saved);
    saved = {};
    Value value = local<Value>(loss.forward(ctx, {std::move(y), part}, loss_saved));
    sums.add(ctx, value, weight);
    result.microbatches.add(std::move(value), range.size());
  });
  sums.finish(ctx, feeds_of<L>(), false);
  result.sum = sums.sum();
  result.weight = sums.weight();
  return result;
}

/// What the model makes of `inputs`, without gradients: this rank's part of it.
template <class Ctx, class Model>
StepOutput<LocalOf<typename Model::Output>> predict(Ctx ctx, Model& model, const typename Model::Input& inputs,
                                                    int microbatches = 1) {
  using Value = LocalOf<typename Model::Output>;
  ctx.training = false;
  StepOutput<Value> outputs(ctx.memory(), microbatches);
  for_each_microbatch(batch_size(inputs), microbatches, [&](SampleRange range, bool) {
    outputs.add(local<Value>(model.forward(ctx, batch_slice(inputs, range), model.saved())), range.size());
    model.saved() = {};
  });
  ctx.stream().synchronize();
  return outputs;
}

}  // namespace smp
