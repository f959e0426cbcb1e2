// SPDX-License-Identifier: Apache-2.0
// Depth-first looped needs a multiple of the ranks.
#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>

static_assert(!smp::VerifiedSchedule<smp::Schedule::Looped<2>, 4, 6>::facts.defect);

// expect-error: smp::VerifiedSchedule: this schedule cannot run this number of micro-batches on these ranks
