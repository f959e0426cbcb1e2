// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A language model of GPT-2's shape, from modules of the library: Radford, Wu, Child, Luan, Amodei, Sutskever:
/// Language Models are Unsupervised Multitask Learners, 2019. Its parameters have the names that GPT-2's have.

#include <array>
#include <cstddef>
#include <string_view>

#include <smp/nn/dropout.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>

#include "options.hpp"

/// From tokens [samples, sequence] to logits [samples, sequence, classes] of the token after each; of the classes, each
/// tensor-parallel rank has its part. What is cut over these ranks says so; the rest takes what it gets.
/// @tparam At how hidden states are distributed: Invariant (every rank has all), or Shard<Dim::sequence> (some rows)
template <class T, class At>
struct GptParts {
  template <class M, smp::Split S = smp::Split::usual>
  using Cut = smp::TensorParallel<M, S, At>;

  using Attention = smp::nn::Attention<T>;
  using Mlp = smp::nn::Mlp<T>;
  using Block = smp::nn::TransformerBlock<T, smp::nn::KeyMask::none, Cut<Attention>, Cut<Mlp>>;

  using Tokens = Cut<smp::nn::Embedding<T, smp::nn::Tie::wte>, smp::Split::rows>;
  using Places = smp::nn::PositionEmbedding<T>;
  using Dropout = smp::nn::Dropout<T>;
  using Norm = smp::nn::LayerNorm<T>;
  using Head = Cut<smp::nn::LmHead<T, smp::nn::Tie::wte>>;

  using Model = smp::Sequential<Tokens, Places, Dropout, smp::Repeat<Block>, Norm, Head>;
  static constexpr std::array<std::string_view, 6> names{"wte", "wpe", "drop", "h", "ln_f", "head"};
  static constexpr int before = 3, behind = 2;  // layers around the transformer blocks
};

template <class T, class At>
using Gpt = typename GptParts<T, At>::Model;

/// @param rank, ranks of the tensor-parallel group
template <class T, class At>
Gpt<T, At> make_gpt(int classes, const Options& o, int rank, int ranks) {
  using Parts = GptParts<T, At>;
  const smp::nn::TransformerOptions layer{.dropout = o.dropout, .layers = o.layers};
  const auto block = [&](std::size_t) {
    return typename Parts::Block(o.hidden, {typename Parts::Attention(o.hidden, o.heads, layer), rank, ranks},
                                 {typename Parts::Mlp(o.hidden, layer), rank, ranks}, layer);
  };
  return Gpt<T, At>(typename Parts::Tokens({classes, o.hidden}, rank, ranks), typename Parts::Places(o.seq, o.hidden),
                    typename Parts::Dropout(o.dropout),
                    smp::Repeat<typename Parts::Block>(static_cast<std::size_t>(o.layers), block),
                    typename Parts::Norm(o.hidden), typename Parts::Head({o.hidden, classes}, rank, ranks))
      .named(Parts::names);
}
