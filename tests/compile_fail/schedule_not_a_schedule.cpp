// SPDX-License-Identifier: Apache-2.0
// A schedule whose order lacks the rank.
#include <smp/pipeline/check.hpp>

struct Forgetful {
  static constexpr void order(const smp::PipelineShape&, smp::RankOrder& next) { next.forward().backward(); }
};
static_assert(!smp::VerifiedSchedule<Forgetful, 2, 4>::facts.defect);

// expect-error: smp::VerifiedSchedule: this is no schedule; write a struct with
