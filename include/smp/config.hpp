// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The settings of the library. Each is always defined, and none changes the layout of a type.

/// How much is checked at run time: 0 nothing, 1 what costs no communication (default), 2 also what does: before each
/// operation the ranks compare what they are about to do.
#ifndef SMP_CHECK_LEVEL
#define SMP_CHECK_LEVEL 1
#endif

/// 1 if gemm() may call a CBLAS: cblas.h is found and the library is linked. The CMake target smp::blas sets it.
#ifndef SMP_HAS_CBLAS
#define SMP_HAS_CBLAS 0
#endif

/// 1 if gemm() may call oneDNN: dnnl.h is found and the library is linked. The CMake target smp::blas sets it.
#ifndef SMP_HAS_DNNL
#define SMP_HAS_DNNL 0
#endif

/// 1 if the C library has vector functions for x86: glibc's libmvec, which libm's linker script brings.
#ifndef SMP_HAS_LIBMVEC
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#include <features.h>
#endif
#if defined(__x86_64__) && defined(__GLIBC__)
#define SMP_HAS_LIBMVEC (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 35)
#else
#define SMP_HAS_LIBMVEC 0
#endif
#endif

namespace smp {

static_assert(SMP_CHECK_LEVEL >= 0 && SMP_CHECK_LEVEL <= 2, "smp: SMP_CHECK_LEVEL must be 0, 1 or 2");

/// The value of SMP_CHECK_LEVEL.
inline constexpr int check_level = SMP_CHECK_LEVEL;

}  // namespace smp
