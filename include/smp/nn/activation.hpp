// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Functions that are applied to each number by itself.

#include <cstddef>
#include <cstdint>
#include <numbers>
#include <utility>

#include <smp/device/vectorized.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Which function. GELU (Hendrycks, Gimpel: Gaussian Error Linear Units, 2016) is x times the normal distribution
/// function of x; `gelu_tanh` is its approximation, which GPT-2 has.
enum class ActivationKind : unsigned char { gelu_tanh, gelu_erf, relu };

/// x within +-`most`, where the derivatives of GELU are constant already: no power of it overflows.
template <class T>
[[gnu::always_inline]] inline T within(T x, T most) {
  const T below = x < most ? x : most;
  return below < -most ? -most : below;
}

/// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2u)): nothing cancels, and one
/// exponential serves value and derivative. Inside of `vectorized`, 64 numbers; `e` becomes 1 + exp(-2u).
template <class Unit, class T>
[[gnu::always_inline]] inline void gelu_tanh_divisor(Unit unit, T (&e)[block_size], const T (&x)[block_size]) {
  constexpr T factor = T(-2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  for (int i = 0; i < block_size; ++i) {
    const T v = within(x[i], T(9.5));
    e[i] = factor * v * (1 + T(0.044715) * v * v);
  }
  unit.exp(e);
  for (int i = 0; i < block_size; ++i) e[i] += 1;
}

/// y[i] = the function of x[i].
template <class T>
void activation_forward(ActivationKind kind, std::int64_t n, const T* x, T* y) {
  if (kind == ActivationKind::gelu_tanh) {
    vectorized([=](auto target) {
      map_blocks(
          target, n, y,
          [](auto unit, auto& out, const auto& in) {
            gelu_tanh_divisor(unit, out, in);
            for (int i = 0; i < block_size; ++i) out[i] = in[i] / out[i];
          },
          x);
    });
  } else if (kind == ActivationKind::gelu_erf) {
    vectorized([=](auto target) {
      map_blocks(
          target, n, y,
          [](auto unit, auto& out, const auto& in) {
            for (int i = 0; i < block_size; ++i) out[i] = in[i] * T(1 / std::numbers::sqrt2);
            unit.erf(out);
            for (int i = 0; i < block_size; ++i) out[i] = T(0.5) * in[i] * (1 + out[i]);
          },
          x);
    });
  } else {
    vectorized([=](auto target) {
      map_blocks(
          target, n, y,
          [](auto, auto& out, const auto& in) {
            for (int i = 0; i < block_size; ++i) out[i] = in[i] > 0 ? in[i] : T(0);
          },
          x);
    });
  }
}

/// dx[i] = dy[i] times the derivative at x[i]; that of ReLU at 0 is 0. `dx` may be `dy`.
template <class T>
void activation_backward(ActivationKind kind, std::int64_t n, const T* x, const T* dy, T* dx) {
  if (kind == ActivationKind::gelu_tanh) {
    vectorized([=](auto target) {
      map_blocks(
          target, n, dx,
          [](auto unit, auto& out, const auto& in, const auto& g) {
            constexpr T factor = T(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
            gelu_tanh_divisor(unit, out, in);
            for (int i = 0; i < block_size; ++i) {
              const T s = 1 / out[i], v = within(in[i], T(9.5));
              out[i] = g[i] * (s + s * (1 - s) * factor * v * (1 + T(3 * 0.044715) * v * v));
            }
          },
          x, dy);
    });
  } else if (kind == ActivationKind::gelu_erf) {
    vectorized([=](auto target) {
      map_blocks(
          target, n, dx,
          [](auto unit, auto& out, const auto& in, const auto& g) {
            constexpr T density =
                T(std::numbers::inv_sqrtpi / std::numbers::sqrt2);  // of the normal distribution, at 0
            alignas(64) T e[block_size];
            for (int i = 0; i < block_size; ++i) {
              out[i] = in[i] * T(1 / std::numbers::sqrt2);
              const T v = within(in[i], T(13));
              e[i] = T(-0.5) * v * v;
            }
            unit.erf(out);
            unit.exp(e);
            for (int i = 0; i < block_size; ++i) {
              out[i] = g[i] * (T(0.5) * (1 + out[i]) + within(in[i], T(13)) * density * e[i]);
            }
          },
          x, dy);
    });
  } else {
    vectorized([=](auto target) {
      map_blocks(
          target, n, dx,
          [](auto, auto& out, const auto& in, const auto& g) {
            for (int i = 0; i < block_size; ++i) out[i] = in[i] > 0 ? g[i] : T(0);
          },
          x, dy);
    });
  }
}

/// One of the functions, chosen at run time.
template <class T = float>
struct Activation {
  using Input = TensorOf<T>;   ///< any shape
  using Output = TensorOf<T>;  ///< the same
  /// The input.
  struct Saved {
    TensorOf<T> x;  ///< the input
    static constexpr auto fields() { return smp::fields(smp::field("x", &Saved::x)); }
  };

  ActivationKind kind = ActivationKind::gelu_tanh;  ///< which

  /// Each number by itself.
  static constexpr bool works_on_slices_of(Dim) { return true; }

  /// The function of each element.
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    Output y(ctx.memory(), x.shape());
    ctx.stream().enqueue([k = kind, n = static_cast<std::int64_t>(x.size()), p = x.data(), q = y.data()] {
      activation_forward(k, n, p, q);
    });
    saved.x = x;
    return y;
  }

  /// All of it: there are no parameters.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return backward_input(ctx, std::move(dy), saved);
  }

  /// dy times the derivative; in dy's place if nobody else has that.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    expect_shape(saved.x.shape(), dy.shape(), "Activation", "the gradient of the output");
    Input dx = TensorTraits<Input>::sole(dy) ? dy : Input(ctx.memory(), dy.shape());
    ctx.stream().enqueue([k = kind, n = static_cast<std::int64_t>(dy.size()), p = std::as_const(saved.x).data(),
                          g = std::as_const(dy).data(), q = dx.data()] { activation_backward<T>(k, n, p, g, q); });
    saved = {};
    return dx;
  }

  /// Nothing.
  void backward_params(auto&, Saved&) {}
};

}  // namespace smp::nn
