// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One pass of training: a batch in micro-batches, forward, loss and backward, with gradients that are those of the
/// mean over all samples, whatever the batch is cut into. The update is the strategy's `step`.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/comm/call.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/device/memory_allocator.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/tags.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>
#include <smp/train/batch.hpp>
#include <smp/train/batch_ends.hpp>
#include <smp/train/loss.hpp>
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
  /// Where the tensors of the inputs have their samples: a dimension for each, or `not_split`.
  SampleAxes input_axes{};
};

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

/// Says in words why a slice of the rows of all samples cannot be cut by samples.
/// @throws ConfigError for several micro-batches of what several tensor-parallel ranks have slices of
template <class Input, class Ctx>
void expect_whole_samples(Ctx& ctx, int microbatches) {
  if constexpr (!std::same_as<TagsOf<Input>, NoTags>) {
    if (TagsOf<Input>::tp::on == Shard<Dim::sequence>::on && microbatches > 1 && ctx.groups()[Group::tp].size() > 1) {
      throw ConfigError(
          "each tensor-parallel rank has a slice of the rows of all samples (Shard<Dim::sequence>), which cannot be "
          "cut into micro-batches; let the model begin with whole samples and slice them itself, with a Move");
    }
  }
}

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
  expect_whole_samples<typename Model::Input>(ctx, options.microbatches);
  const std::int64_t samples = batch_size(targets);
  if (batch_size(inputs, options.input_axes) != samples) {
    throw ConfigError("a batch has " + std::to_string(batch_size(inputs, options.input_axes)) + " inputs, but " +
                      std::to_string(samples) + " targets");
  }
  if (options.passes < 1 || options.pass < 0 || options.pass >= options.passes) {
    throw ConfigError("pass is " + std::to_string(options.pass) + ", but must be 0 to passes - 1, and passes is " +
                      std::to_string(options.passes));
  }
  if (gathers_samples<L>(ctx, options.prescaled)) {
    if (options.input_axes != SampleAxes{}) {
      throw ConfigError(
          "samples of several tensor-parallel ranks are gathered along first dimensions only: give these "
          "ranks the same samples (prescaled), or put the samples first");
    }
    StepOptions all = options;
    all.prescaled = true;
    if (all.first_sample) *all.first_sample -= static_cast<std::uint64_t>(ctx.groups()[Group::tp].rank() * samples);
    return step(ctx, model, loss, gathered_over_tp(ctx, inputs), gathered_over_tp(ctx, targets), all, count);
  }
  const int source = output_rank(ctx, model);
  auto& feeds = ctx.groups()[feeds_of<L>()];
  const auto batches_before = static_cast<std::uint64_t>(feeds.rank() * options.passes + options.pass);
  const std::uint64_t first_sample =
      options.first_sample.value_or(batches_before * static_cast<std::uint64_t>(samples));
  const double share = 1.0 / (static_cast<double>(samples) * feeds.size() * options.passes);  // of one sample

  BatchEnds<Ctx, std::remove_reference_t<Loss>, typename Model::Input, Targets> ends(
      ctx, loss, inputs, targets, options.microbatches, count, false, options.input_axes);
  if (ends.without_weight() > 0) expect_independent(model, "a micro-batch without a target that counts");
  ends.train({static_cast<std::uint64_t>(model.steps()), first_sample},
             !options.average ? 0.0
             : counted        ? 1.0
                              : share,
             options.average ? 0.0 : 1.0 / feeds.size());
  train_microbatches(ctx, model, ends, options.pass + 1 == options.passes);
  auto result = ends.finish(feeds_of<L>(), !counted, source);
  if (counted && options.average) model.weigh(result.weight);
  return result;
}

/// The part of a rank that has no samples in a pass in which the others count theirs: the sums of `step`.
/// @return the loss of the others
/// @throws ConfigError for a strategy whose ranks run the model together
template <class L, class Ctx, class Model>
StepLoss<L> step_without_batch(Ctx ctx, Model& model, const StepOptions& options = {}) {
  expect_independent(model, "no batch");
  StepLoss<L> result{StepOutput<L>(ctx.memory(), 0)};
  LossSums sums(ctx);
  sums.finish(ctx, Group::dp, false, output_rank(ctx, model));
  result.sum = sums.sum();
  result.weight = sums.weight();
  if (options.average) model.weigh(result.weight);
  return result;
}

/// The loss of `inputs` and `targets` without gradients: `ctx.training` is false for the modules. Ranks may have
/// different numbers of samples, or none; the tensor-parallel ranks of a model that is cut over them have the same
/// ones, and ranks that hold parameters together (`Sharded`) the same number of micro-batches, if some without targets
/// that count.
template <class Ctx, class Model, class Loss, class Targets, class Count = CountSamples>
StepLoss<LocalOf<typename std::remove_cvref_t<Loss>::Output>> evaluate(Ctx ctx, Model& model, Loss&& loss,
                                                                       const typename Model::Input& inputs,
                                                                       const Targets& targets, int microbatches = 1,
                                                                       const Count& count = {},
                                                                       const SampleAxes& input_axes = {}) {
  using L = std::remove_cvref_t<Loss>;
  static_assert(expect_loss<Model, L, Targets>());
  expect_whole_samples<typename Model::Input>(ctx, microbatches);
  const int source = output_rank(ctx, model);
  ctx.training = false;
  BatchEnds<Ctx, std::remove_reference_t<Loss>, typename Model::Input, Targets> ends(
      ctx, loss, inputs, targets, microbatches, count, true, input_axes);
  run_microbatches(ctx, model, ends);
  return ends.finish(feeds_of<L>(), false, source);
}

/// The ends of a model whose outputs are wanted.
template <class Ctx, class Inputs, class Value>
struct OutputEnds {
  Ctx& ctx;                     ///< of the rank
  const Inputs& inputs;         ///< a batch
  const SampleAxes& axes;       ///< of the inputs
  int parts;                    ///< micro-batches
  MemoryVector<Value> outputs;  ///< of the model, where they come out

  /// The shapes of the inputs.
  [[nodiscard]] std::string text() const { return shapes_text(inputs); }
  /// Micro-batches that are run.
  [[nodiscard]] int microbatches() const noexcept { return parts; }
  /// The samples of a micro-batch.
  [[nodiscard]] SampleRange range(int m) const { return microbatch(batch_size(inputs, axes), parts, m); }
  /// Nothing is drawn.
  static void place(Ctx&, int) noexcept {}
  /// What goes into the model.
  [[nodiscard]] Inputs input(int m) const { return batch_slice(inputs, range(m), axes, &ctx.memory()); }
  /// What has come out of it.
  template <class Y>
  void output(int m, int /*slot*/, Y&& y) {
    outputs[static_cast<std::size_t>(m)] = local<Value>(y);
  }
};

/// Gives all ranks of a group the value that one of them has, whatever its shapes are.
template <class Comm, class V>
void share_value(Comm& group, Memory& memory, V& value, int source) {
  if (group.size() == 1) return;
  HostStream now;
  for_each_tensor(value, [&]<class T>(T& tensor) {
    Shape shape = group.rank() == source ? TensorTraits<T>::shape(tensor) : Shape{};
    group.broadcast(now, std::span(&shape, 1), source, Purpose::control);
    if (group.rank() != source) tensor = TensorTraits<T>::make(memory, shape);
    group.broadcast(now, TensorTraits<T>::data(tensor), source, Purpose::activation);
  });
}

/// What the model makes of `inputs`, without gradients: this rank's part of it, on every rank of a pipeline. Outputs
/// may be tuples or structs of tensors.
template <class Ctx, class Model>
StepOutput<LocalOf<typename Model::Output>> predict(Ctx ctx, Model& model, const typename Model::Input& inputs,
                                                    int microbatches = 1, const SampleAxes& input_axes = {}) {
  using Value = LocalOf<typename Model::Output>;
  expect_whole_samples<typename Model::Input>(ctx, microbatches);
  const int source = output_rank(ctx, model);
  ctx.training = false;
  int parts = 0;
  for_each_microbatch(batch_size(inputs, input_axes), microbatches, [&](SampleRange, bool) { ++parts; });
  OutputEnds<Ctx, typename Model::Input, Value> ends{ctx, inputs, input_axes, parts,
                                                     MemoryVector<Value>(MemoryAllocator<Value>(ctx.memory()))};
  ends.outputs.resize(static_cast<std::size_t>(parts));
  run_microbatches(ctx, model, ends);
  ctx.stream().synchronize();
  StepOutput<Value> outputs(ctx.memory(), microbatches);
  for (int m = 0; m < parts; ++m) {
    Value& value = ends.outputs[static_cast<std::size_t>(m)];
    share_value(ctx.groups()[Group::pp], ctx.memory(), value, source);
    outputs.add(std::move(value), ends.range(m).size());
  }
  return outputs;
}

}  // namespace smp
