// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The V with forwards and backwards overlapped in pairs.

#include <smp/pipeline/schedules/zero_bubble_v.hpp>

namespace smp {

/// DualPipeV: DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1 and figure 5) cut in half, as in the repository
/// deepseek-ai/DualPipe, whose eight steps are the eight lines below. A forward of one chunk and a backward of the
/// other run as one, so that the messages of each (of experts, of tensor ranks) hide behind the other. Holds 2S + 1
/// chunk activations a rank.
///
///     rank 0 of 2   F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 [F3.0 B1.1] [F2.1 B0.0] B2.1 [F3.1 B1.0] ...
struct DualPipeVSchedule : VPlacement {
  static constexpr std::string_view name = "dual_pipe_v";  ///< in messages and on command lines

  /// As many as there are stages.
  [[nodiscard]] static constexpr MicrobatchRule microbatches(const PipelineShape& shape) {
    return {.at_least = 2 * shape.ranks};
  }

  /// The eight steps of the published loop.
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    const int below = shape.ranks - 1 - rank;
    const int steady = shape.microbatches - 2 * shape.ranks + rank + 1;
    const bool at_fold = below == 0;  // both chunks of one micro-batch meet here: overlapping the first pair costs time
    for (int i = 0; i < 2 * below; ++i) next.forward(0);
    for (int i = 0; i < rank + 1; ++i) next.forward(0).forward(1);
    for (int i = 0; i < below; ++i) next.backward_input(1).oldest_backward_params().forward(1);
    for (int i = 0; i < steady; ++i) {
      i == 0 && at_fold ? next.forward(0).backward(1) : next.forward_with_backward(0, 1);
      next.forward_with_backward(1, 0);
    }
    for (int i = 0; i < below; ++i) next.backward(1).forward_with_backward(1, 0);
    // The second half of the last backwards is split; chunks alternate, so an odd rank turns one call earlier.
    for (int call = 0; call < 2 * (rank + 1); ++call) {
      const bool split = call >= rank + 1;
      split ? next.backward_input(1 - call % 2) : next.backward(1 - call % 2);
    }
    for (int i = 0; i < below; ++i) next.oldest_backward_params().backward_input(0);
    for (int i = 0; i < rank + 1; ++i) next.oldest_backward_params();
  }
};

}  // namespace smp
