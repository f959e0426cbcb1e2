// SPDX-License-Identifier: Apache-2.0
// The parameter gradients of a split backward are forgotten.
#include <smp/pipeline/check.hpp>

struct HalfDone {
  static constexpr void order(const smp::PipelineShape& shape, int, smp::RankOrder& next) {
    for (int m = 0; m < shape.microbatches; ++m) next.forward().backward_input();
  }
};
static_assert(!smp::VerifiedSchedule<HalfDone, 1, 2>::facts.defect);

// expect-error: smp::VerifiedSchedule: an action is in no list; every micro-batch needs it once
// expect-text: ScheduleProof<smp::DefectKind::missing_action, 0, 5, smp::ActionKind::backward_params, 0, 0>
