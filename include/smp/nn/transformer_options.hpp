// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What can be chosen of a transformer layer, and how its parts run backward.

#include <cmath>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/module.hpp>
#include <smp/nn/activation.hpp>
#include <smp/nn/linear.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Where the layer norms are.
enum class NormPlacement : bool {
  before,  ///< x + f(norm(x)), as in GPT-2
  after    ///< norm(x + f(x)), as in the first transformers and BERT
};

/// Whether a mask of keys comes with the hidden state: ids [batch, sequence], 0 for places that nobody attends to.
enum class KeyMask : bool { none, given };

/// Choices of a transformer layer. What is not said is GPT-2.
struct TransformerOptions {
  bool causal = true;                                     ///< a place sees itself and what is before it
  Bias bias = Bias::yes;                                  ///< of the linear layers
  ActivationKind activation = ActivationKind::gelu_tanh;  ///< of the MLP
  NormPlacement norm = NormPlacement::before;             ///< of the block
  double dropout = 0;                                     ///< of attention probabilities and of what is added to x
  double epsilon = 1e-5;                                  ///< of the layer norms
  std::int64_t inner = 0;                                 ///< width of the MLP; 0: four times that of the model
  std::int64_t layers = 0;                                ///< of the model, for the initial values; 0: not said

  /// Initial weights.
  [[nodiscard]] Init weights() const { return {Init::Kind::normal, 0.02}; }
  /// Initial weights of what is added to x: smaller by the square root of how often that happens, if that is known.
  [[nodiscard]] Init projection() const {
    return {Init::Kind::normal, layers > 0 ? 0.02 / std::sqrt(2 * static_cast<double>(layers)) : 0.02};
  }
};

/// A hidden state, with its mask if there is one.
template <class T, KeyMask masked>
using Hidden = std::conditional_t<masked == KeyMask::given, std::tuple<TensorOf<T>, Ids>, TensorOf<T>>;

/// The hidden state of a state that may have a mask beside it.
template <class X>
[[nodiscard]] auto&& hidden_of(X&& x) {
  if constexpr (requires { std::tuple_size<std::remove_cvref_t<X>>::value; }) {
    return std::get<0>(std::forward<X>(x));
  } else {
    return std::forward<X>(x);
  }
}

/// What one child does of its parent's backward: all of it, after which what it had saved is freed, or the first part.
template <Phase phase, class M, class Ctx>
[[nodiscard]] GradOf<typename M::Input> backward_of(M& child, Ctx& ctx, GradOf<typename M::Output> dy,
                                                    typename M::Saved& saved) {
  if constexpr (phase == Phase::backward) {
    auto dx = child.backward(ctx, std::move(dy), saved);
    saved = {};
    return dx;
  } else {
    return child.backward_input(ctx, std::move(dy), saved);
  }
}

/// The second part of a child's backward, after which what it had saved is freed.
template <class M, class Ctx>
void backward_params_of(M& child, Ctx& ctx, typename M::Saved& saved) {
  child.backward_params(ctx, saved);
  saved = {};
}

}  // namespace smp::nn
