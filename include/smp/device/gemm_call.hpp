// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A product of matrices as it is asked for: what all back ends of gemm() take.

#include <concepts>
#include <cstdint>
#include <string>

#include <smp/error.hpp>

namespace smp {

/// Whether a matrix is used as it is stored or transposed.
enum class Transpose : bool { no, yes };

/// Row-major C (m x n) = alpha op(A) (m x k) op(B) (k x n) + beta C. With beta = 0 C is not read, so it may hold
/// anything; sizes of 0 are allowed. C must not overlap A or B.
template <std::floating_point T>
struct Gemm {
  Transpose a_op = Transpose::no;  ///< yes: A is stored as k x m
  Transpose b_op = Transpose::no;  ///< yes: B is stored as n x k
  std::int64_t m = 0;              ///< rows of C
  std::int64_t n = 0;              ///< columns of C
  std::int64_t k = 0;              ///< terms of a sum
  const T* a = nullptr;            ///< A
  std::int64_t lda = 0;            ///< elements from one row of A, as stored, to the next
  const T* b = nullptr;            ///< B
  std::int64_t ldb = 0;            ///< elements from one row of B, as stored, to the next
  T* c = nullptr;                  ///< C
  std::int64_t ldc = 0;            ///< elements from one row of C to the next
  T alpha = T(1);                  ///< factor of the product
  T beta = T(0);                   ///< factor of what C held
};

/// Says what is wrong with sizes or strides.
/// @throws ConfigError for a negative size, or a stride that is less than a row
template <class T>
void check(const Gemm<T>& g) {
  if (g.m < 0 || g.n < 0 || g.k < 0) {
    throw ConfigError("gemm: sizes must not be negative, but m = " + std::to_string(g.m) +
                      ", n = " + std::to_string(g.n) + ", k = " + std::to_string(g.k));
  }
  const auto expect = [](const char* matrix, std::int64_t stride, std::int64_t row) {
    if (stride >= row) return;
    throw ConfigError(std::string("gemm: a row of ") + matrix + " has " + std::to_string(row) +
                      " elements, but the next one begins after " + std::to_string(stride));
  };
  expect("A", g.lda, g.a_op == Transpose::no ? g.k : g.m);
  expect("B", g.ldb, g.b_op == Transpose::no ? g.n : g.k);
  expect("C", g.ldc, g.n);
}

/// Does what there is to do if there is nothing to multiply, as the BLAS has it: C = beta C, and A and B are not read.
/// @return false if there is
template <class T>
bool gemm_is_trivial(const Gemm<T>& g) {
  if (g.m == 0 || g.n == 0) return true;
  if (g.k != 0 && g.alpha != T(0)) return false;
  for (std::int64_t i = 0; i < g.m; ++i) {
    for (T* c = g.c + i * g.ldc; c != g.c + i * g.ldc + g.n; ++c) *c = g.beta == T(0) ? T(0) : g.beta * *c;
  }
  return true;
}

}  // namespace smp
