// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The micro-batches of a batch at both ends of a model, and how all of them are run.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/device/host_stream.hpp>
#include <smp/device/memory_allocator.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/random.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>
#include <smp/train/batch.hpp>
#include <smp/train/loss.hpp>
#include <smp/train/step_output.hpp>

namespace smp {

/// Calls `f(range, last)` for each micro-batch of a batch.
template <class F>
void for_each_microbatch(std::int64_t samples, int microbatches, F&& f) {
  if (microbatches < 1) {
    throw ConfigError("microbatches is " + std::to_string(microbatches) + ", but must be at least 1");
  }
  const int parts = samples < microbatches ? static_cast<int>(samples) : microbatches;
  for (int part = 0; part < parts; ++part) f(microbatch(samples, parts, part), part + 1 == parts);
}

/// "[16, 64], [16]": the shapes of the tensors of a value.
template <class V>
[[nodiscard]] std::string shapes_text(const V& value) {
  std::string text;
  for_each_tensor(value, [&]<class T>(const T& tensor) {
    text += (text.empty() ? "" : ", ") + to_string(TensorTraits<T>::shape(tensor));
  });
  return text;
}

/// A micro-batch of a pass.
template <class Targets>
struct MicrobatchPart {
  SampleRange range;  ///< its samples, in the batch
  Targets targets;    ///< their targets
  double weight;      ///< how it counts
};

/// A batch in micro-batches, at both ends of a model: what goes in, what comes out, and the loss of it. Of a pipeline,
/// the first stage uses one end and the last stage the other.
/// @tparam Loss `Loss::Output` is the loss
template <class Ctx, class Loss, class Inputs, class Targets>
class BatchEnds {
 public:
  using Value = LocalOf<typename Loss::Output>;  ///< a loss

  /// Cuts the batch. Micro-batches without weight have no loss.
  /// @param count the weight of a micro-batch, a function of its targets
  /// @param all run them all the same: other ranks may need this one for theirs; else they are left out
  /// @param axes of the inputs
  template <class Count>
  BatchEnds(Ctx& ctx, Loss& loss, const Inputs& inputs, const Targets& targets, int microbatches, const Count& count,
            bool all, const SampleAxes& axes = {})
      : ctx_(ctx),
        loss_(loss),
        inputs_(inputs),
        axes_(axes),
        parts_(MemoryAllocator<MicrobatchPart<Targets>>(ctx.memory())),
        values_(MemoryAllocator<Value>(ctx.memory())),
        saved_(MemoryAllocator<typename Loss::Saved>(ctx.memory())),
        sums_(ctx) {
    parts_.reserve(static_cast<std::size_t>(microbatches > 0 ? microbatches : 0));
    for_each_microbatch(batch_size(targets), microbatches, [&](SampleRange range, bool) {
      Targets own = batch_slice(targets, range);
      double weight = static_cast<double>(range.size());
      if constexpr (!std::same_as<Count, EqualSamples>) weight = count(own);
      if (weight != 0 || all) parts_.push_back({range, std::move(own), weight});
      if (weight == 0) ++without_weight_;
    });
    values_.resize(parts_.size());
  }

  /// There will be gradients: of a micro-batch, of its loss times `per_weight` times its weight plus `constant`.
  /// @param first where the batch stands
  void train(RandomPosition first, double per_weight, double constant) noexcept {
    first_ = first;
    per_weight_ = per_weight;
    constant_ = constant;
    training_ = true;
  }

  /// "[16, 64] and [4, 64]": the shapes of the inputs, and of the targets of the first micro-batch.
  [[nodiscard]] std::string text() const {
    return shapes_text(inputs_) + " and " + (parts_.empty() ? "nothing" : shapes_text(parts_.front().targets));
  }
  /// Micro-batches that are run.
  [[nodiscard]] int microbatches() const noexcept { return static_cast<int>(parts_.size()); }
  /// Micro-batches in which no target counts.
  [[nodiscard]] int without_weight() const noexcept { return without_weight_; }
  /// Says where a micro-batch is, before any part of the model runs it.
  void place(Ctx& ctx, int microbatch) const {
    if (!training_) return;
    ctx.position = first_;
    ctx.position.first_sample += static_cast<std::uint64_t>(part(microbatch).range.first);
  }
  /// What goes into the model.
  [[nodiscard]] Inputs input(int microbatch) const {
    return batch_slice(inputs_, part(microbatch).range, axes_, &ctx_.memory());
  }
  /// What has come out of it. What the loss saves stays in `slot`.
  template <class Y>
  void output(int microbatch, int slot, Y&& y) {
    while (saved_.size() <= static_cast<std::size_t>(slot)) saved_.emplace_back();
    auto& saved = saved_[static_cast<std::size_t>(slot)];
    Value& value = values_[static_cast<std::size_t>(microbatch)];
    if (part(microbatch).weight == 0) {
      value = TensorTraits<Value>::make(ctx_.memory(), {});
      return;
    }
    value = local<Value>(loss_.forward(ctx_, {std::forward<Y>(y), part(microbatch).targets}, saved));
    sums_.add(ctx_, value, part(microbatch).weight);
    if (!training_) saved = {};
  }
  /// The gradient of what has come out.
  [[nodiscard]] auto gradient(int microbatch, int slot) {
    const Value& value = values_[static_cast<std::size_t>(microbatch)];
    const double seed = per_weight_ * part(microbatch).weight + constant_;
    auto& saved = saved_[static_cast<std::size_t>(slot)];
    auto gradient = TensorTraits<GradOf<Value>>::make(ctx_.memory(), TensorTraits<Value>::shape(value));
    ctx_.stream().enqueue([to = TensorTraits<GradOf<Value>>::data(gradient).data(), seed] {
      *to = static_cast<std::remove_cvref_t<decltype(*to)>>(seed);
    });
    auto dy = std::get<0>(loss_.backward(ctx_, spread<GradOf<typename Loss::Output>>(std::move(gradient)), saved));
    saved = {};
    return dy;
  }

  /// The loss of the pass, on all ranks. Waits for it.
  /// @param feeds the ranks whose samples are different
  /// @param equal they must have the same number of them
  /// @param source the rank of the PP group that has had the outputs
  [[nodiscard]] StepLoss<Value> finish(Group feeds, bool equal, int source) {
    if (ctx_.groups()[Group::pp].size() > 1 && !values_.empty()) share(source);
    sums_.finish(ctx_, feeds, equal, source);
    StepLoss<Value> result{StepOutput<Value>(ctx_.memory(), microbatches())};
    for (std::size_t m = 0; m < values_.size(); ++m) {
      if (parts_[m].weight != 0) result.microbatches.add(std::move(values_[m]), parts_[m].range.size());
    }
    result.sum = sums_.sum();
    result.weight = sums_.weight();
    return result;
  }

 private:
  [[nodiscard]] const MicrobatchPart<Targets>& part(int microbatch) const noexcept {
    return parts_[static_cast<std::size_t>(microbatch)];
  }
  /// Gives all stages the losses that the last one has.
  void share(int source) {
    using Element = typename TensorTraits<Value>::element;
    ctx_.stream().synchronize();
    auto& stages = ctx_.groups()[Group::pp];
    Shape shape = stages.rank() == source ? TensorTraits<Value>::shape(values_.front()) : Shape{};
    TensorOf<Element> all(ctx_.memory(), {microbatches()}, MemoryUse::buffer);
    if (stages.rank() == source) {
      for (std::size_t m = 0; m < values_.size(); ++m)
        all.data()[m] = TensorTraits<Value>::data(std::as_const(values_[m])).front();
    }
    HostStream now;
    stages.broadcast(now, std::span(&shape, 1), source, Purpose::loss);
    stages.broadcast(now, all, source, Purpose::loss);
    if (stages.rank() == source) return;
    for (std::size_t m = 0; m < values_.size(); ++m) {
      values_[m] = TensorTraits<Value>::make(ctx_.memory(), shape);
      TensorTraits<Value>::data(values_[m]).front() = std::as_const(all).data()[m];
    }
  }

  Ctx& ctx_;
  Loss& loss_;
  const Inputs& inputs_;
  SampleAxes axes_;
  MemoryVector<MicrobatchPart<Targets>> parts_;
  MemoryVector<Value> values_;                // by micro-batch
  MemoryVector<typename Loss::Saved> saved_;  // by slot
  LossSums sums_;
  RandomPosition first_{};
  int without_weight_ = 0;
  double per_weight_ = 0, constant_ = 0;
  bool training_ = false;
};

/// A strategy around a pipeline.
template <class Model>
concept Pipelined = requires(Model& model) {
  model.module().rows();
  model.module().stages();
};

/// Refuses to stay away from what other ranks of a shard group do, who would wait.
/// @throws ConfigError if the strategy runs all ranks together
template <class Model>
void expect_independent(const Model& model, const char* what) {
  if constexpr (requires { model.runs_together(); }) {
    if (!model.runs_together()) return;
    throw ConfigError(std::string("this rank has ") + what +
                      ", but ranks that hold parameters together (Sharded) run all micro-batches together; give every "
                      "rank something that counts, or let each hold them whole");
  }
}

/// The rank of the PP group that has the output of the model.
/// @throws ConfigError if there are several, and the model is no pipeline
template <class Ctx, class Model>
[[nodiscard]] int output_rank(Ctx& ctx, Model& model) {
  if constexpr (Pipelined<Model>) {
    return model.module().rank_of(model.module().stages() - 1);
  } else {
    const int ranks = ctx.groups()[Group::pp].size();
    if (ranks > 1) {
      throw ConfigError("the topology has pp " + std::to_string(ranks) +
                        ", but the model is on one rank; spread it with smp::Pipeline");
    }
    return 0;
  }
}

/// Runs all micro-batches forward and back.
/// @param completes the pass is the last one before the update
template <class Ctx, class Model, class Ends>
void train_microbatches(Ctx& ctx, Model& model, Ends& ends, bool completes) {
  const int count = ends.microbatches();
  if (count == 0) return;
  if constexpr (Pipelined<Model>) {
    model.module().run(ctx, model, count, true, completes, ends);
  } else {
    auto& saved = model.saved();
    for (int m = 0; m < count; ++m) {
      ends.place(ctx, m);
      ctx.last_microbatch = completes && m + 1 == count;
      ends.output(m, 0, model.forward(ctx, ends.input(m), saved));
      (void)model.backward(ctx, ends.gradient(m, 0), saved);
      saved = {};
    }
  }
}

/// Runs all micro-batches forward, for no more than their output.
template <class Ctx, class Model, class Ends>
void run_microbatches(Ctx& ctx, Model& model, Ends& ends) {
  const int count = ends.microbatches();
  if (count == 0) return;
  if constexpr (Pipelined<Model>) {
    model.module().run(ctx, model, count, false, false, ends);
  } else {
    auto& saved = model.saved();
    for (int m = 0; m < count; ++m) {
      auto y = model.forward(ctx, ends.input(m), saved);
      saved = {};
      ends.output(m, 0, std::move(y));
    }
  }
}

}  // namespace smp
