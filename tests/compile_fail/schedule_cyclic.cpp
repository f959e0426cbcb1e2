// SPDX-License-Identifier: Apache-2.0
// Rank 0 wants a gradient back before it sends the next micro-batch; rank 1 wants two micro-batches first.
#include <smp/pipeline/check.hpp>

struct Stubborn {
  static constexpr void order(const smp::PipelineShape&, int rank, smp::RankOrder& next) {
    if (rank == 0)
      next.forward().backward().forward().backward();
    else
      next.forward().forward().backward().backward();
  }
};
static_assert(!smp::VerifiedSchedule<Stubborn, 2, 2>::facts.defect);

// expect-error: smp::VerifiedSchedule: ranks wait for each other's results
// expect-text: ScheduleProof<smp::DefectKind::cyclic_dependency, 0, 1, smp::ActionKind::backward, 0, 0>
