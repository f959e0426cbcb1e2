// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Vectors for numbered things: tokens, and places in a sequence.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Whether an embedding and the head of a language model are one parameter, called "wte.weight" as in GPT-2.
enum class Tie : bool { none, wte };

/// The name of the tie, or none.
[[nodiscard]] constexpr FieldOptions tied(Tie tie) {
  return {.tie = tie == Tie::wte ? std::string_view("wte.weight") : std::string_view()};
}

/// A row of the weight for each id. Where the weight is a part of the vocabulary, the rows of other parts are zeros:
/// the parts sum to the whole.
/// @tparam tie whether the weight is also that of an `LmHead`, which must say the same
template <class T = float, Tie tie = Tie::none>
struct Embedding {
  using Input = Ids;           ///< any shape
  using Output = TensorOf<T>;  ///< that shape, and width
  /// The ids, and between the parts of backward the gradient of the output.
  struct Saved {
    Ids ids;         ///< the input
    TensorOf<T> dy;  ///< the gradient of the output
    static constexpr auto fields() { return smp::fields(smp::field("ids", &Saved::ids), smp::field("dy", &Saved::dy)); }
  };

  ParameterOf<T> weight;  ///< [count, width]

  /// `count` vectors of `width` numbers, as GPT-2 begins: normal with deviation 0.02.
  Embedding(std::int64_t count, std::int64_t width, Init init = {Init::Kind::normal, 0.02})
      : weight({count, width}, init) {}

  /// Each id by itself.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Embedding::weight, tied(tie))); }

  /// @throws ConfigError if an id is negative or not less than `count`; nothing is read outside of the weight
  Output forward(auto& ctx, const Input& ids, Saved& saved) const {
    const std::int64_t count = weight.shape()[0], width = weight.local_shape()[1];
    Output y(ctx.memory(), with_width(ids.shape(), width));
    ctx.stream().enqueue([n = static_cast<std::int64_t>(ids.size()), count, width, here = rows(), id = ids.data(),
                          w = values(), q = y.data()] {
      for (std::int64_t i = 0; i < n; ++i) {
        if (id[i] < 0 || id[i] >= count) {
          throw ConfigError("nn::Embedding has " + std::to_string(count) + " vectors, but at place " +
                            std::to_string(i) + " of its input is the id " + std::to_string(id[i]));
        }
        const std::int64_t row = id[i] - here.first;
        const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
        if (row >= 0 && row < here.count) {
          std::memcpy(q + i * width, w + row * width, bytes);
        } else {
          std::memset(q + i * width, 0, bytes);
        }
      }
    });
    saved.ids = ids;
    return y;
  }

  /// Adds dy to the gradients of the rows that were taken.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return {};
  }

  /// Nothing but to keep dy.
  GradOf<Input> backward_input(auto&, const GradOf<Output>& dy, Saved& saved) {
    expect_shape(with_width(saved.ids.shape(), weight.local_shape()[1]), dy.shape(), "Embedding",
                 "the gradient of the output");
    saved.dy = dy;
    return {};
  }

  /// Adds dy to the gradients of the rows that were taken, in the order of the ids.
  void backward_params(auto& ctx, Saved& saved) {
    if (weight.frozen() || weight.size() == 0) return;
    ctx.stream().enqueue([n = static_cast<std::int64_t>(saved.ids.size()), width = weight.local_shape()[1],
                          here = rows(), id = saved.ids.data(), g = saved.dy.data(), dw = weight.grad().data()] {
      vectorized([=](auto target) {
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t row = id[i] - here.first;
          if (row < 0 || row >= here.count) continue;
          add_arrays(target, width, dw + row * width, g + i * width, dw + row * width);
        }
      });
    });
  }

 private:
  /// The ids whose vectors are here.
  struct Rows {
    std::int64_t first, count;
  };
  [[nodiscard]] Rows rows() const noexcept {
    const Cut& cut = weight.cut();
    return {cut.dim == 0 ? cut.begin(weight.shape()[0]) : 0, weight.local_shape()[0]};
  }
  [[nodiscard]] const T* values() const { return weight.size() > 0 ? weight.value().data() : nullptr; }

  static Shape with_width(const Shape& shape, std::int64_t width) {
    switch (shape.rank()) {
      case 0:
        return {width};
      case 1:
        return {shape[0], width};
      case 2:
        return {shape[0], shape[1], width};
      case 3:
        return {shape[0], shape[1], shape[2], width};
      default:
        throw ConfigError("nn::Embedding takes ids of at most 3 dimensions, not of shape " + to_string(shape));
    }
  }
};

}  // namespace smp::nn
