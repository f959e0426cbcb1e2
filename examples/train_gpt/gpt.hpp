// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A language model of GPT-2's shape, from modules of the library: Radford, Wu, Child, Luan, Amodei, Sutskever:
/// Language Models are Unsupervised Multitask Learners, 2019. Its parameters have the names that GPT-2's have.

#include <cstddef>
#include <utility>

#include <smp/nn/dropout.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>

#include "options.hpp"

/// From tokens [samples, sequence] to logits [samples, sequence, classes] of the token after each.
template <class T>
class Gpt {
  using Tokens = smp::nn::Embedding<T, smp::nn::Tie::wte>;
  using Places = smp::nn::PositionEmbedding<T>;
  using Dropout = smp::nn::Dropout<T>;
  using Block = smp::Checkpointed<smp::nn::TransformerBlock<T>, smp::dynamic>;
  using Norm = smp::nn::LayerNorm<T>;
  using Head = smp::nn::LmHead<T, smp::nn::Tie::wte>;

 public:
  using Input = smp::Ids;
  using Output = smp::TensorOf<T>;
  struct Saved {
    typename Tokens::Saved wte;
    typename Places::Saved wpe;
    typename Dropout::Saved drop;
    typename smp::Repeat<Block>::Saved h;
    typename Norm::Saved ln_f;
    typename Head::Saved head;
    static constexpr auto fields() {
      return smp::fields(smp::field("wte", &Saved::wte), smp::field("wpe", &Saved::wpe),
                         smp::field("drop", &Saved::drop), smp::field("h", &Saved::h), smp::field("ln_f", &Saved::ln_f),
                         smp::field("head", &Saved::head));
    }
  };

  Gpt(int classes, const Options& o)
      : wte_(classes, o.hidden),
        wpe_(o.seq, o.hidden),
        drop_(o.dropout),
        h_(static_cast<std::size_t>(o.layers),
           [&](std::size_t) {
             return Block({o.hidden, o.heads, {.dropout = o.dropout, .layers = o.layers}}, o.checkpointing == "each");
           }),
        ln_f_(o.hidden),
        head_(o.hidden, classes) {}

  static constexpr auto fields() {
    return smp::fields(smp::field("wte", &Gpt::wte_), smp::field("wpe", &Gpt::wpe_), smp::field("drop", &Gpt::drop_),
                       smp::field("h", &Gpt::h_), smp::field("ln_f", &Gpt::ln_f_), smp::field("head", &Gpt::head_));
  }

  Output forward(auto& ctx, const Input& tokens, Saved& s) const {
    auto x = drop_.forward(ctx, wpe_.forward(ctx, wte_.forward(ctx, tokens, s.wte), s.wpe), s.drop);
    return head_.forward(ctx, ln_f_.forward(ctx, h_.forward(ctx, std::move(x), s.h), s.ln_f), s.head);
  }

  smp::NoGrad backward(auto& ctx, smp::GradOf<Output> dy, Saved& s) {
    const auto back = [&ctx](auto& child, auto gradient, auto& saved) {
      auto dx = child.backward(ctx, std::move(gradient), saved);
      saved = {};  // activations go as backward comes
      return dx;
    };
    auto dx = back(h_, back(ln_f_, back(head_, std::move(dy), s.head), s.ln_f), s.h);
    return back(wte_, back(wpe_, back(drop_, std::move(dx), s.drop), s.wpe), s.wte);
  }

 private:
  Tokens wte_;
  Places wpe_;
  Dropout drop_;
  smp::Repeat<Block> h_;
  Norm ln_f_;
  Head head_;
};
