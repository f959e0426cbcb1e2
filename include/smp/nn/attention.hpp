// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Self-attention with several heads, as GPT-2 names its parts.

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/attention_core.hpp>
#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/transformer_options.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// Queries, keys and values from one linear layer, attention of each head, and a projection. Rows of places that see
/// nothing (all keys masked) are what the projection makes of zeros, with no gradient through the attention.
/// @tparam masked whether a mask of keys comes with the input
template <class T = float, KeyMask masked = KeyMask::none>
struct Attention {
  using Input = Hidden<T, masked>;  ///< [batch, sequence, width], with a mask [batch, sequence] if `masked`
  using Output = TensorOf<T>;       ///< [batch, sequence, width]
  /// Inputs of the linear layers, queries, keys and values, and all probabilities.
  struct Saved {
    typename Linear<T>::Saved c_attn;          ///< with the input of the module
    TensorOf<T> qkv;                           ///< queries, keys and values: [batch, sequence, 3 width]
    TensorOf<T> probabilities;                 ///< [batch, heads, sequence, sequence]
    typename Linear<T>::Saved c_proj;          ///< with what the heads give
    typename Dropout<T>::Saved attn_dropout;   ///< which samples
    typename Dropout<T>::Saved resid_dropout;  ///< which samples
    static constexpr auto fields() {
      return smp::fields(smp::field("c_attn", &Saved::c_attn), smp::field("qkv", &Saved::qkv),
                         smp::field("probabilities", &Saved::probabilities), smp::field("c_proj", &Saved::c_proj));
    }
  };

  std::int64_t head;         ///< numbers of one head
  bool causal;               ///< a place sees itself and what is before it
  Linear<T> c_attn;          ///< queries, keys and values
  Linear<T> c_proj;          ///< the projection
  Dropout<T> attn_dropout;   ///< of probabilities
  Dropout<T> resid_dropout;  ///< of the output

  /// @throws ConfigError if the heads do not divide the width
  Attention(std::int64_t width, std::int64_t heads, const TransformerOptions& options = {})
      : head(heads > 0 ? width / heads : 0),
        causal(options.causal),
        c_attn(width, 3 * width, options.bias, options.weights()),
        c_proj(width, width, options.bias, options.projection()),
        attn_dropout(options.dropout),
        resid_dropout(options.dropout) {
    if (heads <= 0 || width % heads != 0) {
      throw ConfigError("nn::Attention: a width of " + std::to_string(width) + " cannot be divided into " +
                        std::to_string(heads) + " equal heads");
    }
  }

  static constexpr auto fields() {
    return smp::fields(smp::field("c_attn", &Attention::c_attn), smp::field("c_proj", &Attention::c_proj),
                       smp::field("attn_dropout", &Attention::attn_dropout),
                       smp::field("resid_dropout", &Attention::resid_dropout));
  }

  /// @throws ConfigError if the input is not [batch, sequence, width], or the mask not [batch, sequence]
  Output forward(auto& ctx, const Input& input, Saved& saved) const {
    const TensorOf<T>& x = hidden_of(input);
    const std::int64_t width = c_attn.weight.local_shape()[1];
    if (x.shape().rank() != 3 || x.shape()[2] != width) {
      throw ConfigError("nn::Attention takes [batch, sequence, " + std::to_string(width) +
                        "], but was given a tensor of shape " + to_string(x.shape()));
    }
    const std::int32_t* mask = nullptr;
    if constexpr (masked == KeyMask::given) {
      expect_shape({x.shape()[0], x.shape()[1]}, std::get<1>(input).shape(), "Attention", "the mask of keys");
      mask = std::get<1>(input).data();
    }
    saved.qkv = c_attn.forward(ctx, x, saved.c_attn);
    saved.attn_dropout = {ctx.position, ctx.training && attn_dropout.probability > 0};
    const AttentionShape s = shape(ctx, saved);
    saved.probabilities = TensorOf<T>(ctx.memory(), {s.batch, s.heads, s.queries, s.keys});
    Output y(ctx.memory(), x.shape().with(-1, s.heads * s.head));
    TensorOf<T> scratch = room(ctx, s, saved.attn_dropout.active ? 1 : 0);
    ctx.stream().enqueue([s, rows = rows_of_qkv<const T>(saved.qkv, s), mask, p = saved.probabilities.data(),
                          r = scratch.data(), q = y.data()] { attention_forward<T>(s, rows, mask, p, r, q); });
    y = c_proj.forward(ctx, y, saved.c_proj);
    return resid_dropout.forward(ctx, y, saved.resid_dropout);
  }

  /// Both parts; what was saved is freed on the way.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward>(ctx, dy, saved);
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward_input>(ctx, dy, saved);
  }
  /// The gradients of the linear layers.
  void backward_params(auto& ctx, Saved& saved) {
    backward_params_of(c_proj, ctx, saved.c_proj);
    backward_params_of(c_attn, ctx, saved.c_attn);
  }

 private:
  template <Phase phase>
  GradOf<Input> run_backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const AttentionShape s = shape(ctx, saved);
    TensorOf<T> dout =
        backward_of<phase>(c_proj, ctx, resid_dropout.backward_input(ctx, dy, saved.resid_dropout), saved.c_proj);
    TensorOf<T> dqkv(ctx.memory(), saved.qkv.shape());
    TensorOf<T> scratch = room(ctx, s, saved.attn_dropout.active ? 2 : 1);
    ctx.stream().enqueue([s, rows = rows_of_qkv<const T>(saved.qkv, s), p = saved.probabilities.data(),
                          g = std::as_const(dout).data(), r = scratch.data(),
                          gradient = rows_of_qkv<T>(dqkv, s)] { attention_backward<T>(s, rows, p, g, r, gradient); });
    scratch = dout = saved.qkv = saved.probabilities = {};
    TensorOf<T> dx = backward_of<phase>(c_attn, ctx, std::move(dqkv), saved.c_attn);
    if constexpr (masked == KeyMask::given) {
      return {std::move(dx), NoGrad{}};
    } else {
      return dx;
    }
  }

  AttentionShape shape(auto& ctx, const Saved& saved) const {
    const Shape qkv = saved.qkv.shape();
    AttentionShape s{.batch = qkv[0], .queries = qkv[1], .keys = qkv[1], .head = head, .causal = causal};
    s.heads = qkv[2] / (3 * head);
    s.block = std::min(s.block, s.queries);
    if (saved.attn_dropout.active) {
      const Cut& cut = c_attn.weight.cut();  // heads that are here, of all
      s.dropout = DropoutMask::of(ctx.random(attn_dropout.site, saved.attn_dropout.position), attn_dropout.probability);
      s.first_sample = saved.attn_dropout.position.first_sample;
      s.first_head = cut.part * s.heads;
      s.all_heads = cut.parts * s.heads;
    }
    return s;
  }

  template <class Element, class Qkv>
  static AttentionRows<Element> rows_of_qkv(Qkv& qkv, const AttentionShape& s) {
    const std::int64_t width = s.heads * s.head;
    Element* q = qkv.data();
    return {q, q + width, q + 2 * width, 3 * width};
  }

  static TensorOf<T> room(auto& ctx, const AttentionShape& s, std::int64_t blocks) {
    if (blocks == 0) return {};
    return TensorOf<T>(ctx.memory(), {blocks * s.block * s.keys}, MemoryUse::buffer);
  }
};

}  // namespace smp::nn
