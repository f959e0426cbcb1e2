// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One forward, one backward.

#include <algorithm>

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// 1F1B (PipeDream-Flush: Narayanan et al., arXiv 2006.09503, section 3.2); the reference's "interleaved", which others
/// use as a name for virtual stages (here: LoopedSchedule). A backward runs as soon as it can: rank s of S holds at
/// most min(S - s, M) micro-batches, or `active` if that is less.
///
///     rank 0   F0 F1 -- B0 F2 B1 F3 B2 -- B3
///     rank 1   -- F0 B0 F1 B1 F2 B2 F3 B3 --
struct InterleavedSchedule {
  static constexpr std::string_view name = "interleaved";  ///< in messages and on command lines

  /// Forwards until the first gradient is due, then one forward and one backward in turn.
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    const int ahead = std::min(shape.ranks - 1 - rank, shape.microbatches);  // one for each rank further down
    for (int m = 0; m < ahead; ++m) next.forward();
    for (int m = ahead; m < shape.microbatches; ++m) next.forward().backward();
    for (int m = 0; m < ahead; ++m) next.backward();
  }
};

}  // namespace smp
