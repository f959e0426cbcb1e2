// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Two chunks a rank, the stages folded like a V: the first rank holds the first and the last stage.

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// Stages 0..S-1 down the ranks, S..2S-1 back up: the fold of a two-chunk schedule.
struct VPlacement {
  static constexpr int chunks = 2;  ///< one on the way down, one on the way up
  /// Down the ranks and up again.
  [[nodiscard]] static constexpr int stage_rank(const PipelineShape& shape, int stage) {
    return stage < shape.ranks ? stage : 2 * shape.ranks - 1 - stage;
  }
};

/// ZB-V (Qi et al., arXiv 2401.10241, section 6 and figure 8): with F = I = W no rank idles between its first and its
/// last action, and every rank holds 2S chunk activations, the memory of 1F1B.
///
///     rank 0   F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3.0 I0.0 W0.0 ...
///     rank 1   --   F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 ...
struct ZeroBubbleVSchedule : VPlacement {
  static constexpr std::string_view name = "zero_bubble_v";  ///< in messages and on command lines

  /// Enough to fill the V before the first backward.
  [[nodiscard]] static constexpr MicrobatchRule microbatches(const PipelineShape& shape) {
    return {.at_least = 2 * shape.ranks - 1};
  }

  /// Warm-up down and up the V, both chunks in turn, then the gradients that others wait for first.
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    const int below = shape.ranks - 1 - rank;
    const auto whole_backward = [&](int chunk) { next.backward_input(chunk).backward_params(chunk); };
    // Down the V and up again, until the first backward can start.
    for (int i = 0; i < 2 * below + 1; ++i) next.forward(0);
    for (int i = 0; i < rank; ++i) next.forward(1).forward(0);
    for (int i = 0; i < below + 1; ++i) next.forward(1), whole_backward(1);
    // Both chunks in turn. Chunk 0 is ahead and runs out of forwards first.
    const int ahead = 2 * below + 1 + rank;
    for (int m = shape.ranks; m < shape.microbatches; ++m) {
      if (m - shape.ranks + ahead < shape.microbatches) next.forward(0);
      whole_backward(0);
      next.forward(1), whole_backward(1);
    }
    // The input gradients that others wait for; the parameter gradients fill the gaps.
    for (int i = 0; i < rank; ++i) next.backward_input(0).backward_input(1);
    for (int i = 0; i < below + 1; ++i) whole_backward(0);
    for (int i = 0; i < rank; ++i) next.backward_params(1);
    for (int i = 0; i < rank; ++i) next.backward_params(0);
  }
};

}  // namespace smp
