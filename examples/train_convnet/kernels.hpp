// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the modules of this example compute, on plain arrays. Images are [samples, height, width, channels].

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <smp/device/gemm.hpp>
#include <smp/device/vectorized.hpp>
#include <smp/nn/rows.hpp>

/// Sizes of images.
struct ImageSize {
  std::int64_t samples, height, width, channels;

  /// Elements of one image.
  [[nodiscard]] std::int64_t elements() const { return height * width * channels; }
  /// 3 x 3 neighbourhoods inside of an image.
  [[nodiscard]] std::int64_t patches() const { return (height - 2) * (width - 2); }
};

/// c (m x n) = op(a) (m x k) op(b) (k x n) + beta c; rows lie one behind the other.
template <class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, smp::Transpose a_op, const T* b,
              smp::Transpose b_op, T beta, T* c) {
  const auto lda = a_op == smp::Transpose::no ? k : m, ldb = b_op == smp::Transpose::no ? n : k;
  smp::gemm(smp::Gemm<T>{a_op, b_op, m, n, k, a, lda, b, ldb, c, n, T(1), beta});
}

/// Copies the 3 x 3 neighbourhoods of an image, one a row.
template <class T>
void gather_patches(const ImageSize& size, const T* image, T* patches) {
  for (std::int64_t i = 0; i + 2 < size.height; ++i) {
    for (std::int64_t j = 0; j + 2 < size.width; ++j) {
      for (std::int64_t row = i; row < i + 3; ++row) {
        patches = std::copy_n(image + (row * size.width + j) * size.channels, 3 * size.channels, patches);
      }
    }
  }
}

/// Adds each row of `patches` to the neighbourhood that it belongs to.
template <class T>
void scatter_patches(const ImageSize& size, const T* patches, T* image) {
  smp::vectorized([=](auto) {
    const T* from = patches;
    for (std::int64_t i = 0; i + 2 < size.height; ++i) {
      for (std::int64_t j = 0; j + 2 < size.width; ++j) {
        for (std::int64_t row = i; row < i + 3; ++row, from += 3 * size.channels) {
          T* to = image + (row * size.width + j) * size.channels;
          for (std::int64_t c = 0; c < 3 * size.channels; ++c) to[c] += from[c];
        }
      }
    }
  });
}

/// y = patches(x) weight^T + bias, image by image. `patches` is room for those of one image.
template <class T>
void convolution_forward(const ImageSize& size, std::int64_t out, const T* x, const T* weight, const T* bias,
                         T* patches, T* y) {
  const std::int64_t terms = 9 * size.channels, rows = size.patches();
  for (std::int64_t s = 0; s < size.samples; ++s, x += size.elements(), y += rows * out) {
    gather_patches(size, x, patches);
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(bias, out, y + r * out);
    multiply(rows, out, terms, patches, smp::Transpose::no, weight, smp::Transpose::yes, T(1), y);
  }
}

/// The gradients of x, and what is added to those of weight and bias.
template <class T>
void convolution_backward(const ImageSize& size, std::int64_t out, const T* x, const T* weight, const T* dy, T* patches,
                          T* dx, T* dweight, T* dbias) {
  const std::int64_t terms = 9 * size.channels, rows = size.patches();
  smp::nn::add_column_sums(size.samples * rows, out, dy, dbias);
  std::fill_n(dx, size.samples * size.elements(), T(0));
  for (std::int64_t s = 0; s < size.samples; ++s, x += size.elements(), dx += size.elements(), dy += rows * out) {
    gather_patches(size, x, patches);
    multiply(out, terms, rows, dy, smp::Transpose::yes, patches, smp::Transpose::no, T(1), dweight);
    multiply(rows, terms, out, dy, smp::Transpose::no, weight, smp::Transpose::no, T(0), patches);
    scatter_patches(size, patches, dx);
  }
}

/// Calls `f(i, candidates)` for element i of the output of a 2 x 2 pooling: the elements of the input it is made of.
template <class F>
void for_each_window(const ImageSize& size, F f) {
  const std::int64_t down = size.width * size.channels, right = size.channels;
  std::int64_t i = 0;
  for (std::int64_t s = 0; s < size.samples; ++s) {
    for (std::int64_t row = 0; row + 1 < size.height; row += 2) {
      for (std::int64_t column = 0; column + 1 < size.width; column += 2) {
        std::int64_t first = ((s * size.height + row) * size.width + column) * size.channels;
        for (std::int64_t c = 0; c < size.channels; ++c, ++first, ++i) {
          f(i, {first, first + right, first + down, first + down + right});
        }
      }
    }
  }
}
