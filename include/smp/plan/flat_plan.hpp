// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a rank holds and sends under `DataParallel` and `ShardedOptimizer`.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <smp/error.hpp>
#include <smp/plan/model_sizes.hpp>
#include <smp/plan/rank_plan.hpp>

namespace smp {

/// What the tensor-parallel ranks have of the gradients of a bucket.
enum class BucketKind : unsigned char {
  parts,     ///< each its part
  copies,    ///< all the same
  summands,  ///< summands
};

/// How a strategy reduces gradients.
struct ReductionOptions {
  std::size_t bucket_bytes = 25 * 1024 * 1024;  ///< largest bucket, unless a parameter is larger
  int states = 2;                               ///< arrays of the optimizer: 2 for Adam
  bool plain = false;  ///< the model knows nothing of tensor-parallel ranks: each of them has samples of its own
};

/// Gradients that are reduced together.
struct BucketSizes {
  std::size_t elements = 0;              ///< in all
  std::size_t element_bytes = 0;         ///< of one
  BucketKind kind = BucketKind::copies;  ///< who has what
  friend constexpr bool operator==(const BucketSizes&, const BucketSizes&) = default;
};

/// Joins neighbours of one type and kind, from the last to the first, into buckets of at most `bucket_bytes`; a larger
/// one goes alone.
/// @throws ConfigError if `bucket_bytes` is 0
[[nodiscard]] constexpr std::vector<BucketSizes> join_buckets(std::span<const BucketSizes> ranges,
                                                              std::size_t bucket_bytes) {
  if (bucket_bytes == 0) throw ConfigError("bucket_bytes is 0: a bucket of gradients must have room for something");
  std::vector<BucketSizes> buckets;
  for (std::size_t i = ranges.size(); i-- > 0;) {
    const BucketSizes& r = ranges[i];
    const bool joins = !buckets.empty() && buckets.back().element_bytes == r.element_bytes &&
                       buckets.back().kind == r.kind &&
                       (buckets.back().elements + r.elements) * r.element_bytes <= bucket_bytes;
    if (joins) {
      buckets.back().elements += r.elements;
    } else {
      buckets.push_back(r);
    }
  }
  return buckets;
}

/// Who has what of a block's gradients.
[[nodiscard]] constexpr BucketKind kind_of(const BlockSizes& block, const GroupPlaces& places, bool plain) {
  if (plain || (block.summed_over_tp && places.size(Group::tp) > 1)) return BucketKind::summands;
  return block.cut ? BucketKind::parts : BucketKind::copies;
}

/// The buckets of those blocks that are `here(block)` whole, of all types; in no order that matters.
template <class Here>
[[nodiscard]] constexpr std::vector<BucketSizes> flat_buckets(const ModelSizes& model, const GroupPlaces& places,
                                                              const ReductionOptions& options, Here here) {
  std::vector<BucketSizes> ranges;
  for (const std::size_t element_bytes : {4U, 8U}) {
    for (const BucketKind kind : {BucketKind::parts, BucketKind::copies, BucketKind::summands}) {
      for (const int b : blocks_in_order(model)) {
        const BlockSizes& block = model.blocks[static_cast<std::size_t>(b)];
        if (block.frozen || block.gradient_bytes() != element_bytes || kind_of(block, places, false) != kind ||
            !here(b)) {
          continue;
        }
        for (const std::size_t n : block.parameters) {
          ranges.push_back({n, element_bytes, kind_of(block, places, options.plain)});
        }
      }
    }
  }
  return join_buckets(ranges, options.bucket_bytes);
}

/// Adds the bytes of blocks that are whole on this rank, without states.
template <class Here>
constexpr void add_whole(RankPlan& plan, const ModelSizes& model, Here here) {
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockSizes& block = model.blocks[b];
    if (!here(static_cast<int>(b))) continue;
    plan.parameter += block.elements() * block.element_bytes;
    if (!block.frozen) plan.gradient += block.elements() * block.gradient_bytes();
  }
}

/// Adds the all-reduces of buckets, over those that sum them.
constexpr void add_all_reduces(RankPlan& plan, std::span<const BucketSizes> buckets, const GroupPlaces& places) {
  if (places.size(Group::dp) == 1) return;
  for (const BucketSizes& b : buckets) {
    const Group group = b.kind == BucketKind::summands ? Group::dp : Group::rdp;
    plan.add_all_reduce(places, group, b.elements, b.element_bytes);
  }
}

/// A rank under `DataParallel`: everything whole; an all-reduce of each bucket in a step, over the DP group for what
/// the tensor-parallel ranks have summands of, and else over the RDP group.
[[nodiscard]] constexpr RankPlan plan_data_parallel(const ModelSizes& model, const GroupPlaces& places,
                                                    const ReductionOptions& options = {}) {
  RankPlan plan;
  const auto all = [](int) { return true; };
  add_whole(plan, model, all);
  plan.optimizer = static_cast<std::size_t>(options.states) * plan.gradient;
  add_all_reduces(plan, flat_buckets(model, places, options, all), places);
  return plan;
}

/// A rank under `ShardedOptimizer`: values and gradients whole, the states of a piece of each bucket, cut over all that
/// hold the same parameters; a reduce-scatter and an all-gather of each bucket in a step. Rajbhandari, Rasley, Ruwase,
/// He: ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020, section 5.1.
/// @param model with cut parameters in blocks of their own
[[nodiscard]] constexpr RankPlan plan_sharded_optimizer(const ModelSizes& model, const GroupPlaces& places,
                                                        const ReductionOptions& options = {}) {
  RankPlan plan;
  const auto all = [](int) { return true; };
  add_whole(plan, model, all);
  for (const BucketSizes& b : flat_buckets(model, places, options, all)) {
    const Group group = b.kind == BucketKind::summands ? Group::dp : Group::rdp;
    const std::size_t n = places.size(group), reduced = piece_size(b.elements, places.rank_in(group), n);
    const std::size_t tp = b.kind == BucketKind::copies ? places.size(Group::tp) : 1;
    const std::size_t own = tp == 1 ? reduced : piece_size(reduced, places.rank_in(Group::tp), tp);
    plan.optimizer += static_cast<std::size_t>(options.states) * own * b.element_bytes;
    if (n > 1) {
      plan.add(group, Collective::reduce_scatter, 1, (b.elements - reduced) * b.element_bytes);
      plan.add(group, Collective::all_gather, 1, (n - 1) * reduced * b.element_bytes);
    }
    if (tp > 1) plan.add(Group::tp, Collective::all_gather, 1, (tp - 1) * own * b.element_bytes);
  }
  return plan;
}

}  // namespace smp
