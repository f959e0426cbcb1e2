// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Modules that are small enough to be read, for tests of what runs modules.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include <smp/distribution.hpp>
#include <smp/fields.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::testing {

/// The name of a tie as a template argument.
struct Tie {
  char name[16]{};
  constexpr Tie() = default;
  template <std::size_t N>
  constexpr Tie(const char (&text)[N]) {
    for (std::size_t i = 0; i < N; ++i) name[i] = text[i];
  }
};

/// y = tanh(W x + b) for each row of x; in two parts.
template <class T, Tie tie = Tie{}>
struct Dense {
  using Input = TensorOf<T>;
  using Output = TensorOf<T>;
  struct Saved {
    TensorOf<T> x, y, dz;
  };
  ParameterOf<T> weight, bias;

  Dense(std::int64_t in, std::int64_t out, bool frozen = false, bool with_bias = true)
      : weight({out, in}, {Init::Kind::normal, 0.5}, {}, frozen),
        bias({with_bias ? out : 0}, {Init::Kind::uniform, 0.1}, {}, frozen) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &Dense::weight, {.tie = std::string_view(tie.name)}),
                       smp::field("bias", &Dense::bias, {.decay = false}));
  }

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto w = weight.value();
    const auto b = bias.value();
    const std::int64_t rows = x.shape()[0], in = w.shape()[1], out = w.shape()[0];
    TensorOf<T> y(ctx.memory(), {rows, out});
    ctx.stream().enqueue([=, x = x.data(), y = y.data(), w = w.data(), b = b.size() > 0 ? b.data() : nullptr] {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
          T z = b != nullptr ? b[o] : T(0);
          for (std::int64_t i = 0; i < in; ++i) z += w[o * in + i] * x[r * in + i];
          y[r * out + o] = std::tanh(z);
        }
      }
    });
    saved.x = x;
    saved.y = y;
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const auto w = weight.value();
    const std::int64_t rows = dy.shape()[0], in = w.shape()[1], out = w.shape()[0];
    TensorOf<T> dx(ctx.memory(), {rows, in});
    saved.dz = TensorOf<T>(ctx.memory(), dy.shape());
    ctx.stream().enqueue(
        [=, dx = dx.data(), w = w.data(), dz = saved.dz.data(), y = std::as_const(saved.y).data(), dy = dy.data()] {
          for (std::int64_t k = 0; k < rows * out; ++k) dz[k] = dy[k] * (1 - y[k] * y[k]);
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t i = 0; i < in; ++i) {
              T d = 0;
              for (std::int64_t o = 0; o < out; ++o) d += w[o * in + i] * dz[r * out + o];
              dx[r * in + i] = d;
            }
          }
        });
    saved.y = {};
    return dx;
  }
  void backward_params(auto& ctx, Saved& saved) {
    if (weight.frozen()) return;
    const auto dw = weight.grad();
    const auto db = bias.grad();
    const std::int64_t rows = saved.dz.shape()[0], in = dw.shape()[1], out = dw.shape()[0];
    ctx.stream().enqueue([=, dw = dw.data(), db = db.size() > 0 ? db.data() : nullptr,
                          x = std::as_const(saved.x).data(), dz = std::as_const(saved.dz).data()] {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < out; ++o) {
          for (std::int64_t i = 0; i < in; ++i) dw[o * in + i] += dz[r * out + o] * x[r * in + i];
          if (db != nullptr) db[o] += dz[r * out + o];
        }
      }
    });
  }
};

/// Half of the squared distance from the target, the mean over the rows.
template <class T>
struct SquaredError {
  using Input = std::tuple<TensorOf<T>, TensorOf<T>>;
  using Output = TensorOf<T>;
  using Saved = Input;

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto& [y, target] = x;
    TensorOf<T> loss(ctx.memory(), {});
    ctx.stream().enqueue([n = y.size(), rows = y.shape()[0], y = y.data(), t = target.data(), loss = loss.data()] {
      T sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += (y[i] - t[i]) * (y[i] - t[i]) / 2;
      *loss = sum / static_cast<T>(rows);
    });
    saved = x;
    return loss;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dl, Saved& saved) {
    const auto& [y, target] = std::as_const(saved);
    TensorOf<T> dy(ctx.memory(), y.shape());
    ctx.stream().enqueue(
        [n = y.size(), rows = y.shape()[0], y = y.data(), t = target.data(), dl = dl.data(), dy = dy.data()] {
          for (std::size_t i = 0; i < n; ++i) dy[i] = *dl * (y[i] - t[i]) / static_cast<T>(rows);
        });
    return {dy, TensorOf<T>()};
  }
};

/// The same for values that are equal on all tensor-parallel ranks.
template <class T>
struct InvariantSquaredError {
  using Input = std::tuple<Dist<TensorOf<T>, Invariant>, TensorOf<T>>;
  using Output = Dist<TensorOf<T>, Invariant>;
  using Saved = typename SquaredError<T>::Saved;

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    return {SquaredError<T>().forward(ctx, {std::get<0>(x).local, std::get<1>(x)}, saved)};
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dl, Saved& saved) {
    auto [dy, none] = SquaredError<T>().backward(ctx, dl.local, saved);
    return {{dy}, none};
  }
};

}  // namespace smp::testing
