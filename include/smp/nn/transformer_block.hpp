// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One layer of a transformer: attention and MLP, each with its norm and residual, as GPT-2 names them.

#include <cstdint>
#include <tuple>
#include <utility>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/attention.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/mlp.hpp>
#include <smp/nn/transformer_options.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// x + attention(norm(x)), then x + mlp(norm(x)); or norm(x + attention(x)), then norm(x + mlp(x)).
/// @tparam masked whether a mask of keys comes with the hidden state; it is passed on
template <class T = float, KeyMask masked = KeyMask::none>
struct TransformerBlock {
  using Input = Hidden<T, masked>;   ///< [batch, sequence, width], with a mask [batch, sequence] if `masked`
  using Output = Hidden<T, masked>;  ///< the same
  /// What its parts save: 16 numbers for each of the input (the input included), a probability for each pair of places
  /// and head, and four statistics a place.
  struct Saved {
    typename LayerNorm<T>::Saved ln_1;          ///< of the attention
    typename Attention<T, masked>::Saved attn;  ///< with the normalised input
    typename LayerNorm<T>::Saved ln_2;          ///< of the MLP
    typename Mlp<T>::Saved mlp;                 ///< with its normalised input
    static constexpr auto fields() {
      return smp::fields(smp::field("ln_1", &Saved::ln_1), smp::field("attn", &Saved::attn),
                         smp::field("ln_2", &Saved::ln_2), smp::field("mlp", &Saved::mlp));
    }
  };

  LayerNorm<T> ln_1;          ///< of the attention
  Attention<T, masked> attn;  ///< between places
  LayerNorm<T> ln_2;          ///< of the MLP
  Mlp<T> mlp;                 ///< at each place
  NormPlacement norm;         ///< before or after

  /// @throws ConfigError if the heads do not divide the width
  TransformerBlock(std::int64_t width, std::int64_t heads, const TransformerOptions& options = {})
      : ln_1(width, options.epsilon),
        attn(width, heads, options),
        ln_2(width, options.epsilon),
        mlp(width, options),
        norm(options.norm) {}

  static constexpr auto fields() {
    return smp::fields(smp::field("ln_1", &TransformerBlock::ln_1), smp::field("attn", &TransformerBlock::attn),
                       smp::field("ln_2", &TransformerBlock::ln_2), smp::field("mlp", &TransformerBlock::mlp));
  }

  /// @throws ConfigError if the input is not [batch, sequence, width], or the mask not [batch, sequence]
  Output forward(auto& ctx, const Input& input, Saved& saved) const {
    const TensorOf<T>& x = hidden_of(input);
    if (norm == NormPlacement::before) {
      const TensorOf<T> middle = sum_of(ctx, x, attend(ctx, ln_1.forward(ctx, x, saved.ln_1), input, saved));
      return with_mask(sum_of(ctx, middle, mlp.forward(ctx, ln_2.forward(ctx, middle, saved.ln_2), saved.mlp)), input);
    }
    const TensorOf<T> middle = ln_1.forward(ctx, sum_of(ctx, x, attend(ctx, x, input, saved)), saved.ln_1);
    return with_mask(ln_2.forward(ctx, sum_of(ctx, middle, mlp.forward(ctx, middle, saved.mlp)), saved.ln_2), input);
  }

  /// Both parts; what was saved is freed on the way.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward>(ctx, dy, saved);
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward_input>(ctx, dy, saved);
  }
  /// The gradients of all parameters.
  void backward_params(auto& ctx, Saved& saved) {
    backward_params_of(ln_2, ctx, saved.ln_2);
    backward_params_of(mlp, ctx, saved.mlp);
    backward_params_of(attn, ctx, saved.attn);
    backward_params_of(ln_1, ctx, saved.ln_1);
  }

 private:
  TensorOf<T> attend(auto& ctx, const TensorOf<T>& x, const Input& input, Saved& saved) const {
    return attn.forward(ctx, with_mask(x, input), saved.attn);
  }
  static Input with_mask(TensorOf<T> x, [[maybe_unused]] const Input& input) {
    if constexpr (masked == KeyMask::given) {
      return {std::move(x), std::get<1>(input)};
    } else {
      return x;
    }
  }

  template <Phase phase>
  GradOf<Input> run_backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const auto through_attention = [&](const TensorOf<T>& d) {
      return hidden_of(backward_of<phase>(attn, ctx, d, saved.attn));
    };
    const TensorOf<T>& d = hidden_of(dy);
    TensorOf<T> dx;
    if (norm == NormPlacement::before) {
      TensorOf<T> middle = backward_of<phase>(ln_2, ctx, backward_of<phase>(mlp, ctx, d, saved.mlp), saved.ln_2);
      middle = sum_of(ctx, d, std::move(middle));
      dx = sum_of(ctx, middle, backward_of<phase>(ln_1, ctx, through_attention(middle), saved.ln_1));
    } else {
      TensorOf<T> after_mlp = backward_of<phase>(ln_2, ctx, d, saved.ln_2);
      TensorOf<T> middle = sum_of(ctx, after_mlp, backward_of<phase>(mlp, ctx, after_mlp, saved.mlp));
      after_mlp = backward_of<phase>(ln_1, ctx, middle, saved.ln_1);
      middle = {};
      dx = sum_of(ctx, after_mlp, through_attention(after_mlp));
    }
    if constexpr (masked == KeyMask::given) {
      return {std::move(dx), NoGrad{}};
    } else {
      return dx;
    }
  }
};

}  // namespace smp::nn
