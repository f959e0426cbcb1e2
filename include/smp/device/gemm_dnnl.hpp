// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices by oneDNN: single precision, row by row as ours, kernels for the processor at hand made at
/// run time. Empty unless SMP_HAS_DNNL.

#include <smp/config.hpp>

#if SMP_HAS_DNNL

#include <string>

#include <dnnl.h>

#include <smp/device/gemm_call.hpp>
#include <smp/error.hpp>

namespace smp {

/// The product as oneDNN computes it.
/// @throws DeviceError if it refuses, which it does for want of memory
inline void gemm_dnnl(const Gemm<float>& g) {
  check(g);
  if (gemm_is_trivial(g)) return;
  const auto letter = [](Transpose op) { return op == Transpose::no ? 'N' : 'T'; };
  const dnnl_status_t status =
      dnnl_sgemm(letter(g.a_op), letter(g.b_op), g.m, g.n, g.k, g.alpha, g.a, g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  if (status != dnnl_success) {
    throw DeviceError("gemm: oneDNN's dnnl_sgemm failed with status " + std::to_string(static_cast<int>(status)));
  }
}

/// "oneDNN 2.6.3 (AVX-512)": the library that is loaded, and the instructions that its kernels use.
[[nodiscard]] inline std::string dnnl_kernel() {
  const dnnl_version_t* v = dnnl_version();
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  // Each instruction set of x86 has the bits of those below it.
  const char* name = (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core ? "AVX-512"
                     : (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2             ? "AVX2"
                                                                                  : "baseline";
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch) + " (" +
         name + ")";
}

}  // namespace smp

#endif
