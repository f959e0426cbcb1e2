// SPDX-License-Identifier: Apache-2.0
// 40 layers on 8 ranks in chunks of 2 layers: 20 chunks.
#include <smp/pipeline/partition.hpp>

static_assert(smp::EqualPartition<40 / 2, 8>::units_per_chunk == 2);

// expect-error: smp::EqualPartition: the units do not divide by ranks times chunks
