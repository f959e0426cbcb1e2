// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Several chunks a rank, the stages laid round the ranks like a coil: stage s is on rank s mod S.

#include <algorithm>

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// Which way a looped schedule walks through chunks and micro-batches.
enum class LoopOrder : unsigned char {
  depth_first,   ///< S micro-batches through all chunks, then the next S: few activations
  breadth_first  ///< all micro-batches through a chunk, then the next chunk: few weight gathers, any M
};

/// Virtual stages, for any number of chunks a rank: the bubble of 1F1B divided by it, for that many times the messages.
///
/// Depth first: interleaved 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2 and figure 4, lower half).
/// Breadth first: Lamy-Poirier, arXiv 2211.05953, section 4.
///
///     depth first, rank 0 of 2     F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 ...
///     breadth first, rank 0 of 2   F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B0.1 B1.1 ...
template <LoopOrder Order>
struct LoopedOrder {
  static constexpr std::string_view name =
      Order == LoopOrder::depth_first ? "looped" : "looped_breadth";  ///< in messages and on command lines

  /// Depth first: rounds of as many micro-batches as there are ranks.
  [[nodiscard]] static constexpr MicrobatchRule microbatches(const PipelineShape& shape) {
    return {.multiple_of = Order == LoopOrder::depth_first ? shape.ranks : 1};
  }

  /// The order that `Order` names.
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    Order == LoopOrder::depth_first ? depth_first(shape, rank, next) : breadth_first(shape, next);
  }

 private:
  static constexpr void depth_first(const PipelineShape& shape, int rank, RankOrder& next) {
    const int last_chunk = shape.chunks - 1, all = shape.microbatches * shape.chunks;
    const int ahead = std::min(2 * (shape.ranks - 1 - rank) + last_chunk * shape.ranks, all);
    const auto chunk = [&](int turn) { return turn / shape.ranks % shape.chunks; };
    const auto forward = [&](int turn) { next.forward(chunk(turn)); };
    const auto backward = [&](int turn) { next.backward(last_chunk - chunk(turn)); };
    for (int turn = 0; turn < ahead; ++turn) forward(turn);
    for (int turn = ahead; turn < all; ++turn) forward(turn), backward(turn - ahead);
    for (int turn = all - ahead; turn < all; ++turn) backward(turn);
  }

  static constexpr void breadth_first(const PipelineShape& shape, RankOrder& next) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int m = 0; m < shape.microbatches; ++m) next.forward(chunk);
    for (int chunk = shape.chunks - 1; chunk >= 0; --chunk)
      for (int m = 0; m < shape.microbatches; ++m) next.backward(chunk);
  }
};

/// LoopedOrder with the number of chunks in the type.
template <int Chunks, LoopOrder Order = LoopOrder::depth_first>
struct LoopedSchedule : LoopedOrder<Order> {
  static_assert(Chunks >= 1, "smp::LoopedSchedule: a rank holds at least one chunk; write LoopedSchedule<2>");
  static constexpr int chunks = Chunks;  ///< of a rank
};

/// LoopedOrder with the number of chunks known at run time.
template <LoopOrder Order = LoopOrder::depth_first>
struct RuntimeLoopedSchedule : LoopedOrder<Order> {
  int chunks = 2;  ///< of a rank
};

}  // namespace smp
