// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Evaluation: forwards, no backward, nothing kept.

#include <smp/pipeline/schedules/simple.hpp>

namespace smp {

/// The forwards of a step over the stages of the schedule `Of`, so that a model placed for training can be evaluated
/// where it is. Any number of micro-batches; holds one activation.
template <PipelineSchedule Of = SimpleSchedule>
struct ForwardOnlySchedule : Of {
  static constexpr std::string_view name = "forward_only";  ///< in messages and on command lines

  /// Any number, whatever `Of` needs.
  [[nodiscard]] static constexpr MicrobatchRule microbatches(const PipelineShape&) { return {}; }

  /// All micro-batches through a chunk, then the next chunk.
  static constexpr void order(const PipelineShape& shape, int, RankOrder& next) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int m = 0; m < shape.microbatches; ++m) next.forward(chunk);
  }
};

}  // namespace smp
