// SPDX-License-Identifier: Apache-2.0
// needs: blas
// Multiplies twice, with whatever CBLAS is linked, and says which; exit code 77 if there is none.
#include <cstdio>

#include <smp/device/gemm.hpp>

int main() {
#if SMP_HAS_CBLAS
  const double two = 2;
  double four = 0;
  for (int i = 0; i < 2; ++i) {
    smp::gemm_cblas(
        smp::Gemm<double>{.m = 1, .n = 1, .k = 1, .a = &two, .lda = 1, .b = &two, .ldb = 1, .c = &four, .ldc = 1});
  }
  std::puts(smp::cblas_kernel().c_str());
  return four == 4 ? 0 : 1;
#else
  return 77;
#endif
}
