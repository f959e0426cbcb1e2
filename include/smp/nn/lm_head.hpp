// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From hidden states to logits.

#include <cstdint>

#include <smp/fields.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/linear.hpp>
#include <smp/parameter.hpp>

namespace smp::nn {

/// A logit for each token of the vocabulary: x W^T without bias.
/// @tparam tie whether the weight is also that of an `Embedding`, which must say the same
template <class T = float, Tie tie = Tie::none>
struct LmHead : Linear<T> {
  /// @param width of the hidden state
  LmHead(std::int64_t width, std::int64_t vocabulary, Init init = {Init::Kind::normal, 0.02})
      : Linear<T>(width, vocabulary, Bias::no, init) {}

  static constexpr auto fields() { return smp::fields(smp::field("weight", &Linear<T>::weight, tied(tie))); }
};

}  // namespace smp::nn
