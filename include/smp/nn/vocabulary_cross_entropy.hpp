// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Cross-entropy where each tensor-parallel rank has the logits of its part of the vocabulary (Shoeybi et al.:
/// Megatron-LM, 2019, section 3): two numbers a token are summed over the ranks, and logits are never gathered.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include <smp/comm/communicator.hpp>
#include <smp/distribution.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parallel/move.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>

namespace smp::nn {

/// The mean loss over the targets that are not `ignored`; 0, with gradients 0, if all are. The vocabulary is cut as an
/// `LmHead` is.
template <class T = float>
struct VocabularyCrossEntropy {
  /// Logits [..., classes of this rank] and targets [...], which are equal on all ranks.
  using Input = std::tuple<Dist<TensorOf<T>, Shard<Dim::features>>, Ids>;
  using Output = Dist<TensorOf<T>, Invariant>;  ///< one number, of shape []
  /// The input, and two numbers a row.
  struct Saved {
    TensorOf<T> logits;      ///< of this rank
    Ids targets;             ///< the input
    TensorOf<T> statistics;  ///< largest logit and sum of exponentials of each row, and how many rows count
    std::int64_t first = 0;  ///< class of this rank
    static constexpr auto fields() {
      return smp::fields(smp::field("logits", &Saved::logits), smp::field("targets", &Saved::targets),
                         smp::field("statistics", &Saved::statistics));
    }
  };

  std::int64_t vocabulary;      ///< classes of all ranks
  std::int32_t ignored = -100;  ///< a target that does not count

  /// @throws ConfigError if there is not one target for each row of logits, if they are not this rank's part, or if a
  /// target is no class
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const TensorOf<T>& logits = std::get<0>(x).local;
    const Ids& targets = std::get<1>(x);
    auto& tp = ctx.groups()[Group::tp];
    const Cut cut{0, tp.rank(), tp.size(), 1, true};
    const auto rows = static_cast<std::int64_t>(targets.size());
    const std::int64_t classes = cut.steps(vocabulary), first = cut.begin(vocabulary);
    if (rows_of(logits.shape(), classes, "VocabularyCrossEntropy") != rows) {
      throw ConfigError("nn::VocabularyCrossEntropy takes one target a row, but was given logits " +
                        to_string(logits.shape()) + " and targets " + to_string(targets.shape()));
    }
    expect_targets(targets);

    TensorOf<T> most(ctx.memory(), {rows}, MemoryUse::buffer);
    ctx.stream().enqueue([rows, classes, p = logits.data(), m = most.data()] { largest_of_rows(rows, classes, p, m); });
    if (tp.size() > 1) tp.all_reduce(ctx.stream(), most, most, maximum, Purpose::loss);

    Dist<TensorOf<T>, Partial> sums{TensorOf<T>(ctx.memory(), {2 * rows}, MemoryUse::buffer)};
    ctx.stream().enqueue([rows, classes, first, skip = ignored, p = logits.data(), t = targets.data(),
                          m = std::as_const(most).data(),
                          s = sums.local.data()] { sums_of_rows(rows, classes, first, skip, p, t, m, s); });
    const Dist<TensorOf<T>, Invariant> totals = move_to<Invariant>(ctx, std::move(sums), ctx.stream(), Purpose::loss);

    TensorOf<T> loss(ctx.memory(), {});
    saved = {logits, targets, TensorOf<T>(ctx.memory(), {2 * rows + 1}), first};
    ctx.stream().enqueue([rows, skip = ignored, t = targets.data(), m = std::as_const(most).data(),
                          s = totals.local.data(), keep = saved.statistics.data(),
                          q = loss.data()] { *q = mean_of_rows(rows, skip, t, m, s, keep); });
    return {std::move(loss)};
  }

  /// All of it: there are no parameters.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dloss, Saved& saved) {
    expect_shape({}, dloss.local.shape(), "VocabularyCrossEntropy", "the gradient of the loss");
    TensorOf<T> dlogits(ctx.memory(), saved.logits.shape());
    ctx.stream().enqueue(
        [rows = static_cast<std::int64_t>(saved.targets.size()), first = saved.first,
         classes = saved.logits.shape()[-1], skip = ignored, p = std::as_const(saved.logits).data(),
         t = std::as_const(saved.targets).data(), s = std::as_const(saved.statistics).data(), g = dloss.local.data(),
         q = dlogits.data()] { cross_entropy_backward<T>(rows, first, classes, skip, p, t, s, *g, q); });
    saved = {};
    return {{std::move(dlogits)}, NoGrad{}};
  }

 private:
  void expect_targets(const Ids& targets) const {
    for (const std::int32_t t : targets) {
      if (t == ignored || (t >= 0 && t < vocabulary)) continue;
      throw ConfigError("nn::VocabularyCrossEntropy has " + std::to_string(vocabulary) + " classes, but a target is " +
                        std::to_string(t));
    }
  }
  // A rank may have no classes at all: its largest logit is the least there can be.
  static void largest_of_rows(std::int64_t rows, std::int64_t classes, const T* logits, T* most) {
    vectorized([=](auto) {
      for (std::int64_t r = 0; r < rows; ++r) {
        most[r] = classes > 0 ? largest(classes, logits + r * classes) : -std::numeric_limits<T>::infinity();
      }
    });
  }
  /// For each row the sum of exponentials, and the logit of the target if it is here, both against the largest.
  static void sums_of_rows(std::int64_t rows, std::int64_t classes, std::int64_t first, std::int32_t skip,
                           const T* logits, const std::int32_t* targets, const T* most, T* sums) {
    vectorized([=](auto unit) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T* x = logits + r * classes;
        const std::int64_t right = targets[r] - first;
        const bool here = targets[r] != skip && right >= 0 && right < classes;
        sums[2 * r] = sum_of_exponentials(unit, classes, x, most[r]);
        sums[2 * r + 1] = here ? x[right] - most[r] : T(0);
      }
    });
  }
  static T mean_of_rows(std::int64_t rows, std::int32_t skip, const std::int32_t* targets, const T* most, const T* sums,
                        T* statistics) {
    double all = 0;
    std::int64_t counted = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      statistics[2 * r] = most[r];
      statistics[2 * r + 1] = sums[2 * r];
      if (targets[r] == skip) continue;
      all += static_cast<double>(std::log(sums[2 * r]) - sums[2 * r + 1]);
      ++counted;
    }
    statistics[2 * rows] = static_cast<T>(counted);
    return counted > 0 ? static_cast<T>(all / static_cast<double>(counted)) : T(0);
  }
};

}  // namespace smp::nn
