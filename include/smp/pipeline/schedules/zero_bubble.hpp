// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// 1F1B with the backward split: the gradients of the parameters fill the bubble.

#include <algorithm>

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// ZB-H1 (Qi et al., arXiv 2401.10241, section 2.1 and figure 3, upper half). The order of 1F1B; on rank r the
/// parameter gradients lag r micro-batches behind the input gradients, so that every rank holds min(S, M) activations,
/// as many as rank 0 of 1F1B. Idle: (S - 1)(F + I - W).
///
///     rank 0   F0 F1 -- I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
///     rank 1   -- F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
struct ZeroBubbleSchedule {
  static constexpr std::string_view name = "zero_bubble";  ///< in messages and on command lines

  /// 1F1B with backward_input in the place of backward; backward_params follows `rank` micro-batches later.
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    const int ahead = std::min(shape.ranks - 1 - rank, shape.microbatches);  // as in 1F1B
    const int lag = std::min(rank, shape.microbatches);
    for (int m = 0; m < ahead; ++m) next.forward();
    for (int m = 0; m < shape.microbatches; ++m) {
      if (m + ahead < shape.microbatches) next.forward();
      next.backward_input();
      if (m >= lag) next.backward_params();
    }
    for (int m = 0; m < lag; ++m) next.backward_params();
  }
};

}  // namespace smp
