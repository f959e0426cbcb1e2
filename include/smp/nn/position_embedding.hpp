// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A learned vector for each place in a sequence, added to what is there (GPT-2's wpe).

#include <cstdint>
#include <string>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// y[b, t, :] = x[b, t, :] + weight[t, :].
template <class T = float>
struct PositionEmbedding {
  using Input = TensorOf<T>;   ///< [batch, sequence, width]
  using Output = TensorOf<T>;  ///< the same
  /// Nothing; between the parts of backward the gradient of the output.
  struct Saved {
    TensorOf<T> dy;  ///< the gradient of the output
    static constexpr auto fields() { return smp::fields(smp::field("dy", &Saved::dy)); }
  };

  ParameterOf<T> weight;  ///< [longest sequence, width]

  /// For sequences of up to `longest`; as GPT-2 begins: normal with deviation 0.02.
  PositionEmbedding(std::int64_t longest, std::int64_t width, Init init = {Init::Kind::normal, 0.02})
      : weight({longest, width}, init) {}

  static constexpr auto fields() { return smp::fields(smp::field("weight", &PositionEmbedding::weight)); }

  /// @throws ConfigError if the sequence is longer than `longest`, or of another width
  Output forward(auto& ctx, const Input& x, Saved&) const {
    const auto [batch, row] = sizes(x.shape());
    Output y(ctx.memory(), x.shape());
    ctx.stream().enqueue([batch = batch, row = row, p = x.data(), w = weight.value().data(), q = y.data()] {
      vectorized([=](auto target) {
        for (std::int64_t b = 0; b < batch; ++b) {
          map_blocks(
              target, row, q + b * row,
              [](auto, auto& sum, const auto& u, const auto& v) {
                for (int j = 0; j < block_size; ++j) sum[j] = u[j] + v[j];
              },
              p + b * row, w);
        }
      });
    });
    return y;
  }

  /// Both parts; the gradient of the input is dy itself.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }

  /// dy.
  GradOf<Input> backward_input(auto&, const GradOf<Output>& dy, Saved& saved) {
    saved.dy = dy;
    return dy;
  }

  /// The sum of dy over the batch.
  void backward_params(auto& ctx, Saved& saved) {
    if (weight.frozen()) return;
    const auto [batch, row] = sizes(saved.dy.shape());
    ctx.stream().enqueue([batch = batch, row = row, g = saved.dy.data(), dw = weight.grad().data()] {
      add_column_sums(batch, row, g, dw);
    });
  }

 private:
  struct Sizes {
    std::int64_t batch, row;
  };
  [[nodiscard]] Sizes sizes(const Shape& x) const {
    const Shape w = weight.local_shape();
    if (x.rank() != 3 || x[1] > w[0] || x[2] != w[1]) {
      throw ConfigError("nn::PositionEmbedding takes [batch, up to " + std::to_string(w[0]) + ", " +
                        std::to_string(w[1]) + "], but was given a tensor of shape " + to_string(x));
    }
    return {x[0], x[1] * x[2]};
  }
};

}  // namespace smp::nn
