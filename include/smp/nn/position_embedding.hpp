// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A learned vector for each place in a sequence, added to what is there (GPT-2's wpe).

#include <algorithm>
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
  /// Which rows these are; between the parts of backward the gradient of the output.
  struct Saved {
    TensorOf<T> dy;             ///< the gradient of the output
    RandomPosition position{};  ///< which slice of the rows
    static constexpr auto fields() { return smp::fields(smp::field("dy", &Saved::dy)); }
  };

  ParameterOf<T> weight;  ///< [longest sequence, width]

  /// For sequences of up to `longest`; as GPT-2 begins: normal with deviation 0.02.
  PositionEmbedding(std::int64_t longest, std::int64_t width, Init init = {Init::Kind::normal, 0.02})
      : weight({longest, width}, init) {}

  /// It knows which rows it sees.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() { return smp::fields(smp::field("weight", &PositionEmbedding::weight)); }

  /// @throws ConfigError if the sequence is longer than `longest`, or of another width
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved.position = ctx.position;
    Output y(ctx.memory(), x.shape());
    ctx.stream().enqueue(
        [rows = rows_of(x.shape(), ctx.position), p = x.data(), w = weight.value().data(), q = y.data()] {
          vectorized([=](auto unit) {
            for_each_run(rows, [=](std::int64_t at, std::int64_t place, std::int64_t n) {
              add_arrays(unit, n, p + at, w + place, q + at);
            });
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
    ctx.stream().enqueue(
        [rows = rows_of(saved.dy.shape(), saved.position), g = saved.dy.data(), dw = weight.grad().data()] {
          vectorized([=](auto unit) {
            for_each_run(rows, [=](std::int64_t at, std::int64_t place, std::int64_t n) {
              add_arrays(unit, n, dw + place, g + at, dw + place);
            });
          });
        });
  }

 private:
  /// All in numbers, not rows: a sample has `sample` of them, and these are `size`, from `begin` on.
  struct Rows {
    std::int64_t sample, begin, size;
  };
  [[nodiscard]] Rows rows_of(const Shape& x, const RandomPosition& position) const {
    const Shape w = weight.local_shape();
    const auto parts = static_cast<std::int64_t>(position.parts);
    if (x.rank() != 3 || x[1] * parts > w[0] || x[2] != w[1]) {
      throw ConfigError("nn::PositionEmbedding takes [batch, up to " + std::to_string(w[0]) + ", " +
                        std::to_string(w[1]) + "], but was given a tensor of shape " + to_string(x) +
                        (parts > 1 ? ", one of " + std::to_string(parts) + " slices" : ""));
    }
    const auto size = static_cast<std::int64_t>(x.elements());
    return {x[1] * x[2] * parts, static_cast<std::int64_t>(position.part) * size, size};
  }
  /// Calls `f(place in x, place in the weight, numbers)` for what lies in one sample.
  template <class F>
  [[gnu::always_inline]] static void for_each_run(const Rows& rows, F f) {
    for (std::int64_t at = 0; at < rows.size;) {
      const std::int64_t place = (rows.begin + at) % rows.sample;
      const std::int64_t n = std::min(rows.size - at, rows.sample - place);
      f(at, place, n);
      at += n;
    }
  }
};

}  // namespace smp::nn
