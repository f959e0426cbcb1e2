// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All shipped schedules under one name.

#include <smp/pipeline/schedules/runtime.hpp>

namespace smp {

/// What to write in `Pipeline<...>`: `Schedule::Interleaved`. A user's own schedule stands in the same place.
struct Schedule {
  using Simple = SimpleSchedule;
  using Interleaved = InterleavedSchedule;
  template <int Chunks, LoopOrder Order = LoopOrder::depth_first>
  using Looped = LoopedSchedule<Chunks, Order>;
  using ZeroBubble = ZeroBubbleSchedule;
  using ZeroBubbleV = ZeroBubbleVSchedule;
  using DualPipeV = DualPipeVSchedule;
  template <PipelineSchedule Of = SimpleSchedule>
  using ForwardOnly = ForwardOnlySchedule<Of>;
  using Runtime = RuntimeSchedule;
};

}  // namespace smp
