// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// y = x W^T + b on the last dimension.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/matrix.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Whether a layer adds a bias.
enum class Bias : bool { no, yes };

/// y = x W^T + b for each row x of the input, whatever dimensions come before the last. The weight is [out, in].
template <class T = float>
struct Linear {
  using Input = TensorOf<T>;   ///< [..., in]
  using Output = TensorOf<T>;  ///< [..., out]
  /// The input; between the two parts of backward also the gradient of the output.
  struct Saved {
    TensorOf<T> x;   ///< the input
    TensorOf<T> dy;  ///< the gradient of the output
    static constexpr auto fields() { return smp::fields(smp::field("x", &Saved::x), smp::field("dy", &Saved::dy)); }
  };

  ParameterOf<T> weight;  ///< [out, in]
  ParameterOf<T> bias;    ///< [out]; without elements if there is none

  /// Initial values uniform in +-1/sqrt(in).
  Linear(std::int64_t in, std::int64_t out, Bias with_bias = Bias::yes)
      : Linear(in, out, with_bias, usual(in), usual(in)) {}
  /// With initial values of your own.
  Linear(std::int64_t in, std::int64_t out, Bias with_bias, Init weights, Init biases = {})
      : weight({out, in}, weights), bias({with_bias == Bias::yes ? out : 0}, biases) {}
  /// From parameters that are declared already; `b` without elements for no bias.
  Linear(ParameterOf<T> w, ParameterOf<T> b) : weight(std::move(w)), bias(std::move(b)) {}

  /// Each row by itself.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &Linear::weight), smp::field("bias", &Linear::bias, {.decay = false}));
  }

  /// @throws ConfigError if the last dimension of x is not `in`
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const std::int64_t in = weight.local_shape()[1], out = weight.local_shape()[0];
    const std::int64_t rows = rows_of(x.shape(), in, "Linear");
    Output y(ctx.memory(), x.shape().with(-1, out));
    const T* b = bias.size() > 0 ? bias.value().data() : nullptr;
    ctx.stream().enqueue([rows, in, out, b, w = weight.value().data(), p = x.data(), q = y.data()] {
      for (std::int64_t r = 0; b != nullptr && r < rows; ++r) {
        std::memcpy(q + r * out, b, static_cast<std::size_t>(out) * sizeof(T));
      }
      const Strided<const T> input{p, in}, weights{w, in};
      multiply<T>(rows, out, in, input, {weights, Transpose::yes}, {q, out}, 1, b != nullptr ? T(1) : T(0));
    });
    saved.x = x;
    return y;
  }

  /// Both parts.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }

  /// dy W.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const std::int64_t in = weight.local_shape()[1], out = weight.local_shape()[0];
    const std::int64_t rows = rows_of(saved.x.shape(), in, "Linear");
    expect_shape(saved.x.shape().with(-1, out), dy.shape(), "Linear", "the gradient of the output");
    Input dx(ctx.memory(), saved.x.shape());
    ctx.stream().enqueue([rows, in, out, w = weight.value().data(), p = dy.data(), q = dx.data()] {
      multiply<T>(rows, in, out, Strided<const T>{p, out}, Strided<const T>{w, in}, {q, in});
    });
    saved.dy = dy;
    return dx;
  }

  /// dy^T x, and the sums of dy's columns.
  void backward_params(auto& ctx, Saved& saved) {
    const std::int64_t in = weight.local_shape()[1], out = weight.local_shape()[0];
    const std::int64_t rows = rows_of(saved.dy.shape(), out, "Linear");
    if (!weight.frozen()) {
      ctx.stream().enqueue([rows, in, out, p = saved.x.data(), dy = saved.dy.data(), dw = weight.grad().data()] {
        multiply<T>(out, in, rows, {Strided<const T>{dy, out}, Transpose::yes}, Strided<const T>{p, in}, {dw, in}, 1,
                    1);
      });
    }
    if (bias.size() > 0 && !bias.frozen()) {
      ctx.stream().enqueue(
          [rows, out, dy = saved.dy.data(), db = bias.grad().data()] { add_column_sums(rows, out, dy, db); });
    }
  }

 private:
  static Init usual(std::int64_t in) {
    return {Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(in > 0 ? in : 1))};
  }
};

}  // namespace smp::nn
