// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Layer normalisation (Ba, Kiros, Hinton: Layer Normalization, 2016) of rows that are cut over the tensor-parallel
/// ranks: two numbers a row are summed over the ranks in forward, and two in backward.

#include <cmath>
#include <cstdint>
#include <utility>

#include <smp/distribution.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parallel/move.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// What `LayerNorm` computes, where each rank has a slice of every row and of the parameters.
template <class T = float>
struct DistributedLayerNorm {
  using Input = Dist<TensorOf<T>, Shard<Dim::features>>;  ///< [..., width of this rank]
  using Output = Input;                                   ///< the same
  using Saved = typename LayerNorm<T>::Saved;             ///< as if this rank's slice were all

  ParameterOf<T> weight;  ///< this rank's slice of [width]
  ParameterOf<T> bias;    ///< this rank's slice of [width]
  T epsilon;              ///< added to the variance

  /// Part `rank` of `ranks` of `whole`, whose parameters are declared, not made.
  /// @throws ConfigError if the width does not divide by the ranks
  DistributedLayerNorm(const LayerNorm<T>& whole, int rank, int ranks)
      : weight(slice(whole.weight, rank, ranks)), bias(slice(whole.bias, rank, ranks)), epsilon(whole.epsilon) {}

  static constexpr auto fields() {
    return smp::fields(smp::field<CutOverTp>("weight", &DistributedLayerNorm::weight, {.decay = false}),
                       smp::field<CutOverTp>("bias", &DistributedLayerNorm::bias, {.decay = false}));
  }

  /// @throws ConfigError if the last dimension of x is not this rank's part of the width
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const std::int64_t width = weight.local_shape()[0], all = weight.shape()[0];
    const std::int64_t rows = rows_of(x.local.shape(), width, "DistributedLayerNorm");
    const T* p = x.local.data();
    // The variance is that of the deviations, in a second pass, as LayerNorm takes it.
    Sums sums{TensorOf<T>(ctx.memory(), {rows}, MemoryUse::buffer)};
    ctx.stream().enqueue([rows, width, p, s = sums.local.data()] {
      vectorized([=](auto) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* in = p + r * width;
          s[r] = sum_of_row<T>(width, [=](std::int64_t i) { return in[i]; });
        }
      });
    });
    const Totals totals = move_to<Replicated>(ctx, std::move(sums));
    Sums squares{TensorOf<T>(ctx.memory(), {rows}, MemoryUse::buffer)};
    ctx.stream().enqueue([rows, width, all, p, t = totals.local.data(), s = squares.local.data()] {
      vectorized([=](auto) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* in = p + r * width;
          const T mean = t[r] / static_cast<T>(all);
          s[r] = sum_of_row<T>(width, [=](std::int64_t i) { return (in[i] - mean) * (in[i] - mean); });
        }
      });
    });
    const Totals spread = move_to<Replicated>(ctx, std::move(squares));
    Output y{TensorOf<T>(ctx.memory(), x.local.shape())};
    TensorOf<T> statistics(ctx.memory(), {rows, 2});
    ctx.stream().enqueue([rows, width, all, eps = epsilon, p, t = totals.local.data(), v = spread.local.data(),
                          gamma = weight.value().data(), beta = bias.value().data(), q = y.local.data(),
                          s = statistics.data()] {
      for (std::int64_t r = 0; r < rows; ++r) {
        s[2 * r] = t[r] / static_cast<T>(all);
        s[2 * r + 1] = 1 / std::sqrt(v[r] / static_cast<T>(all) + eps);
      }
      normalise(rows, width, p, gamma, beta, s, q);
    });
    saved.x = x.local;
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
    const std::int64_t width = weight.local_shape()[0], all = weight.shape()[0];
    const std::int64_t rows = rows_of(saved.x.shape(), width, "DistributedLayerNorm");
    expect_shape(saved.x.shape(), dy.local.shape(), "DistributedLayerNorm", "the gradient of the output");
    Sums sums{TensorOf<T>(ctx.memory(), {rows, 2}, MemoryUse::buffer)};
    ctx.stream().enqueue([rows, width, x = std::as_const(saved.x).data(), gamma = weight.value().data(),
                          s = std::as_const(saved.statistics).data(), d = dy.local.data(),
                          q = sums.local.data()] { gradient_sums(rows, width, x, gamma, s, d, q); });
    const Totals totals = move_to<Replicated>(ctx, std::move(sums));
    GradOf<Input> dx{TensorOf<T>(ctx.memory(), dy.local.shape())};
    ctx.stream().enqueue([rows, width, all, x = std::as_const(saved.x).data(), gamma = weight.value().data(),
                          s = std::as_const(saved.statistics).data(), t = totals.local.data(), d = dy.local.data(),
                          q = dx.local.data()] { gradient(rows, width, all, x, gamma, s, t, d, q); });
    saved.dy = dy.local;
    return dx;
  }

  /// The gradients of weight and bias.
  void backward_params(auto& ctx, Saved& saved) {
    const std::int64_t width = weight.local_shape()[0];
    const std::int64_t rows = rows_of(saved.dy.shape(), width, "DistributedLayerNorm");
    T* dgamma = weight.frozen() ? nullptr : weight.grad().data();
    T* dbeta = bias.frozen() ? nullptr : bias.grad().data();
    ctx.stream().enqueue([rows, width, x = std::as_const(saved.x).data(), s = std::as_const(saved.statistics).data(),
                          d = std::as_const(saved.dy).data(), dgamma,
                          dbeta] { layer_norm_backward_params<T>(rows, width, x, s, d, dgamma, dbeta); });
  }

 private:
  using Sums = Dist<TensorOf<T>, Partial>;       // of this rank's numbers
  using Totals = Dist<TensorOf<T>, Replicated>;  // of all numbers

  static ParameterOf<T> slice(const ParameterOf<T>& p, int rank, int ranks) {
    return ParameterOf<T>(p.shape(), p.init(), Cut{0, rank, ranks}, p.frozen());
  }
  static void normalise(std::int64_t rows, std::int64_t width, const T* x, const T* gamma, const T* beta,
                        const T* statistics, T* y) {
    vectorized([=](auto target) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T mean = statistics[2 * r], rstd = statistics[2 * r + 1];
        map_blocks(
            target, width, y + r * width,
            [=](auto, auto& out, const auto& v, const auto& g, const auto& b) {
              for (int j = 0; j < block_size; ++j) out[j] = (v[j] - mean) * rstd * g[j] + b[j];
            },
            x + r * width, gamma, beta);
      }
    });
  }
  /// Of each row the sums of dy gamma, and of dy gamma times the normalised input.
  static void gradient_sums(std::int64_t rows, std::int64_t width, const T* x, const T* gamma, const T* statistics,
                            const T* dy, T* sums) {
    vectorized([=](auto) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T *in = x + r * width, *d = dy + r * width;
        const T mean = statistics[2 * r], rstd = statistics[2 * r + 1];
        sums[2 * r] = sum_of_row<T>(width, [=](std::int64_t i) { return d[i] * gamma[i]; });
        sums[2 * r + 1] =
            sum_of_row<T>(width, [=](std::int64_t i) { return d[i] * gamma[i] * ((in[i] - mean) * rstd); });
      }
    });
  }
  static void gradient(std::int64_t rows, std::int64_t width, std::int64_t all, const T* x, const T* gamma,
                       const T* statistics, const T* totals, const T* dy, T* dx) {
    vectorized([=](auto target) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const T mean = statistics[2 * r], rstd = statistics[2 * r + 1], share = 1 / static_cast<T>(all);
        const T sum = totals[2 * r] * share, along = totals[2 * r + 1] * share;
        map_blocks(
            target, width, dx + r * width,
            [=](auto, auto& out, const auto& v, const auto& g, const auto& e) {
              for (int j = 0; j < block_size; ++j) out[j] = rstd * (e[j] * g[j] - sum - (v[j] - mean) * rstd * along);
            },
            x + r * width, gamma, dy + r * width);
      }
    });
  }
};

}  // namespace smp::nn
