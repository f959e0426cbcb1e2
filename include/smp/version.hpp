// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The version of smp. This header is its only home: CMake and the package files read it from here.

/// Grows when programs that compiled may no longer compile, from 1.0 on; until then the minor version does.
#define SMP_VERSION_MAJOR 0
/// Grows with new features.
#define SMP_VERSION_MINOR 1
/// Grows with corrections.
#define SMP_VERSION_PATCH 0

namespace smp {

/// `major * 10000 + minor * 100 + patch`
inline constexpr int version = SMP_VERSION_MAJOR * 10000 + SMP_VERSION_MINOR * 100 + SMP_VERSION_PATCH;

}  // namespace smp
