// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the modules of this library are cut (Shoeybi et al.: Megatron-LM, 2019, section 3; the form for own samples is
/// that of SageMaker's DistributedLinear).

#include <cstdint>
#include <string>

#include <smp/error.hpp>
#include <smp/nn/add_bias.hpp>
#include <smp/nn/attention.hpp>
#include <smp/nn/dropout.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/grouped_attention.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/mlp.hpp>
#include <smp/parallel/tensor_parallel.hpp>

namespace smp {

/// By outputs: every part takes the whole input and returns a slice of the output.
template <class T>
struct TensorParallelTraits<nn::Linear<T>, Split::columns> {
  using input = Replicated;             ///< of a part
  using output = Shard<Dim::features>;  ///< of a part
  static constexpr auto cuts() { return smp::cuts(cut(0, &nn::Linear<T>::weight), cut(0, &nn::Linear<T>::bias)); }
};

/// By inputs: every part takes a slice and returns a summand. The bias is added once. `TensorParallel<Linear,
/// Split::rows, At>` moves what arrives to slices: own samples (Varying) by an all-to-all, and their sums back by a
/// reduce-scatter.
template <class T>
struct TensorParallelTraits<nn::Linear<T>, Split::rows> {
  using input = Shard<Dim::features>;  ///< of a part
  using output = Partial;              ///< of a part
  using After = nn::AddBias<T>;        ///< after the sum
  static constexpr auto cuts() { return smp::cuts(cut(1, &nn::Linear<T>::weight), once(&nn::Linear<T>::bias)); }
  /// The bias.
  static After after(const nn::Linear<T>& whole) { return {whole.bias}; }
};

/// By numbers: every part has a slice of each vector.
template <class T, nn::Tie tie>
struct TensorParallelTraits<nn::Embedding<T, tie>, Split::columns> {
  using input = Replicated;             ///< of a part
  using output = Shard<Dim::features>;  ///< of a part
  static constexpr auto cuts() { return smp::cuts(cut(1, &nn::Embedding<T, tie>::weight)); }
};

/// By vocabulary, which need not divide: every part has some of the vectors, and zeros for other tokens.
template <class T, nn::Tie tie>
struct TensorParallelTraits<nn::Embedding<T, tie>, Split::rows> {
  using input = Replicated;  ///< of a part
  using output = Partial;    ///< of a part
  static constexpr auto cuts() { return smp::cuts(cut_unevenly(0, &nn::Embedding<T, tie>::weight)); }
};

/// By vocabulary, as the embedding that it may be tied to. The logits of a part go to a `VocabularyCrossEntropy`.
template <class T, nn::Tie tie>
struct TensorParallelTraits<nn::LmHead<T, tie>, Split::usual> {
  using input = Replicated;             ///< of a part
  using output = Shard<Dim::features>;  ///< of a part
  static constexpr auto cuts() { return smp::cuts(cut_unevenly(0, &nn::Linear<T>::weight)); }
};

namespace nn {

/// What follows the sum of an MLP's parts: the projection's bias, and dropout.
template <class T>
struct AfterMlp {
  using Input = TensorOf<T>;   ///< [..., width]
  using Output = TensorOf<T>;  ///< the same
  /// Of both.
  struct Saved {
    typename AddBias<T>::Saved c_proj;   ///< of the bias
    typename Dropout<T>::Saved dropout;  ///< which samples
    static constexpr auto fields() { return smp::fields(smp::field("c_proj", &Saved::c_proj)); }
  };

  AddBias<T> c_proj;   ///< of the projection
  Dropout<T> dropout;  ///< of the output

  /// Each row by itself.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() {
    return smp::fields(smp::field("c_proj", &AfterMlp::c_proj), smp::field("dropout", &AfterMlp::dropout));
  }
  /// Bias, dropout.
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    return dropout.forward(ctx, c_proj.forward(ctx, x, saved.c_proj), saved.dropout);
  }
  /// Both parts.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return c_proj.backward_input(ctx, dropout.backward_input(ctx, dy, saved.dropout), saved.c_proj);
  }
  /// The gradient of the bias.
  void backward_params(auto& ctx, Saved& saved) { c_proj.backward_params(ctx, saved.c_proj); }
};

/// The same of an attention, whose dropout has another name.
template <class T>
struct AfterAttention : AfterMlp<T> {
  static constexpr auto fields() {
    return smp::fields(smp::field("c_proj", &AfterMlp<T>::c_proj), smp::field("resid_dropout", &AfterMlp<T>::dropout));
  }
};

/// @param what is counted
/// @throws ConfigError, with the degrees that are possible, if there are not as many heads for each rank
inline void expect_heads(std::int64_t heads, int ranks, const char* what) {
  if (heads % ranks == 0) return;
  std::string legal;
  for (std::int64_t d = 1; d <= heads; ++d) {
    if (heads % d == 0) legal += (legal.empty() ? "" : ", ") + std::to_string(d);
  }
  throw ConfigError("an attention of " + std::to_string(heads) + " " + what + " cannot be cut over " +
                    std::to_string(ranks) + " ranks; tensor-parallel degrees that can: " + legal);
}

}  // namespace nn

/// By inner features: columns, then rows, with one sum.
template <class T>
struct TensorParallelTraits<nn::Mlp<T>, Split::usual> {
  using M = nn::Mlp<T>;           ///< what is cut
  using L = nn::Linear<T>;        ///< its layers
  using input = Replicated;       ///< of a part
  using output = Partial;         ///< of a part
  using After = nn::AfterMlp<T>;  ///< after the sum
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &M::c_fc, &L::weight), cut(0, &M::c_fc, &L::bias), cut(1, &M::c_proj, &L::weight),
                     once(&M::c_proj, &L::bias));
  }
  /// Bias and dropout, which are not linear together.
  static After after(const M& whole) { return {{whole.c_proj.bias}, whole.dropout}; }
  /// The part leaves the dropout to `after`.
  static void adjust(M& part, int, int) { part.dropout.probability = 0; }
};

/// By heads, with one sum.
template <class T, nn::KeyMask masked>
struct TensorParallelTraits<nn::Attention<T, masked>, Split::usual> {
  using M = nn::Attention<T, masked>;   ///< what is cut
  using L = nn::Linear<T>;              ///< its layers
  using input = Replicated;             ///< of a part
  using output = Partial;               ///< of a part
  using After = nn::AfterAttention<T>;  ///< after the sum
  static constexpr auto cuts() {
    return smp::cuts(cut_blocks(0, 3, &M::c_attn, &L::weight), cut_blocks(0, 3, &M::c_attn, &L::bias),
                     cut(1, &M::c_proj, &L::weight), once(&M::c_proj, &L::bias));
  }
  /// Bias and dropout, which are not linear together.
  static After after(const M& whole) { return {{{whole.c_proj.bias}, whole.resid_dropout}}; }
  /// The part leaves the dropout of the output to `after`.
  /// @throws ConfigError if there are not as many heads for each rank
  static void adjust(M& part, int, int ranks) {
    nn::expect_heads(part.c_attn.weight.shape()[0] / (3 * part.head), ranks, "heads");
    part.resid_dropout.probability = 0;
  }
};

/// By heads of keys and values, each with the queries that share it; with one sum, also of the gradients of two states.
template <class T, nn::KeysFrom from, nn::KeyMask masked>
struct TensorParallelTraits<nn::GroupedAttention<T, from, masked>, Split::usual> {
  using M = nn::GroupedAttention<T, from, masked>;  ///< what is cut
  using L = nn::Linear<T>;                          ///< its layers
  using input = Replicated;                         ///< of a part
  using output = Partial;                           ///< of a part
  using After = nn::AfterAttention<T>;              ///< after the sum
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &M::q_attn, &L::weight), cut(0, &M::q_attn, &L::bias),
                     cut_blocks(0, 2, &M::c_attn, &L::weight), cut_blocks(0, 2, &M::c_attn, &L::bias),
                     cut(1, &M::c_proj, &L::weight), once(&M::c_proj, &L::bias));
  }
  /// Bias and dropout, which are not linear together.
  static After after(const M& whole) { return {{{whole.c_proj.bias}, whole.resid_dropout}}; }
  /// The part leaves the dropout of the output to `after`.
  /// @throws ConfigError if there are not as many heads of keys and values for each rank
  static void adjust(M& part, int, int ranks) {
    nn::expect_heads(part.c_attn.weight.shape()[0] / (2 * part.head), ranks, "heads of keys and values");
    part.resid_dropout.probability = 0;
  }
};

}  // namespace smp
