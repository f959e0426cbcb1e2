// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The settings of the library. Each is always defined, and none changes the layout of a type.

/// How much is checked at run time: 0 nothing, 1 what costs no communication (default), 2 also what does: before each
/// operation the ranks compare what they are about to do.
#ifndef SMP_CHECK_LEVEL
#define SMP_CHECK_LEVEL 1
#endif

namespace smp {

static_assert(SMP_CHECK_LEVEL >= 0 && SMP_CHECK_LEVEL <= 2, "smp: SMP_CHECK_LEVEL must be 0, 1 or 2");

/// The value of SMP_CHECK_LEVEL.
inline constexpr int check_level = SMP_CHECK_LEVEL;

}  // namespace smp
