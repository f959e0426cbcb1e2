// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices on which modules stand.

#include <smp/device/gemm_call.hpp>

namespace smp {

/// Computes the product on the calling thread.
/// @throws ConfigError for sizes or strides that cannot be
template <class T>
void gemm(const Gemm<T>& g) {
  check(g);
  for (std::int64_t i = 0; i < g.m; ++i) {
    T* c = g.c + i * g.ldc;
    for (std::int64_t j = 0; j < g.n; ++j) c[j] = g.beta == T(0) ? T(0) : g.beta * c[j];
    for (std::int64_t p = 0; p < g.k; ++p) {
      const T a = g.alpha * (g.a_op == Transpose::no ? g.a[i * g.lda + p] : g.a[p * g.lda + i]);
      for (std::int64_t j = 0; j < g.n; ++j) {
        c[j] += a * (g.b_op == Transpose::no ? g.b[p * g.ldb + j] : g.b[j * g.ldb + p]);
      }
    }
  }
}

}  // namespace smp
