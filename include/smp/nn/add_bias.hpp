// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A bias by itself: what is added once, after the parts of a cut layer have been summed.

#include <cstdint>
#include <utility>

#include <smp/device/vectorized.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// y = x + b for each row x.
template <class T = float>
struct AddBias {
  using Input = TensorOf<T>;   ///< [..., width]
  using Output = TensorOf<T>;  ///< the same
  /// Between the parts of backward the gradient of the output.
  struct Saved {
    TensorOf<T> dy;  ///< the gradient of the output
    static constexpr auto fields() { return smp::fields(smp::field("dy", &Saved::dy)); }
  };

  ParameterOf<T> bias;  ///< [width]; without elements nothing is added

  /// Each row by itself.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() { return smp::fields(smp::field("bias", &AddBias::bias, {.decay = false})); }

  /// @throws ConfigError if the last dimension of x is not `width`
  Output forward(auto& ctx, const Input& x, Saved&) const {
    if (bias.size() == 0) return x;
    const std::int64_t width = bias.local_shape()[0];
    const std::int64_t rows = rows_of(x.shape(), width, "AddBias");
    Output y(ctx.memory(), x.shape());
    ctx.stream().enqueue([rows, width, p = x.data(), b = bias.value().data(), q = y.data()] {
      vectorized([=](auto unit) {
        for (std::int64_t r = 0; r < rows; ++r) add_arrays(unit, width, p + r * width, b, q + r * width);
      });
    });
    return y;
  }
  /// Both parts.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }
  /// The gradient of the input is that of the output.
  GradOf<Input> backward_input(auto&, const GradOf<Output>& dy, Saved& saved) {
    if (bias.size() > 0) saved.dy = dy;
    return dy;
  }
  /// The sums of dy's columns.
  void backward_params(auto& ctx, Saved& saved) {
    if (bias.size() == 0 || bias.frozen()) return;
    const std::int64_t width = bias.local_shape()[0];
    ctx.stream().enqueue([rows = rows_of(saved.dy.shape(), width, "AddBias"), width, dy = saved.dy.data(),
                          db = bias.grad().data()] { add_column_sums(rows, width, dy, db); });
  }
};

}  // namespace smp::nn
