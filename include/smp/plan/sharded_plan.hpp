// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a rank holds and sends under `Sharded`: Zhang and others: MiCS: Near-linear Scaling for Training Gigantic Model
/// on Public Cloud, 2022; shards as in stage 3 of Rajbhandari, Rasley, Ruwase, He: ZeRO, 2020.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <smp/plan/flat_plan.hpp>
#include <smp/plan/gather_plan.hpp>
#include <smp/plan/model_sizes.hpp>
#include <smp/plan/rank_plan.hpp>
#include <smp/plan/shard_rooms.hpp>

namespace smp {

/// How a model is sharded; sizes count elements.
struct ShardingOptions {
  std::size_t reduce_bucket_size = 500'000'000;     ///< gradients that are reduced together; a larger unit goes alone
  std::size_t max_live_parameters = 1'000'000'000;  ///< gathered at a time; what a unit needs at once always is
  std::size_t merge_gathers_below = 16'384;         ///< smaller gathers that follow each other become one message
  int states = 2;                                   ///< arrays of the optimizer: 2 for Adam
  int microbatches = 1;                             ///< of a step
  bool plain = false;  ///< the model knows nothing of tensor-parallel ranks: each of them has samples of its own
};

/// A rank under `Sharded`, and what it is made of.
struct ShardedPlan {
  RankPlan rank{};                 ///< what it holds and sends
  GatherPlan gathers{};            ///< of a step that is not the first
  std::size_t gradient_room = 0;   ///< bytes for gradients that have not been reduced
  std::size_t message = 0;         ///< bytes for gathers that go together
  std::size_t shard_elements = 0;  ///< in all shards of this rank
  std::size_t reductions = 0;      ///< reduce-scatters of a block in a step, merged or not
};

/// Plans one rank.
class ShardedPlanner {
 public:
  /// See plan_sharded.
  constexpr ShardedPlanner(const ModelSizes& model, const GroupPlaces& places, const ShardingOptions& options)
      : model_(model),
        places_(places),
        options_(options),
        shards_(cut_into_shards(model, places.size(Group::shard))),
        order_(step_order(model, options.microbatches)) {}

  /// The plan.
  [[nodiscard]] constexpr ShardedPlan make() {
    hold();
    gather();
    reduce();
    replicate();
    sum_whole();
    plan_.rank.buffer = plan_.gathers.arena + plan_.gradient_room + plan_.message;
    return plan_;
  }

 private:
  [[nodiscard]] constexpr std::size_t ranks() const { return shards_.ranks; }
  [[nodiscard]] constexpr const BlockSizes& block(int b) const { return model_.blocks[static_cast<std::size_t>(b)]; }
  [[nodiscard]] static constexpr std::size_t bytes(std::size_t elements, std::size_t of_one) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
    return elements < most / of_one ? elements * of_one : most;
  }
  [[nodiscard]] constexpr std::size_t value_bytes(std::size_t elements) const {
    return bytes(elements, shards_.widest);
  }
  [[nodiscard]] constexpr std::size_t bucket_bytes() const {
    return bytes(options_.reduce_bucket_size, std::max<std::size_t>(shards_.widest, 4));
  }

  /// Shards, and what is not cut into shards.
  constexpr void hold() {
    add_whole(plan_.rank, model_, [&](int b) { return shards_.of(b) == 0; });
    for (std::size_t b = 0; b < model_.blocks.size(); ++b) {
      const std::size_t shard = shards_.size[b];
      plan_.shard_elements += shard;
      plan_.rank.parameter += shard * model_.blocks[b].element_bytes;
      if (!model_.blocks[b].frozen) plan_.rank.gradient += shard * model_.blocks[b].gradient_bytes();
    }
    plan_.rank.optimizer = static_cast<std::size_t>(options_.states) * plan_.rank.gradient;
  }

  /// The shards of others, for each gather.
  constexpr void gather() {
    std::vector<std::vector<int>> blocks;
    for (const UnitSizes& unit : model_.units) {
      blocks.emplace_back();
      for (const int b : unit.blocks) {
        if (shards_.of(b) > 0) blocks.back().push_back(b);
      }
    }
    std::vector<std::size_t> footprints;
    for (std::size_t b = 0; b < model_.blocks.size(); ++b) {
      footprints.push_back(shards_.footprint(static_cast<int>(b), model_.blocks[b].element_bytes));
    }
    const std::vector<GatherUse> uses = uses_of(blocks);
    plan_.gathers = make_gather_plan(uses, blocks, footprints, value_bytes(options_.max_live_parameters));
    for (std::size_t i = 0; i < uses.size(); ++i) {
      send_gathers(std::span(plan_.gathers.gathered)
                       .subspan(plan_.gathers.gathered_begin[i],
                                plan_.gathers.gathered_begin[i + 1] - plan_.gathers.gathered_begin[i]));
    }
  }
  /// The order without units for which nothing is gathered.
  [[nodiscard]] constexpr std::vector<GatherUse> uses_of(const std::vector<std::vector<int>>& blocks) const {
    std::vector<int> before{0};  // uses that count before each of all
    for (const UnitPass& pass : order_) {
      before.push_back(before.back() + (blocks[static_cast<std::size_t>(pass.use.unit)].empty() ? 0 : 1));
    }
    std::vector<GatherUse> uses;
    for (const UnitPass& pass : order_) {
      if (blocks[static_cast<std::size_t>(pass.use.unit)].empty()) continue;
      uses.push_back({pass.use.unit, before[static_cast<std::size_t>(pass.use.until)]});
    }
    return uses;
  }
  /// Bytes that a merged message stays below: it needs room beside the arena, which only a larger budget has.
  [[nodiscard]] constexpr std::size_t merged_bytes() const {
    const std::size_t live = value_bytes(options_.max_live_parameters);
    return std::min(value_bytes(options_.merge_gathers_below), live - std::min(live, plan_.gathers.needed));
  }
  /// Neighbours among the shards go together while the message stays small.
  constexpr void send_gathers(std::span<const GatherOp> ops) {
    const auto own = [&](int b) { return shards_.of(b) * block(b).element_bytes; };
    for (std::size_t begin = 0, end = 0; begin < ops.size(); begin = end) {
      std::size_t total = own(ops[begin].block);
      int first = ops[begin].block, last = first;
      for (end = begin + 1; end < ops.size(); ++end) {
        const int next = ops[end].block;
        const bool behind = shards_.neighbours(last, next), before = shards_.neighbours(next, first);
        if ((!behind && !before) || (total + own(next)) * ranks() >= merged_bytes()) break;
        total += own(next);
        (behind ? last : first) = next;
      }
      if (end > begin + 1) plan_.message = std::max(plan_.message, total * ranks());
      plan_.rank.add(Group::shard, Collective::all_gather, 1, (ranks() - 1) * total);
    }
  }

  /// The gradients of a unit, each time it has computed them.
  constexpr void reduce() {
    ShardRooms rooms(model_, shards_, bucket_bytes());
    plan_.gradient_room = rooms.bytes();
    rooms.run(order_);
    plan_.reductions = rooms.reductions();
    if (rooms.calls() > 0) {
      plan_.rank.add(Group::shard, Collective::reduce_scatter, rooms.calls(), (ranks() - 1) * rooms.sent());
    }
  }

  /// Shards over the replicas, and over the tensor-parallel ranks that have summands of them.
  constexpr void replicate() {
    std::vector<BucketSizes> ranges;
    for (const int b : shards_.order) {
      if (block(b).frozen || shards_.of(b) == 0) continue;
      ranges.push_back({shards_.of(b), block(b).gradient_bytes(), kind_of(block(b), places_, options_.plain)});
    }
    for (const BucketSizes& b : join_buckets(ranges, bucket_bytes())) {
      if (places_.size(Group::replica) > 1)
        plan_.rank.add_all_reduce(places_, Group::replica, b.elements, b.element_bytes);
      if (b.kind == BucketKind::summands && places_.size(Group::tp) > 1) {
        plan_.rank.add_all_reduce(places_, Group::tp, b.elements, b.element_bytes);
      }
    }
  }

  /// What every rank has whole, as under data parallelism.
  constexpr void sum_whole() {
    const ReductionOptions whole{bucket_bytes(), options_.states, options_.plain};
    add_all_reduces(plan_.rank, flat_buckets(model_, places_, whole, [&](int b) { return shards_.of(b) == 0; }),
                    places_);
  }

  const ModelSizes& model_;
  const GroupPlaces& places_;
  const ShardingOptions& options_;
  ShardSizes shards_;
  std::vector<UnitPass> order_;
  ShardedPlan plan_;
};

/// A rank under `Sharded`. Of a block of n elements it owns ceil(n / S), of S ranks in the SHARD group; a gather brings
/// the others', a reduction sends theirs. Shards are summed over the REPLICA group once a step. What is recomputed
/// outside of units, and what is merged in the first step alone, is not in it.
[[nodiscard]] constexpr ShardedPlan plan_sharded(const ModelSizes& model, const GroupPlaces& places,
                                                 const ShardingOptions& options = {}) {
  return ShardedPlanner(model, places, options).make();
}

}  // namespace smp
