// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Attention with fewer heads of keys and values than of queries (Ainslie et al.: GQA, 2023), and attention to another
/// state (Vaswani et al.: Attention Is All You Need, 2017). Names of parameters as in GPT-2 with cross-attention.

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/attention_core.hpp>
#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/transformer_options.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// What keys and values are made from.
enum class KeysFrom : bool {
  itself,  ///< the hidden state, as queries are
  other    ///< a second state, of an encoder
};

/// Queries from one linear layer, keys and values from another, attention of each head, and a projection. Query head i
/// of n sees key and value head i / (n / kv_heads).
/// @tparam from what keys and values are made from
/// @tparam masked whether a mask of keys comes with the input
template <class T = float, KeysFrom from = KeysFrom::itself, KeyMask masked = KeyMask::none>
struct GroupedAttention {
  static constexpr bool crosses = from == KeysFrom::other;    ///< there are two states
  static constexpr bool has_mask = masked == KeyMask::given;  ///< there is a mask
  using Two = std::conditional_t<has_mask, std::tuple<TensorOf<T>, TensorOf<T>, Ids>,
                                 std::tuple<TensorOf<T>, TensorOf<T>>>;  ///< two states, and the mask
  /// [batch, sequence, width]; for `other` with [batch, places, width of the other]; if `masked` with [batch, keys].
  using Input = std::conditional_t<crosses, Two, Hidden<T, masked>>;
  using Output = TensorOf<T>;  ///< [batch, sequence, width]
  /// Inputs of the linear layers, queries, keys and values, and all probabilities.
  struct Saved {
    typename Linear<T>::Saved q_attn;          ///< with the hidden state
    typename Linear<T>::Saved c_attn;          ///< with what keys and values are made from
    TensorOf<T> q;                             ///< queries: [batch, sequence, width]
    TensorOf<T> kv;                            ///< keys and values: [batch, places, 2 kv_heads head]
    TensorOf<T> probabilities;                 ///< [batch, heads, sequence, places]
    typename Linear<T>::Saved c_proj;          ///< with what the heads give
    typename Dropout<T>::Saved attn_dropout;   ///< which samples
    typename Dropout<T>::Saved resid_dropout;  ///< which samples
    static constexpr auto fields() {
      return smp::fields(smp::field("q_attn", &Saved::q_attn), smp::field("c_attn", &Saved::c_attn),
                         smp::field("q", &Saved::q), smp::field("kv", &Saved::kv),
                         smp::field("probabilities", &Saved::probabilities), smp::field("c_proj", &Saved::c_proj));
    }
  };

  std::int64_t head;         ///< numbers of one head
  bool causal;               ///< a place sees itself and what is before it
  Linear<T> q_attn;          ///< queries
  Linear<T> c_attn;          ///< keys, and values
  Linear<T> c_proj;          ///< the projection
  Dropout<T> attn_dropout;   ///< of probabilities
  Dropout<T> resid_dropout;  ///< of the output

  /// @param options the other state is seen whole, whatever they say of causality
  /// @param other_width numbers of a place of the other state; 0: as many as of the hidden state
  /// @throws ConfigError if the heads do not divide the width, or the heads of keys and values not the heads
  GroupedAttention(std::int64_t width, std::int64_t heads, std::int64_t kv_heads,
                   const TransformerOptions& options = {}, std::int64_t other_width = 0)
      : head(checked(width, heads, kv_heads)),
        causal(options.causal && !crosses),
        q_attn(width, width, options.bias, options.weights()),
        c_attn(other_width > 0 ? other_width : width, 2 * kv_heads * head, options.bias, options.weights()),
        c_proj(width, width, options.bias, options.projection()),
        attn_dropout(options.dropout),
        resid_dropout(options.dropout) {}

  static constexpr auto fields() {
    return smp::fields(smp::field("q_attn", &GroupedAttention::q_attn), smp::field("c_attn", &GroupedAttention::c_attn),
                       smp::field("c_proj", &GroupedAttention::c_proj),
                       smp::field("attn_dropout", &GroupedAttention::attn_dropout),
                       smp::field("resid_dropout", &GroupedAttention::resid_dropout));
  }

  /// @throws ConfigError if a state is not [batch, places, width], or the mask not [batch, places]
  Output forward(auto& ctx, const Input& input, Saved& saved) const {
    const TensorOf<T>& x = hidden_of(input);
    const TensorOf<T>& seen = keys_from(input);
    expect_state(x, q_attn.weight.local_shape()[1]);
    expect_state(seen, c_attn.weight.local_shape()[1]);
    if (x.shape()[0] != seen.shape()[0]) {
      throw ConfigError("nn::GroupedAttention was given states of " + std::to_string(x.shape()[0]) + " and of " +
                        std::to_string(seen.shape()[0]) + " samples");
    }
    const std::int32_t* mask = nullptr;
    if constexpr (has_mask) {
      const Ids& visible = std::get < crosses ? 2 : 1 > (input);
      expect_shape({seen.shape()[0], seen.shape()[1]}, visible.shape(), "GroupedAttention", "the mask of keys");
      mask = visible.data();
    }
    saved.q = q_attn.forward(ctx, x, saved.q_attn);
    saved.kv = c_attn.forward(ctx, seen, saved.c_attn);
    saved.attn_dropout = {ctx.position, ctx.training && attn_dropout.probability > 0};
    const AttentionShape s = shape(ctx, saved);
    saved.probabilities = TensorOf<T>(ctx.memory(), {s.batch, s.heads, s.queries, s.keys});
    Output y(ctx.memory(), saved.q.shape());
    TensorOf<T> scratch = room(ctx, s, saved.attn_dropout.active ? 1 : 0);
    ctx.stream().enqueue([s, rows = rows_of<const T>(saved.q, saved.kv), mask, p = saved.probabilities.data(),
                          r = scratch.data(), q = y.data()] { attention_forward<T>(s, rows, mask, p, r, q); });
    y = c_proj.forward(ctx, y, saved.c_proj);
    return resid_dropout.forward(ctx, y, saved.resid_dropout);
  }

  /// Both parts; what was saved is freed on the way.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward>(ctx, dy, saved);
  }
  /// The gradients of the states.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward_input>(ctx, dy, saved);
  }
  /// The gradients of the linear layers.
  void backward_params(auto& ctx, Saved& saved) {
    backward_params_of(c_proj, ctx, saved.c_proj);
    backward_params_of(q_attn, ctx, saved.q_attn);
    backward_params_of(c_attn, ctx, saved.c_attn);
  }

 private:
  template <Phase phase>
  GradOf<Input> run_backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const AttentionShape s = shape(ctx, saved);
    TensorOf<T> dout =
        backward_of<phase>(c_proj, ctx, resid_dropout.backward_input(ctx, dy, saved.resid_dropout), saved.c_proj);
    TensorOf<T> dq(ctx.memory(), saved.q.shape()), dkv(ctx.memory(), saved.kv.shape());
    TensorOf<T> scratch = room(ctx, s, saved.attn_dropout.active ? 2 : 1);
    ctx.stream().enqueue([s, rows = rows_of<const T>(saved.q, saved.kv), p = saved.probabilities.data(),
                          g = std::as_const(dout).data(), r = scratch.data(),
                          gradient = rows_of<T>(dq, dkv)] { attention_backward<T>(s, rows, p, g, r, gradient); });
    scratch = dout = saved.q = saved.kv = saved.probabilities = {};
    TensorOf<T> dx = backward_of<phase>(q_attn, ctx, std::move(dq), saved.q_attn);
    TensorOf<T> dseen = backward_of<phase>(c_attn, ctx, std::move(dkv), saved.c_attn);
    if constexpr (crosses && has_mask) {
      return {std::move(dx), std::move(dseen), NoGrad{}};
    } else if constexpr (crosses) {
      return {std::move(dx), std::move(dseen)};
    } else if constexpr (has_mask) {
      return {sum_of(ctx, dseen, std::move(dx)), NoGrad{}};
    } else {
      return sum_of(ctx, dseen, std::move(dx));
    }
  }

  static const TensorOf<T>& keys_from(const Input& input) {
    if constexpr (crosses) {
      return std::get<1>(input);
    } else {
      return hidden_of(input);
    }
  }

  AttentionShape shape(auto& ctx, const Saved& saved) const {
    const Shape q = saved.q.shape(), kv = saved.kv.shape();
    AttentionShape s{.batch = q[0], .queries = q[1], .keys = kv[1], .head = head, .causal = causal};
    s.heads = q[2] / head;
    s.group = q[2] * 2 / kv[2];
    s.block = std::min(s.block, s.queries);
    if (saved.attn_dropout.active) {
      const Cut& cut = q_attn.weight.cut();  // heads that are here, of all
      s.dropout = DropoutMask::of(ctx.random(attn_dropout.site, saved.attn_dropout.position), attn_dropout.probability);
      s.first_sample = saved.attn_dropout.position.first_sample;
      s.first_head = cut.part * s.heads;
      s.all_heads = cut.parts * s.heads;
    }
    return s;
  }

  template <class Element, class Tensor>
  static AttentionRows<Element> rows_of(Tensor& q, Tensor& kv) {
    const std::int64_t width = kv.shape()[-1] / 2;
    Element* k = kv.data();
    return {q.data(), k, k + width, q.shape()[-1], 2 * width};
  }

  static TensorOf<T> room(auto& ctx, const AttentionShape& s, std::int64_t blocks) {
    if (blocks == 0) return {};
    return TensorOf<T>(ctx.memory(), {blocks * s.block * s.keys}, MemoryUse::buffer);
  }

  static void expect_state(const TensorOf<T>& x, std::int64_t width) {
    if (x.shape().rank() == 3 && x.shape()[2] == width) return;
    throw ConfigError("nn::GroupedAttention takes [batch, places, " + std::to_string(width) +
                      "], but was given a tensor of shape " + to_string(x.shape()));
  }
  static std::int64_t checked(std::int64_t width, std::int64_t heads, std::int64_t kv_heads) {
    if (heads <= 0 || width % heads != 0) {
      throw ConfigError("nn::GroupedAttention: a width of " + std::to_string(width) + " cannot be divided into " +
                        std::to_string(heads) + " equal heads");
    }
    if (kv_heads <= 0 || heads % kv_heads != 0) {
      throw ConfigError("nn::GroupedAttention: " + std::to_string(heads) + " heads cannot share " +
                        std::to_string(kv_heads) + " heads of keys and values equally");
    }
    return width / heads;
  }
};

/// Attention of a hidden state to another state: Input is the tuple of both.
template <class T = float, KeyMask masked = KeyMask::none>
using CrossAttention = GroupedAttention<T, KeysFrom::other, masked>;

}  // namespace smp::nn
