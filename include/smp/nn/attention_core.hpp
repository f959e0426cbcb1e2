// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// softmax(Q K^T / sqrt(head size)) V for all samples and heads, and its gradients, on rows that may lie in one matrix
/// of queries, keys and values (Vaswani et al.: Attention Is All You Need, 2017).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <smp/device/vectorized.hpp>
#include <smp/nn/dropout.hpp>
#include <smp/nn/matrix.hpp>
#include <smp/nn/rows.hpp>

namespace smp::nn {

/// Sizes of an attention, and which keys a query sees.
struct AttentionShape {
  std::int64_t batch = 0;    ///< samples
  std::int64_t heads = 0;    ///< that are here
  std::int64_t queries = 0;  ///< of a sample
  std::int64_t keys = 0;     ///< of a sample
  std::int64_t head = 0;     ///< numbers of a query, key or value of one head
  std::int64_t group = 1;    ///< heads in a row that share their keys and values (Ainslie et al.: GQA, 2023)
  /// Query i sees the keys up to i + keys - queries: the queries are the last places of the sequence.
  bool causal = false;
  DropoutMask dropout{};           ///< of probabilities; none if its probability is 0
  std::uint64_t first_sample = 0;  ///< in the global batch, for the dropout
  std::int64_t first_head = 0;     ///< number of the first head that is here, for the dropout
  std::int64_t all_heads = 0;      ///< wherever they are, for the dropout
  /// Query rows that are computed at once. What a block of them cannot see is not computed.
  std::int64_t block = 128;

  /// How many keys query i sees.
  [[nodiscard]] std::int64_t seen(std::int64_t i) const noexcept {
    return causal ? std::clamp<std::int64_t>(i + 1 + keys - queries, 0, keys) : keys;
  }
  /// The position of a probability among those that dropout draws for.
  [[nodiscard]] std::uint64_t position(std::int64_t sample, std::int64_t h, std::int64_t i) const noexcept {
    const std::uint64_t row =
        (first_sample + static_cast<std::uint64_t>(sample)) * static_cast<std::uint64_t>(all_heads) +
        static_cast<std::uint64_t>(first_head + h);
    return (row * static_cast<std::uint64_t>(queries) + static_cast<std::uint64_t>(i)) *
           static_cast<std::uint64_t>(keys);
  }
};

/// Queries, keys and values, or their gradients. The heads of a row lie side by side.
template <class T>
struct AttentionRows {
  T* q;                 ///< batch * queries rows
  T* k;                 ///< batch * keys rows
  T* v;                 ///< batch * keys rows
  std::int64_t stride;  ///< of queries, from row to row

  std::int64_t kv_stride = stride;  ///< of keys and values

  /// The queries of one sample and head, from query `first` on.
  [[nodiscard]] Strided<T> queries(const AttentionShape& s, std::int64_t b, std::int64_t h, std::int64_t first) const {
    return Strided<T>{q, stride}.from(b * s.queries + first, h * s.head);
  }
  /// The keys of one sample and head.
  [[nodiscard]] Strided<T> keys(const AttentionShape& s, std::int64_t b, std::int64_t h) const {
    return Strided<T>{k, kv_stride}.from(b * s.keys, h / s.group * s.head);
  }
  /// The values of one sample and head.
  [[nodiscard]] Strided<T> values(const AttentionShape& s, std::int64_t b, std::int64_t h) const {
    return Strided<T>{v, kv_stride}.from(b * s.keys, h / s.group * s.head);
  }
};

/// Turns the scores of the first `seen` keys of a row into probabilities, and those of `n - seen` further ones into 0.
/// Where `mask` (if it is there) is 0, the probability is 0; a row that sees nothing is all 0. Inside of `vectorized`.
template <class Unit, class T>
[[gnu::always_inline]] inline void softmax_row(Unit unit, std::int64_t seen, std::int64_t n, const std::int32_t* mask,
                                               T* row) {
  alignas(64) std::int32_t visible[block_size];  // of the block at hand
  const auto look = [&](std::int64_t i) {
    const auto end = static_cast<int>(std::min<std::int64_t>(block_size, seen - i));
    for (int j = 0; j < block_size; ++j) visible[j] = j < end ? 1 : 0;
    for (int j = 0; mask != nullptr && j < end; ++j) visible[j] = mask[i + j] != 0 ? 1 : 0;
  };
  alignas(64) T block[block_size];
  std::fill_n(block, block_size, std::numeric_limits<T>::lowest());
  std::int32_t any = 0;
  for (std::int64_t i = 0; i < seen; i += block_size) {
    const VectorBlock<T> x(row + i, std::min<std::int64_t>(block_size, n - i));
    look(i);
    for (int j = 0; j < block_size; ++j) block[j] = visible[j] != 0 && block[j] < x.v[j] ? x.v[j] : block[j];
    for (int j = 0; j < block_size; ++j) any |= visible[j];
  }
  if (any == 0) {
    std::fill_n(row, n, T(0));
    return;
  }
  const T most = fold(block, [](T a, T b) { return a < b ? b : a; });
  std::fill_n(block, block_size, T(0));
  for (std::int64_t i = 0; i < n; i += block_size) {
    const std::int64_t count = std::min<std::int64_t>(block_size, n - i);
    VectorBlock<T> e(row + i, count);
    look(i);
    for (int j = 0; j < block_size; ++j) e.v[j] -= most;
    for (int j = 0; j < block_size; ++j) e.v[j] = visible[j] != 0 ? e.v[j] : T(0);
    if (i < seen) unit.exp(e.v);
    for (int j = 0; j < block_size; ++j) e.v[j] = visible[j] != 0 ? e.v[j] : T(0);
    for (int j = 0; j < block_size; ++j) block[j] += e.v[j];
    std::memcpy(row + i, e.v, static_cast<std::size_t>(count) * sizeof(T));
  }
  const T sum = fold(block, [](T a, T b) { return a + b; });
  map_blocks(
      unit, n, row,
      [=](auto, auto& p, const auto& e) {  // not times 1 / sum: the row sums to 1 within 2 ulp
        for (int j = 0; j < block_size; ++j) p[j] = e[j] / sum;
      },
      row);
}

/// Probabilities after dropout: of `rows` queries from `first` on, and the first `n` keys. `y` may be `x`.
template <class T>
void drop_probabilities(const AttentionShape& s, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows,
                        std::int64_t n, const T* x, T* y) {
  for (std::int64_t i = 0; i < rows; ++i) {
    apply_dropout(s.dropout, s.position(b, h, first + i), n, x + i * s.keys, y + i * s.keys);
  }
}

/// The probabilities and the output of all samples and heads.
/// @param mask of [batch, keys], 0 for keys that nobody sees; may be null
/// @param probabilities receives [batch, heads, queries, keys]; what lies behind the keys that a block of queries sees
/// is not written
/// @param dropped room for block * keys numbers if there is dropout
/// @param out rows of heads * head numbers
template <class T>
void attention_forward(const AttentionShape& s, const AttentionRows<const T>& in, const std::int32_t* mask,
                       T* probabilities, T* dropped, T* out) {
  const T scale = 1 / std::sqrt(static_cast<T>(s.head));
  const auto run = [&](std::int64_t b, std::int64_t h, std::int64_t first) {
    const std::int64_t rows = std::min(s.block, s.queries - first), n = s.seen(first + rows - 1);
    const std::int32_t* hidden = mask != nullptr ? mask + b * s.keys : nullptr;
    Strided<T> p{probabilities + ((b * s.heads + h) * s.queries + first) * s.keys, s.keys};
    multiply<T>(rows, n, s.head, in.queries(s, b, h, first), {in.keys(s, b, h), Transpose::yes}, p, scale);
    vectorized([&s, first, rows, n, hidden, p](auto unit) {
      for (std::int64_t i = 0; i < rows; ++i) softmax_row(unit, s.seen(first + i), n, hidden, p.from(i).data);
    });
    if (s.dropout.probability > 0) {
      drop_probabilities(s, b, h, first, rows, n, p.data, dropped);
      p.data = dropped;
    }
    const Strided<T> y{out, s.heads * s.head};
    multiply<T>(rows, s.head, n, p, in.values(s, b, h), y.from(b * s.queries + first, h * s.head));
  };
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t first = 0; first < s.queries; first += s.block) run(b, h, first);
    }
  }
}

/// From the gradients dp of probabilities p to those of the scores: p (dp - sum of p dp), times `scale`. In dp's place.
template <class T>
void softmax_backward(std::int64_t rows, std::int64_t n, std::int64_t stride, T scale, const T* p, T* dp) {
  vectorized([=](auto target) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* y = p + r * stride;
      T* g = dp + r * stride;
      const T along = sum_of_row<T>(n, [=](std::int64_t j) { return y[j] * g[j]; }), factor = scale;
      map_blocks(
          target, n, g,
          [=](auto, auto& ds, const auto& d, const auto& q) {
            for (int j = 0; j < block_size; ++j) ds[j] = factor * (q[j] * (d[j] - along));
          },
          g, y);
    }
  });
}

/// The gradients of queries, keys and values.
/// @param probabilities as attention_forward has left them
/// @param scratch room for block * keys numbers, twice that if there is dropout
template <class T>
void attention_backward(const AttentionShape& s, const AttentionRows<const T>& in, const T* probabilities,
                        const T* dout, T* scratch, const AttentionRows<T>& gradient) {
  const T scale = 1 / std::sqrt(static_cast<T>(s.head));
  // The last block of queries sees all keys: it writes the gradients of keys and values, the others add to them,
  // and so do the other heads of the group.
  const std::int64_t last = s.queries > 0 ? (s.queries - 1) / s.block * s.block : -1;
  const auto run = [&](std::int64_t b, std::int64_t h, std::int64_t first) {
    const std::int64_t rows = std::min(s.block, s.queries - first), n = s.seen(first + rows - 1);
    const T beta = first == last && h % s.group == 0 ? T(0) : T(1);
    const Strided<const T> p{probabilities + ((b * s.heads + h) * s.queries + first) * s.keys, s.keys};
    const auto dy = Strided<const T>{dout, s.heads * s.head}.from(b * s.queries + first, h * s.head);
    const Strided<T> dp{scratch, s.keys};
    Strided<const T> used = p;
    multiply<T>(rows, n, s.head, dy, {in.values(s, b, h), Transpose::yes}, dp);
    if (s.dropout.probability > 0) {
      T* dropped = scratch + s.block * s.keys;
      drop_probabilities(s, b, h, first, rows, n, p.data, dropped);
      drop_probabilities<T>(s, b, h, first, rows, n, dp.data, dp.data);
      used.data = dropped;
    }
    multiply<T>(n, s.head, rows, {used, Transpose::yes}, dy, gradient.values(s, b, h), 1, beta);
    softmax_backward<T>(rows, n, s.keys, scale, p.data, dp.data);
    multiply<T>(rows, s.head, n, dp, in.keys(s, b, h), gradient.queries(s, b, h, first));
    multiply<T>(n, s.head, rows, {dp, Transpose::yes}, in.queries(s, b, h, first), gradient.keys(s, b, h), 1, beta);
  };
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t first = last; first >= 0; first -= s.block) run(b, h, first);
    }
  }
}

}  // namespace smp::nn
