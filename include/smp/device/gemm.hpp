// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices on which modules stand.

#include <smp/device/gemm_call.hpp>
#include <smp/device/gemm_portable.hpp>

namespace smp {

/// Computes the product on the calling thread.
/// @throws ConfigError for sizes or strides that cannot be
template <class T>
void gemm(const Gemm<T>& g) {
  gemm_portable(g);
}

}  // namespace smp
