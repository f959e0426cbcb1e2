// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What modules do with rows of numbers. Sums are taken in a fixed order, 64 partial sums at a time: what a row gives
/// depends on the row alone, not on how many rows there are or where it begins.

#include <algorithm>
#include <cstdint>
#include <string>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// The rows of a value whose last dimension is `width`.
/// @throws ConfigError, naming `module`, if it is not
[[nodiscard]] inline std::int64_t rows_of(const Shape& shape, std::int64_t width, const char* module) {
  if (shape.rank() == 0 || shape[-1] != width) {
    throw ConfigError(std::string("nn::") + module + " takes rows of " + std::to_string(width) +
                      " numbers, but was given a tensor of shape " + to_string(shape));
  }
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < static_cast<int>(shape.rank()); ++d) rows *= shape[d];
  return rows;
}

/// @throws ConfigError, naming `module`, unless `found` is `expected`
inline void expect_shape(const Shape& expected, const Shape& found, const char* module, const char* what) {
  if (found != expected) {
    throw ConfigError(std::string("nn::") + module + ": " + what + " must have the shape " + to_string(expected) +
                      ", not " + to_string(found));
  }
}

/// Combines the 64 values of a block into one, by halves.
template <class T, class Combine>
[[gnu::always_inline]] inline T fold(T (&block)[block_size], Combine combine) {
  for (int half = block_size / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) block[i] = combine(block[i], block[i + half]);
  }
  return block[0];
}

/// The sum of `term(i)` for i < n. Inside of `vectorized`.
template <class T, class Term>
[[gnu::always_inline]] inline T sum_of_row(std::int64_t n, Term term) {
  alignas(64) T sums[block_size] = {};
  std::int64_t i = 0;
  for (; i + block_size <= n; i += block_size) {
    for (int j = 0; j < block_size; ++j) sums[j] += term(i + j);
  }
  for (int j = 0; i + j < n; ++j) sums[j] += term(i + j);
  return fold(sums, [](T a, T b) { return a + b; });
}

/// The largest of n > 0 numbers. Inside of `vectorized`.
template <class T>
[[gnu::always_inline]] inline T largest(std::int64_t n, const T* x) {
  alignas(64) T most[block_size];
  for (int j = 0; j < block_size; ++j) most[j] = x[0];
  for (std::int64_t i = 0; i < n; i += block_size) {
    const VectorBlock<T> b(x + i, std::min<std::int64_t>(block_size, n - i));
    for (int j = 0; j < block_size; ++j) most[j] = most[j] < b.v[j] ? b.v[j] : most[j];
  }
  return fold(most, [](T a, T b) { return a < b ? b : a; });
}

/// Adds the sum of each column of `x` (rows x columns) to `sums`.
template <class T>
void add_column_sums(std::int64_t rows, std::int64_t columns, const T* x, T* sums) {
  vectorized([=](auto target) {
    const T *row = x, *end = x + rows * columns;
    for (; end - row >= 4 * columns && columns > 0; row += 4 * columns) {
      map_blocks(
          target, columns, sums,
          [](auto, auto& sum, const auto& before, const auto& a, const auto& b, const auto& c, const auto& d) {
            for (int j = 0; j < block_size; ++j) sum[j] = before[j] + ((a[j] + b[j]) + (c[j] + d[j]));
          },
          sums, row, row + columns, row + 2 * columns, row + 3 * columns);
    }
    for (; row != end; row += columns) add_arrays(target, columns, sums, row, sums);
  });
}

}  // namespace smp::nn
