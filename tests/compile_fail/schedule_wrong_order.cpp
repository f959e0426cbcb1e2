// SPDX-License-Identifier: Apache-2.0
// The last rank runs the backward of micro-batch 1 before its forward.
#include <smp/pipeline/check.hpp>

struct Hasty {
  static constexpr void order(const smp::PipelineShape& shape, int rank, smp::RankOrder& next) {
    if (rank + 1 < shape.ranks)
      next.forward().forward().backward().backward();
    else
      next.forward().backward().backward().forward();
  }
};
static_assert(!smp::VerifiedSchedule<Hasty, 2, 2>::facts.defect);

// expect-error: smp::VerifiedSchedule: an action runs before one of its own rank that it needs
// expect-text: ScheduleProof<smp::DefectKind::wrong_order, 1, 2, smp::ActionKind::backward, 1, 0>
