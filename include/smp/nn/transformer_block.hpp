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
#include <smp/parallel/boundary.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Says in words why two branches do not make a block.
template <class Input, class Attn, class Feed>
consteval bool expect_branches() {
  using State = std::remove_cvref_t<decltype(hidden_of(std::declval<Input>()))>;
  constexpr bool attention_fits =
      std::is_same_v<typename Attn::Input, Input> && std::is_same_v<typename Attn::Output, State>;
  constexpr bool mlp_fits = std::is_same_v<typename Feed::Input, State> && std::is_same_v<typename Feed::Output, State>;
  static_assert(
      attention_fits,
      "smp::nn::TransformerBlock: the attention must end as it begins: the same type, distributed in the same "
      "way");
  static_assert(mlp_fits,
                "smp::nn::TransformerBlock: the MLP must take and return what the attention does, distributed in the "
                "same way");
  return true;
}

/// x + attention(norm(x)), then x + mlp(norm(x)); or norm(x + attention(x)), then norm(x + mlp(x)).
/// @tparam masked whether a mask of keys comes with the hidden state; it is passed on
/// @tparam Attn, Feed the branches: plain, or cut (`TensorParallel`); how the values of the block are distributed is
/// what they say
template <class T = float, KeyMask masked = KeyMask::none, class Attn = Attention<T, masked>, class Feed = Mlp<T>>
struct TransformerBlock {
  using Tags = TagsOf<typename Attn::Input>;        ///< how values are distributed
  using State = SpreadAs<TensorOf<T>, Tags>;        ///< [batch, sequence, width]
  using Input = SpreadAs<Hidden<T, masked>, Tags>;  ///< the state, with a mask [batch, sequence] if `masked`
  using Output = Input;                             ///< the same
  static_assert(expect_branches<Input, Attn, Feed>());
  /// What its parts save: 16 numbers for each of the input (the input included), a probability for each pair of places
  /// and head, and four statistics a place.
  struct Saved {
    typename LayerNorm<T>::Saved ln_1;  ///< of the attention
    typename Attn::Saved attn;          ///< with the normalised input
    typename LayerNorm<T>::Saved ln_2;  ///< of the MLP
    typename Feed::Saved mlp;           ///< with its normalised input
    static constexpr auto fields() {
      return smp::fields(smp::field("ln_1", &Saved::ln_1), smp::field("attn", &Saved::attn),
                         smp::field("ln_2", &Saved::ln_2), smp::field("mlp", &Saved::mlp));
    }
  };

  LayerNorm<T> ln_1;   ///< of the attention
  Attn attn;           ///< between places
  LayerNorm<T> ln_2;   ///< of the MLP
  Feed mlp;            ///< at each place
  NormPlacement norm;  ///< before or after

  /// @throws ConfigError if the heads do not divide the width
  TransformerBlock(std::int64_t width, std::int64_t heads, const TransformerOptions& options = {})
      : TransformerBlock(width, Attn(width, heads, options), Feed(width, options), options) {}
  /// Of branches that are there already.
  TransformerBlock(std::int64_t width, Attn attention, Feed feed, const TransformerOptions& options = {})
      : ln_1(width, options.epsilon),
        attn(std::move(attention)),
        ln_2(width, options.epsilon),
        mlp(std::move(feed)),
        norm(options.norm) {}

  static constexpr auto fields() {
    return smp::fields(smp::field("ln_1", &TransformerBlock::ln_1), smp::field("attn", &TransformerBlock::attn),
                       smp::field("ln_2", &TransformerBlock::ln_2), smp::field("mlp", &TransformerBlock::mlp));
  }

  /// @throws ConfigError if the input is not [batch, sequence, width], or the mask not [batch, sequence]
  Output forward(auto& ctx, const Input& input, Saved& saved) const {
    const State& x = hidden_of(input);
    if (norm == NormPlacement::before) {
      const State middle = sum_of(ctx, x, attend(ctx, Norm::forward(ln_1, ctx, x, saved.ln_1), input, saved));
      return with_mask(sum_of(ctx, middle, mlp.forward(ctx, Norm::forward(ln_2, ctx, middle, saved.ln_2), saved.mlp)),
                       input);
    }
    const State middle = Norm::forward(ln_1, ctx, sum_of(ctx, x, attend(ctx, x, input, saved)), saved.ln_1);
    return with_mask(Norm::forward(ln_2, ctx, sum_of(ctx, middle, mlp.forward(ctx, middle, saved.mlp)), saved.ln_2),
                     input);
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
  using Norm = Joint<LayerNorm<T>, Tags>;
  using Gradient = GradOf<State>;

  State attend(auto& ctx, const State& x, const Input& input, Saved& saved) const {
    return attn.forward(ctx, with_mask(x, input), saved.attn);
  }
  static Input with_mask(State x, [[maybe_unused]] const Input& input) {
    if constexpr (masked == KeyMask::given) {
      return {std::move(x), std::get<1>(input)};
    } else {
      return x;
    }
  }
  static GradOf<Output> without_mask(Gradient d) {
    if constexpr (masked == KeyMask::given) {
      return {std::move(d), NoGrad{}};
    } else {
      return d;
    }
  }

  template <Phase phase>
  static Gradient through(LayerNorm<T>& module, auto& ctx, Gradient d, typename LayerNorm<T>::Saved& saved) {
    if constexpr (phase == Phase::backward) {
      return Norm::backward(module, ctx, std::move(d), saved);
    } else {
      return Norm::backward_input(module, ctx, std::move(d), saved);
    }
  }

  template <Phase phase>
  GradOf<Input> run_backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const auto through_attention = [&](const Gradient& d) -> Gradient {
      return hidden_of(backward_of<phase>(attn, ctx, d, saved.attn));
    };
    const Gradient& d = hidden_of(dy);
    Gradient dx;
    if (norm == NormPlacement::before) {
      Gradient middle = through<phase>(ln_2, ctx, backward_of<phase>(mlp, ctx, d, saved.mlp), saved.ln_2);
      middle = sum_of(ctx, d, std::move(middle));
      dx = sum_of(ctx, middle, through<phase>(ln_1, ctx, through_attention(middle), saved.ln_1));
    } else {
      Gradient after_mlp = through<phase>(ln_2, ctx, d, saved.ln_2);
      Gradient middle = sum_of(ctx, after_mlp, backward_of<phase>(mlp, ctx, after_mlp, saved.mlp));
      after_mlp = through<phase>(ln_1, ctx, middle, saved.ln_1);
      middle = {};
      dx = sum_of(ctx, after_mlp, through_attention(after_mlp));
    }
    return without_mask(std::move(dx));
  }
};

}  // namespace smp::nn
