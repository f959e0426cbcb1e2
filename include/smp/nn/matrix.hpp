// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Products of matrices that lie in larger ones.

#include <cstdint>

#include <smp/device/gemm.hpp>

namespace smp::nn {

/// A matrix of which one row begins `stride` elements after the other.
template <class T>
struct Strided {
  T* data;              ///< the first element
  std::int64_t stride;  ///< from row to row

  /// The matrix from row `first` and column `column` on.
  [[nodiscard]] Strided from(std::int64_t first, std::int64_t column = 0) const noexcept {
    return {data + first * stride + column, stride};
  }
};

/// A factor of a product.
template <class T>
struct Factor {
  const T* data;                 ///< the first element
  std::int64_t stride;           ///< from row to row, as stored
  Transpose op = Transpose::no;  ///< as which it is used

  /// `m`, used as `t` says.
  template <class Element>
  Factor(Strided<Element> m, Transpose t = Transpose::no) noexcept : data(m.data), stride(m.stride), op(t) {}
};

/// c (m x n) = alpha a b + beta c, with k terms in a sum.
template <class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Factor<T> a, Factor<T> b, Strided<T> c, T alpha = 1,
              T beta = 0) {
  gemm(Gemm<T>{a.op, b.op, m, n, k, a.data, a.stride, b.data, b.stride, c.data, c.stride, alpha, beta});
}

}  // namespace smp::nn
