// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A layer of several parameters, which need not have elements.

#include <array>
#include <cstdint>
#include <utility>

#include <doctest/doctest.h>

#include <smp/fields.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::testing {

/// y = x W^T, where the rows of W are three parameters, some without rows.
struct Rows {
  using Input = TensorOf<double>;
  using Output = TensorOf<double>;
  using Saved = TensorOf<double>;
  ParameterOf<double> a, b, c;
  explicit Rows(std::array<std::int64_t, 3> rows)
      : a({rows[0], 8}, normal), b({rows[1], 8}, normal), c({rows[2], 8}, normal) {}
  static constexpr Init normal{Init::Kind::normal, 1};
  static constexpr auto fields() {
    return smp::fields(smp::field("a", &Rows::a), smp::field("b", &Rows::b), smp::field("c", &Rows::c));
  }
  /// f(rows of a parameter, before them) for a, b and c
  template <class F>
  void each(F f) const {
    std::int64_t first = 0;
    for (const auto* p : {&a, &b, &c}) {
      f(*p, first);
      first += p->shape()[0];
    }
  }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const std::int64_t n = x.shape()[0], all = a.shape()[0] + b.shape()[0] + c.shape()[0];
    TensorOf<double> y(ctx.memory(), {n, all});
    each([&](const auto& p, std::int64_t first) {
      const auto w = p.value();
      CHECK(w.shape() == Shape{p.shape()[0], 8});
      ctx.stream().enqueue([=, rows = w.shape()[0], w = w.data(), x = x.data(), y = y.data()] {
        for (std::int64_t s = 0; s < n; ++s) {
          for (std::int64_t r = 0; r < rows; ++r) {
            y[s * all + first + r] = 0;
            for (std::int64_t i = 0; i < 8; ++i) y[s * all + first + r] += w[r * 8 + i] * x[s * 8 + i];
          }
        }
      });
    });
    saved = x;
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const std::int64_t n = dy.shape()[0], all = dy.shape()[1];
    each([&](const auto& p, std::int64_t first) {
      const auto g = p.grad();
      CHECK(g.shape() == Shape{p.shape()[0], 8});
      ctx.stream().enqueue([=, rows = g.shape()[0], g = g.data(), x = std::as_const(saved).data(), dy = dy.data()] {
        for (std::int64_t s = 0; s < n; ++s) {
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t i = 0; i < 8; ++i) g[r * 8 + i] += dy[s * all + first + r] * x[s * 8 + i];
          }
        }
      });
    });
    return TensorOf<double>(ctx.memory(), saved.shape());
  }
};

}  // namespace smp::testing
