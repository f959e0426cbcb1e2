// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All forwards, then all backwards.

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// GPipe (Huang et al., arXiv 1811.06965, section 2.3 and figure 2c); the reference's "simple". Holds all
/// micro-batches.
///
///     rank 0   F0 F1 F2 F3 -- -- B0 B1 B2 B3
///     rank 1   -- F0 F1 F2 F3 B0 B1 B2 B3 --
struct SimpleSchedule {
  static constexpr std::string_view name = "simple";  ///< in messages and on command lines

  /// All forwards, then all backwards.
  static constexpr void order(const PipelineShape& shape, int, RankOrder& next) {
    for (int m = 0; m < shape.microbatches; ++m) next.forward();
    for (int m = 0; m < shape.microbatches; ++m) next.backward();
  }
};

}  // namespace smp
