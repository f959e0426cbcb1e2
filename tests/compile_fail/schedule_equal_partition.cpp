// SPDX-License-Identifier: Apache-2.0
// 80 layers on 16 ranks with 2 chunks each.
#include <smp/pipeline/partition.hpp>

static_assert(smp::EqualPartition<80, 16, 2>::units_per_chunk == 2);

// expect-error: smp::EqualPartition: the units do not divide by ranks times chunks
