// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices on which modules stand: by oneDNN (single precision) where the program is linked with it,
/// else by a CBLAS, else by this library itself. The CMake target smp::blas links what it finds.

#include <string>
#include <type_traits>

#include <smp/config.hpp>
#include <smp/device/gemm_call.hpp>
#include <smp/device/gemm_cblas.hpp>
#include <smp/device/gemm_dnnl.hpp>
#include <smp/device/gemm_portable.hpp>

namespace smp {

/// Computes the product, for T = float or double, with as many threads as `set_gemm_threads` says (gemm_portable() has
/// one). Nothing is allocated by smp after the first call of a thread.
/// @throws ConfigError for sizes or strides that cannot be, or are more than a CBLAS can be told
template <class T>
void gemm(const Gemm<T>& g) {
#if SMP_HAS_DNNL
  if constexpr (std::is_same_v<T, float>) return gemm_dnnl(g);
#endif
#if SMP_HAS_CBLAS
  gemm_cblas(g);
#else
  gemm_portable(g);
#endif
}

/// What gemm<T>() runs: "oneDNN 2.6.3 (AVX-512)", "OpenBLAS (SkylakeX)", "portable (AVX2)".
template <class T>
[[nodiscard]] std::string gemm_kernel() {
#if SMP_HAS_DNNL
  if constexpr (std::is_same_v<T, float>) return dnnl_kernel();
#endif
#if SMP_HAS_CBLAS
  return cblas_kernel();
#else
  return std::string("portable (") + to_string(vector_unit()) + ")";
#endif
}

}  // namespace smp
