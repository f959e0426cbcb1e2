// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Layer normalisation (Ba, Kiros, Hinton: Layer Normalization, 2016).

#include <cmath>
#include <cstdint>
#include <utility>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Normalises `rows` rows of `width` numbers: y = (x - mean) * rstd * gamma + beta. The variance is that of the
/// deviations, in a second pass: numbers that are large against their spread keep it.
/// @param statistics receives mean and rstd = 1/sqrt(variance + epsilon) of each row
template <class T>
void layer_norm_forward(std::int64_t rows, std::int64_t width, T epsilon, const T* x, const T* gamma, const T* beta,
                        T* y, T* statistics) {
  vectorized([=](auto target) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* in = x + r * width;
      const T mean = sum_of_row<T>(width, [=](std::int64_t i) { return in[i]; }) / static_cast<T>(width);
      const T squares = sum_of_row<T>(width, [=](std::int64_t i) { return (in[i] - mean) * (in[i] - mean); });
      const T rstd = 1 / std::sqrt(squares / static_cast<T>(width) + epsilon);
      map_blocks(
          target, width, y + r * width,
          [=](auto, auto& out, const auto& v, const auto& g, const auto& b) {
            for (int j = 0; j < block_size; ++j) out[j] = (v[j] - mean) * rstd * g[j] + b[j];
          },
          in, gamma, beta);
      statistics[2 * r] = mean;
      statistics[2 * r + 1] = rstd;
    }
  });
}

/// The gradient of the input of layer_norm_forward.
template <class T>
void layer_norm_backward_input(std::int64_t rows, std::int64_t width, const T* x, const T* gamma, const T* statistics,
                               const T* dy, T* dx) {
  vectorized([=](auto target) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const T *in = x + r * width, *d = dy + r * width;
      const T mean = statistics[2 * r], rstd = statistics[2 * r + 1];
      const T share = 1 / static_cast<T>(width);
      const T sum = sum_of_row<T>(width, [=](std::int64_t i) { return d[i] * gamma[i]; }) * share;
      const T along =
          sum_of_row<T>(width, [=](std::int64_t i) { return d[i] * gamma[i] * ((in[i] - mean) * rstd); }) * share;
      map_blocks(
          target, width, dx + r * width,
          [=](auto, auto& out, const auto& v, const auto& g, const auto& e) {
            for (int j = 0; j < block_size; ++j) out[j] = rstd * (e[j] * g[j] - sum - (v[j] - mean) * rstd * along);
          },
          in, gamma, d);
    }
  });
}

/// Adds the gradients of the parameters of layer_norm_forward; either may be null.
template <class T>
void layer_norm_backward_params(std::int64_t rows, std::int64_t width, const T* x, const T* statistics, const T* dy,
                                T* dgamma, T* dbeta) {
  vectorized([=](auto target) {
    for (std::int64_t r = 0; dgamma != nullptr && r < rows; ++r) {
      const T mean = statistics[2 * r], rstd = statistics[2 * r + 1];
      map_blocks(
          target, width, dgamma,
          [=](auto, auto& sum, const auto& before, const auto& v, const auto& d) {
            for (int j = 0; j < block_size; ++j) sum[j] = before[j] + d[j] * ((v[j] - mean) * rstd);
          },
          dgamma, x + r * width, dy + r * width);
    }
  });
  if (dbeta != nullptr) add_column_sums(rows, width, dy, dbeta);
}

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension.
template <class T = float>
struct LayerNorm {
  using Input = TensorOf<T>;   ///< [..., width]
  using Output = TensorOf<T>;  ///< the same
  /// The input, two numbers a row, and between the parts of backward the gradient of the output.
  struct Saved {
    TensorOf<T> x;           ///< the input
    TensorOf<T> statistics;  ///< mean and 1/sqrt(variance + epsilon) of each row
    TensorOf<T> dy;          ///< the gradient of the output
    static constexpr auto fields() {
      return smp::fields(smp::field("x", &Saved::x), smp::field("statistics", &Saved::statistics),
                         smp::field("dy", &Saved::dy));
    }
  };

  ParameterOf<T> weight;  ///< [width], ones at first
  ParameterOf<T> bias;    ///< [width], zeros at first
  T epsilon;              ///< added to the variance

  /// Rows of `width` numbers.
  explicit LayerNorm(std::int64_t width, double eps = 1e-5)
      : weight({width}, {Init::Kind::ones}), bias({width}), epsilon(static_cast<T>(eps)) {}

  /// Each row by itself.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &LayerNorm::weight, {.decay = false}),
                       smp::field("bias", &LayerNorm::bias, {.decay = false}));
  }

  /// @throws ConfigError if the last dimension of x is not `width`
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const std::int64_t width = weight.local_shape()[0];
    const std::int64_t rows = rows_of(x.shape(), width, "LayerNorm");
    Output y(ctx.memory(), x.shape());
    TensorOf<T> statistics(ctx.memory(), {rows, 2});
    ctx.stream().enqueue([rows, width, eps = epsilon, p = x.data(), gamma = weight.value().data(),
                          beta = bias.value().data(), q = y.data(),
                          s = statistics.data()] { layer_norm_forward(rows, width, eps, p, gamma, beta, q, s); });
    saved.x = x;
    saved.statistics = std::move(statistics);
    return y;
  }

  /// Both parts.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }

  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const std::int64_t width = weight.local_shape()[0];
    const std::int64_t rows = rows_of(saved.x.shape(), width, "LayerNorm");
    expect_shape(saved.x.shape(), dy.shape(), "LayerNorm", "the gradient of the output");
    Input dx(ctx.memory(), dy.shape());
    ctx.stream().enqueue([rows, width, p = saved.x.data(), gamma = weight.value().data(), s = saved.statistics.data(),
                          g = dy.data(),
                          q = dx.data()] { layer_norm_backward_input<T>(rows, width, p, gamma, s, g, q); });
    saved.dy = dy;
    return dx;
  }

  /// The gradients of weight and bias.
  void backward_params(auto& ctx, Saved& saved) {
    const std::int64_t width = weight.local_shape()[0];
    const std::int64_t rows = rows_of(saved.dy.shape(), width, "LayerNorm");
    T* dgamma = weight.frozen() ? nullptr : weight.grad().data();
    T* dbeta = bias.frozen() ? nullptr : bias.grad().data();
    ctx.stream().enqueue([rows, width, p = saved.x.data(), s = saved.statistics.data(), g = saved.dy.data(), dgamma,
                          dbeta] { layer_norm_backward_params<T>(rows, width, p, s, g, dgamma, dbeta); });
  }
};

}  // namespace smp::nn
