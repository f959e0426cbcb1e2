// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All shipped schedules under one name.

#include <smp/pipeline/schedules/runtime.hpp>

namespace smp {

/// What to write in `Pipeline<...>`: `Schedule::Interleaved`. A user's own schedule stands in the same place.
struct Schedule {
  using Simple = SimpleSchedule;            ///< GPipe
  using Interleaved = InterleavedSchedule;  ///< 1F1B
  /// Several chunks a rank: interleaved 1F1B, or breadth first
  template <int Chunks, LoopOrder Order = LoopOrder::depth_first>
  using Looped = LoopedSchedule<Chunks, Order>;
  using ZeroBubble = ZeroBubbleSchedule;    ///< ZB-H1
  using ZeroBubbleV = ZeroBubbleVSchedule;  ///< ZB-V
  using DualPipeV = DualPipeVSchedule;      ///< DualPipe cut in half
  /// Evaluation on the stages of another schedule
  template <PipelineSchedule Of = SimpleSchedule>
  using ForwardOnly = ForwardOnlySchedule<Of>;
  using Runtime = RuntimeSchedule;  ///< any of them by name, or a table
};

}  // namespace smp
