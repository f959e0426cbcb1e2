// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A text as tokens: what is learnt, what is held out, and which samples a step takes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <smp/random.hpp>

#include "options.hpp"

/// A text as numbers.
class Text {
 public:
  /// Reads the file of `--data`.
  /// @throws smp::ConfigError if it cannot be read, or is too short for `--seq` and `--heldout`
  explicit Text(const Options& options);

  /// Number of different tokens.
  [[nodiscard]] int classes() const { return static_cast<int>(vocabulary_.size()); }
  /// What a token stands for.
  [[nodiscard]] const std::string& word(std::int32_t token) const {
    return vocabulary_[static_cast<std::size_t>(token)];
  }
  /// Tokens that are learnt.
  [[nodiscard]] std::span<const std::int32_t> learnt() const { return std::span(tokens_).first(learnt_); }
  /// Tokens that are not.
  [[nodiscard]] std::span<const std::int32_t> heldout() const { return std::span(tokens_).subspan(learnt_); }

  /// Writes the samples `first`, `first + 1`, ... of a step: `seq` tokens each, and the token after each of them. A
  /// sample is a window at a random place that depends on (seed, step, number of the sample) alone: the samples of a
  /// step are the same however ranks and micro-batches share them.
  void samples(std::uint64_t step, std::uint64_t first, int seq, std::span<std::int32_t> inputs,
               std::span<std::int32_t> targets) const;

 private:
  std::vector<std::string> vocabulary_;
  std::vector<std::int32_t> tokens_;
  std::size_t learnt_;
  smp::RandomStream places_;
};
