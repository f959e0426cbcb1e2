// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The loss of a batch: how micro-batches count, and sums over all ranks.

#include <concepts>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/comm/call.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/error.hpp>
#include <smp/tags.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>
#include <smp/train/batch.hpp>
#include <smp/train/step_output.hpp>

namespace smp {

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
  /// @param source the rank of the PP group that has them, and gives them to the others
  /// @throws ConfigError, on all ranks, if their weights must be `equal` and are not
  template <class Ctx>
  void finish(Ctx& ctx, Group feeds, bool equal, int source = 0) {
    auto& group = ctx.groups()[feeds];
    auto& stages = ctx.groups()[Group::pp];
    if (group.size() > 1 && stages.rank() == source) {
      ctx.stream().enqueue([sums = sums_.data()] { sums[2] = sums[1] * sums[1]; });
      group.all_reduce(ctx.stream(), sums_, sums_, smp::sum, Purpose::loss);
    }
    if (stages.size() > 1) stages.broadcast(ctx.stream(), sums_, source, Purpose::loss);
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

}  // namespace smp
