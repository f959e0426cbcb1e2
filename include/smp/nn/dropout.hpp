// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Dropout (Srivastava et al.: Dropout, 2014). What is dropped depends on seed, place in the model, step, sample and
/// element alone: micro-batches, ranks and repeated forward passes do not change it, and no mask is kept.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/rows.hpp>
#include <smp/random.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// What is dropped: 32 random bits for each position, word `position % 4` of block `position / 4` of a stream.
struct DropoutMask {
  RandomStream stream{};        ///< of the place and step
  double probability = 0;       ///< to be dropped
  std::uint64_t threshold = 0;  ///< bits below it are dropped

  /// Drops with probability `p`.
  static DropoutMask of(const RandomStream& stream, double p) {
    return {stream, p, static_cast<std::uint64_t>(p * 0x1p32)};
  }
};

/// Words that are drawn at once. With fewer, GCC 12 unrolls the loops instead of vectorising them: 4 times slower.
inline constexpr int dropout_group = 128;

/// The words from position dropout_group * `group` on. Inside of `vectorized`: Philox on many counters at a time.
[[gnu::always_inline]] inline void dropout_words(const RandomStream& s, std::uint64_t group,
                                                 std::uint32_t (&words)[dropout_group]) {
  constexpr int n = dropout_group / 4;
  alignas(64) std::uint32_t a[n], b[n], c[n], d[n];
  for (int j = 0; j < n; ++j) {
    const std::uint64_t index = group * n + static_cast<std::uint64_t>(j);
    a[j] = static_cast<std::uint32_t>(index);
    b[j] = static_cast<std::uint32_t>(index >> 32);
    c[j] = static_cast<std::uint32_t>(s.stream);
    d[j] = static_cast<std::uint32_t>(s.stream >> 32);
  }
  auto key0 = static_cast<std::uint32_t>(s.seed), key1 = static_cast<std::uint32_t>(s.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int j = 0; j < n; ++j) {
      const std::uint64_t left = std::uint64_t{0xD2511F53u} * a[j], right = std::uint64_t{0xCD9E8D57u} * c[j];
      a[j] = static_cast<std::uint32_t>(right >> 32) ^ b[j] ^ key0;
      b[j] = static_cast<std::uint32_t>(right);
      c[j] = static_cast<std::uint32_t>(left >> 32) ^ d[j] ^ key1;
      d[j] = static_cast<std::uint32_t>(left);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int j = 0; j < n; ++j) {
    words[4 * j] = a[j];
    words[4 * j + 1] = b[j];
    words[4 * j + 2] = c[j];
    words[4 * j + 3] = d[j];
  }
}

/// y[i] = x[i] times 0 if position `first` + i is dropped, else 1 / (1 - p). `y` may be `x`.
template <class T>
void apply_dropout(const DropoutMask& mask, std::uint64_t first, std::int64_t n, const T* x, T* y) {
  const T scale = mask.probability < 1 ? static_cast<T>(1 / (1 - mask.probability)) : T(0);
  const auto least = static_cast<std::uint32_t>(std::min(mask.threshold, std::uint64_t{0xFFFFFFFF}));
  vectorized([=](auto) {
    alignas(64) std::uint32_t words[dropout_group];
    const T kept = scale;  // a local one cannot be what is written
    for (std::int64_t i = 0; i < n;) {
      const std::uint64_t position = first + static_cast<std::uint64_t>(i);
      const auto skip = static_cast<std::int64_t>(position % dropout_group);
      const std::int64_t count = std::min(n - i, dropout_group - skip);
      dropout_words(mask.stream, position / dropout_group, words);
      alignas(64) T factor[dropout_group];  // a product of each element: a choice between products is no vector code
      for (int j = 0; j < dropout_group; ++j) factor[j] = words[j] < least ? T(0) : kept;
      if (count == dropout_group) {
        alignas(64) T v[dropout_group];
        std::memcpy(v, x + i, sizeof(v));
        for (int j = 0; j < dropout_group; ++j) v[j] *= factor[j];
        std::memcpy(y + i, v, sizeof(v));
      } else {
        for (std::int64_t j = 0; j < count; ++j) y[i + j] = x[i + j] * factor[skip + j];
      }
      i += count;
    }
  });
}

/// Sets elements to 0 with a probability while training, and divides the others by 1 - probability; the first
/// dimension numbers the samples. While a model is evaluated, and for probability 0, the output is the input.
template <class T = float>
struct Dropout {
  using Input = TensorOf<T>;   ///< [samples, ...]
  using Output = TensorOf<T>;  ///< the same
  /// No tensor: which samples, and whether anything was dropped.
  struct Saved {
    RandomPosition position{};  ///< of the micro-batch
    bool active = false;        ///< something may have been dropped
  };

  double probability;  ///< to be dropped
  RandomSite site{};   ///< given by the layout

  /// @throws ConfigError unless 0 <= p <= 1
  explicit Dropout(double p = 0) : probability(p) {
    if (!(p >= 0 && p <= 1)) throw ConfigError("nn::Dropout: a probability of " + std::to_string(p) + " cannot be");
  }

  /// The mask is that of the whole.
  static constexpr bool works_on_slices_of(Dim dim) { return dim == Dim::batch || dim == Dim::sequence; }
  static constexpr auto fields() { return smp::fields(smp::field("site", &Dropout::site)); }

  /// Drops elements of x.
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved = {ctx.position, ctx.training && probability > 0};
    return saved.active ? dropped(ctx, x, saved.position) : x;
  }

  /// All of it: there are no parameters.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) { return backward_input(ctx, dy, saved); }

  /// Drops the same elements of dy.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return saved.active ? dropped(ctx, dy, saved.position) : dy;
  }

  /// Nothing.
  void backward_params(auto&, Saved&) {}

 private:
  TensorOf<T> dropped(auto& ctx, const TensorOf<T>& x, const RandomPosition& position) const {
    if (x.shape().rank() == 0) throw ConfigError("nn::Dropout: the first dimension must number the samples");
    TensorOf<T> y(ctx.memory(), x.shape());
    // Slices of rows are consecutive: those before this one come first.
    const std::uint64_t first =
        position.first_sample * x.shape().with(0, 1).elements() * position.parts + position.part * x.shape().elements();
    ctx.stream().enqueue([mask = DropoutMask::of(ctx.random(site, position), probability), first,
                          n = static_cast<std::int64_t>(x.size()), p = x.data(),
                          q = y.data()] { apply_dropout(mask, first, n, p, q); });
    return y;
  }
};

}  // namespace smp::nn
