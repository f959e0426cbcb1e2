// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A language model of GPT-2's shape, from modules of the library: Radford, Wu, Child, Luan, Amodei, Sutskever:
/// Language Models are Unsupervised Multitask Learners, 2019. Its parameters have the names that GPT-2's have.

#include <cstddef>
#include <utility>

#include <smp/nn/dropout.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>

#include "options.hpp"

/// From tokens [samples, sequence] to logits [samples, sequence, classes] of the token after each; of the classes, each
/// tensor-parallel rank has its part. The children that are cut say so; the others pass on what they get.
/// @tparam At how hidden states are distributed: Invariant (every rank has all), or Shard<Dim::sequence> (some rows)
template <class T, class At>
class Gpt {
  template <class M, smp::Split S = smp::Split::usual>
  using Cut = smp::TensorParallel<M, S, At>;
  template <class M>
  using Plain = smp::Joint<M, smp::Tags<At>>;

  using Attention = smp::nn::Attention<T>;
  using Mlp = smp::nn::Mlp<T>;
  using Layer = smp::nn::TransformerBlock<T, smp::nn::KeyMask::none, Cut<Attention>, Cut<Mlp>>;
  using Block = smp::Checkpointed<Layer, smp::dynamic>;

  using Tokens = Cut<smp::nn::Embedding<T, smp::nn::Tie::wte>, smp::Split::rows>;
  using Places = smp::nn::PositionEmbedding<T>;
  using Dropout = smp::nn::Dropout<T>;
  using Norm = smp::nn::LayerNorm<T>;
  using Head = Cut<smp::nn::LmHead<T, smp::nn::Tie::wte>>;

 public:
  using Input = smp::Ids;
  using Output = smp::Dist<smp::TensorOf<T>, smp::Shard<smp::Dim::features>>;
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

  /// @param rank, ranks of the tensor-parallel group
  Gpt(int classes, const Options& o, int rank, int ranks)
      : wte_({classes, o.hidden}, rank, ranks),
        wpe_(o.seq, o.hidden),
        drop_(o.dropout),
        h_(static_cast<std::size_t>(o.layers),
           [&](std::size_t) {
             const smp::nn::TransformerOptions layer{.dropout = o.dropout, .layers = o.layers};
             return Block({o.hidden,
                           {Attention(o.hidden, o.heads, layer), rank, ranks},
                           {Mlp(o.hidden, layer), rank, ranks},
                           layer},
                          o.checkpointing == "each");
           }),
        ln_f_(o.hidden),
        head_({o.hidden, classes}, rank, ranks) {}

  /// wpe and ln_f are applied where hidden states are; what is cut knows by itself.
  static constexpr auto fields() {
    return smp::fields(smp::field("wte", &Gpt::wte_), smp::field<At>("wpe", &Gpt::wpe_),
                       smp::field("drop", &Gpt::drop_), smp::field("h", &Gpt::h_), smp::field<At>("ln_f", &Gpt::ln_f_),
                       smp::field("head", &Gpt::head_));
  }

  Output forward(auto& ctx, const Input& tokens, Saved& s) const {
    auto x = Plain<Places>::forward(wpe_, ctx, wte_.forward(ctx, tokens, s.wte), s.wpe);
    x = h_.forward(ctx, Plain<Dropout>::forward(drop_, ctx, x, s.drop), s.h);
    return head_.forward(ctx, Plain<Norm>::forward(ln_f_, ctx, x, s.ln_f), s.head);
  }

  smp::NoGrad backward(auto& ctx, smp::GradOf<Output> dy, Saved& s) {
    const auto back = [&ctx](auto& child, auto gradient, auto& saved) {
      auto dx = child.backward(ctx, std::move(gradient), saved);
      saved = {};  // activations go as backward comes
      return dx;
    };
    auto dx = back(h_, Plain<Norm>::backward(ln_f_, ctx, back(head_, std::move(dy), s.head), s.ln_f), s.h);
    dx = Plain<Dropout>::backward(drop_, ctx, std::move(dx), s.drop);
    return back(wte_, Plain<Places>::backward(wpe_, ctx, std::move(dx), s.wpe), s.wte);
  }

 private:
  Tokens wte_;
  Places wpe_;
  Dropout drop_;
  smp::Repeat<Block> h_;
  Norm ln_f_;
  Head head_;
};
