// SPDX-License-Identifier: Apache-2.0
// Memory and traffic of a rank, computed by hand and by the formulas that are published.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/counted.hpp>
#include <smp/parallel/plan_of.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/plan/flat_plan.hpp>
#include <smp/plan/gpt_plan.hpp>
#include <smp/plan/sharded_plan.hpp>

#include "support/tiny_modules.hpp"

namespace {

using smp::Collective, smp::Group, smp::GroupPlaces, smp::ModelSizes, smp::ParameterSizes, smp::RankPlan;
constexpr std::size_t unlimited = 1'000'000'000;

constexpr GroupPlaces places(int world, int rank, int tp, int sdp) {
  return GroupPlaces::of(smp::DynamicTopology(smp::degrees_for(world, {.tp = tp, .rdp = smp::dynamic, .sdp = sdp})),
                         rank);
}

// A root of 2 elements around two units of 10 and 7, in single precision; 5 frozen elements in the second unit.
constexpr ModelSizes two_units() {
  const std::array<ParameterSizes, 4> list{{{0, 2}, {1, 10}, {2, 7}, {2, 5, 4, -1, true, true}}};
  const std::array<int, 3> parents{-1, 0, 0};
  return make_model_sizes(list, parents);
}

constexpr bool sends(const RankPlan& plan, Group group, Collective c, std::uint64_t calls, std::uint64_t bytes) {
  return plan.sent(group, c) == smp::GroupTraffic{group, c, calls, bytes};
}

// Whole on each of 4 ranks: 24 values, 19 of them trained; one bucket of 19: pieces of 5, 5, 5 and 4.
constexpr bool data_parallel_is_right() {
  const RankPlan first = plan_data_parallel(two_units(), places(4, 0, 1, 1));
  const RankPlan last = plan_data_parallel(two_units(), places(4, 3, 1, 1));
  return first.parameter == 24 * 4 && first.gradient == 19 * 4 && first.optimizer == 2 * 19 * 4 && first.buffer == 0 &&
         sends(first, Group::rdp, Collective::all_reduce, 1, (19 + 2 * 5) * 4) &&
         sends(last, Group::rdp, Collective::all_reduce, 1, (19 + 2 * 4) * 4) && first.traffic.size() == 1;
}
static_assert(data_parallel_is_right());

constexpr bool sharded_optimizer_is_right() {
  const RankPlan last = plan_sharded_optimizer(two_units(), places(4, 3, 1, 1), {.bucket_bytes = 40, .states = 1});
  // buckets from the back: 7, then 10 alone, then 2: pieces of the last rank 1, 1 and 0
  return last.parameter == 24 * 4 && last.gradient == 19 * 4 && last.optimizer == 2 * 4 &&
         sends(last, Group::rdp, Collective::reduce_scatter, 3, (6 + 9 + 2) * 4) &&
         sends(last, Group::rdp, Collective::all_gather, 3, 3 * 2 * 4);
}
static_assert(sharded_optimizer_is_right());

// Two ranks: shards of 1, 5, 4 and 3 (frozen), with padding 1, 5, 4, 3 twice. The smallest budget: root and the larger
// unit, 2 + 14 elements of 8 + 6.
constexpr bool sharded_is_right() {
  const smp::ShardedPlan plan =
      plan_sharded(two_units(), places(4, 1, 1, 2),
                   {.reduce_bucket_size = 1, .max_live_parameters = 0, .merge_gathers_below = 0, .microbatches = 3});
  const RankPlan& rank = plan.rank;
  // 3 micro-batches: the root once a step; unit 1 before each forward but the first of a turn, unit 2 likewise
  const std::uint64_t root = 1 * 1, first = 4 * 5, second = 3 * (4 + 3);
  return rank.parameter == 13 * 4 && rank.gradient == 10 * 4 && rank.optimizer == 20 * 4 && plan.shard_elements == 13 &&
         plan.gathers.needed == 16 * 4 && plan.gathers.arena == 16 * 4 && plan.gathers.peak == 16 * 4 &&
         plan.gradient_room == 2 * 10 * 4 && rank.buffer == (16 + 20) * 4 &&
         sends(rank, Group::shard, Collective::all_gather, 1 + 4 + 6, (root + first + second) * 4) &&
         sends(rank, Group::shard, Collective::reduce_scatter, 3 * 3, 3 * (1 + 5 + 4) * 4) &&
         // shards of 1, 5, 4 in buckets of 1: two replicas, the second one has the smaller half
         sends(rank, Group::replica, Collective::all_reduce, 3, 10 * 4) && rank.traffic.size() == 3;
}
static_assert(sharded_is_right());

constexpr bool unlimited_gathers_once() {
  const smp::ShardedPlan plan = plan_sharded(two_units(), places(4, 1, 1, 4), {.microbatches = 3});
  return plan.gathers.gathers() == 4 && plan.gathers.arena == (4 + 12 + 8 + 8) * 4 &&
         plan.rank.sent(Group::shard, Collective::all_gather).bytes == 3 * (1 + 3 + 2 + 2) * 4 &&
         plan.rank.sent(Group::replica, Collective::all_reduce).calls == 0;
}
static_assert(unlimited_gathers_once());

}  // namespace

TEST_CASE("the bytes of calls are those that are counted") {
  for (const int n : {1, 2, 3, 8}) {
    for (const std::size_t count : {0U, 1U, 7U, 8U, 1000U}) {
      for (int rank = 0; rank < n; ++rank) {
        smp::comm::Membership group;
        group.rank = rank;
        group.world_ranks.resize(static_cast<std::size_t>(n));
        smp::comm::Call call;
        call.operation = smp::comm::Operation::all_reduce;
        call.count = count;
        call.element_bytes = 4;
        GroupPlaces at;
        at.rank[static_cast<std::size_t>(Group::rdp)] = rank;
        at.ranks[static_cast<std::size_t>(Group::rdp)] = n;
        RankPlan plan;
        plan.add_all_reduce(at, Group::rdp, count, 4);
        CHECK(plan.sent() == bytes_sent(call, group));
      }
    }
  }
}

TEST_CASE("small parameters stay whole, and are reduced as under data parallelism") {
  const std::array<ParameterSizes, 4> list{{{0, 2}, {1, 10}, {2, 7}, {2, 5, 4, -1, true, true}}};
  const std::array<int, 3> parents{-1, 0, 0};
  const ModelSizes model = make_model_sizes(list, parents, {.persistence_threshold = 8});
  const smp::ShardedPlan plan = plan_sharded(model, places(4, 0, 1, 2));
  CHECK(plan.shard_elements == 5);
  CHECK(plan.rank.parameter == (5 + 2 + 7 + 5) * 4);
  CHECK(plan.rank.gradient == (5 + 2 + 7) * 4);
  CHECK(plan.gathers.gathers() == 1);
  CHECK(sends(plan.rank, Group::rdp, Collective::all_reduce, 1, (9 + 2 * 3) * 4));
  CHECK(sends(plan.rank, Group::replica, Collective::all_reduce, 1, 5 * 4 + 1 * 4 - 1 * 4));
}

TEST_CASE("a tied block is reduced once for each of its units, unless a bucket has room for both") {
  const std::array<ParameterSizes, 3> list{{{1, 8, 4, 0}, {2, 6}, {3, 8, 4, 0}}};
  const std::array<int, 4> parents{-1, 0, 0, 0};
  const ModelSizes model = make_model_sizes(list, parents);
  CHECK(model.blocks.size() == 2);
  const auto reductions = [&](std::size_t bucket) {
    return plan_sharded(model, places(2, 0, 1, 2), {.reduce_bucket_size = bucket, .microbatches = 2}).reductions;
  };
  CHECK(reductions(1) == 2 * 3);
  CHECK(reductions(unlimited) == 2 * 2);
}

TEST_CASE("blocks of a list are those of the layout of a model") {
  using namespace smp::testing;
  using Tied = Dense<double, "wt">;
  smp::Sequential<Tied, smp::Repeat<Dense<double>>, Dense<double>, Tied> model(
      Tied(3, 3), smp::Repeat<Dense<double>>(2, [](std::size_t) { return Dense<double>(3, 3); }),
      Dense<double>(3, 3, true), Tied(3, 3));
  smp::Layout layout(model, {.persistence_threshold = 5, .shard_degree = smp::dynamic});
  const ModelSizes found = smp::model_sizes(layout);
  const std::array<ParameterSizes, 10> list{{{1, 9, 8, 0},
                                             {1, 3, 8, -1, false},
                                             {2, 9, 8},
                                             {2, 3, 8, -1, false},
                                             {3, 9, 8},
                                             {3, 3, 8, -1, false},
                                             {4, 9, 8, -1, true, true},
                                             {4, 3, 8, -1, false, true},
                                             {5, 9, 8, 0},
                                             {5, 3, 8, -1, false}}};
  const std::array<int, 6> parents{-1, 0, 0, 0, 0, 0};
  const ModelSizes expected = make_model_sizes(list, parents, {.persistence_threshold = 5});
  REQUIRE(found.blocks.size() == expected.blocks.size());
  for (std::size_t b = 0; b < found.blocks.size(); ++b) {
    CAPTURE(b);
    CHECK(found.blocks[b].parameters == expected.blocks[b].parameters);
    CHECK(found.blocks[b].element_bytes == expected.blocks[b].element_bytes);
    CHECK(found.blocks[b].frozen == expected.blocks[b].frozen);
    CHECK(found.blocks[b].persistent == expected.blocks[b].persistent);
  }
  REQUIRE(found.units.size() == expected.units.size());
  for (std::size_t u = 0; u < found.units.size(); ++u) {
    CHECK(found.units[u].blocks == expected.units[u].blocks);
    CHECK(found.units[u].parent == expected.units[u].parent);
  }
}

TEST_CASE("GPT-2 has as many parameters as it is said to have") {
  const auto elements = [](const smp::GptShape& shape, int world, int rank, int tp) {
    std::size_t sum = 0;
    for (const smp::BlockSizes& b : gpt_sizes(shape, {}, places(world, rank, tp, 1)).blocks) sum += b.elements();
    return sum;
  };
  CHECK(elements({}, 1, 0, 1) == 124'439'808);
  CHECK(elements({.vocabulary = 50304}, 1, 0, 1) == 124'475'904);
  CHECK(elements({6, 384, 256, 8192}, 1, 0, 1) == 13'891'584);
  // GPT-NeoX-20B: 12 h^2 + 13 h a layer, two matrices of the vocabulary, no positions: 20,554,567,680 (its model card)
  CHECK(elements({44, 6144, 2048, 50432, false, false}, 1, 0, 1) == 20'554'567'680);
  // Norms, positions and the biases behind sums are on both ranks; 50257 rows are cut into 25129 and 25128.
  const std::size_t twice = 12 * 6 * 768 + 1024 * 768 + 2 * 768;
  CHECK(elements({}, 2, 0, 2) + elements({}, 2, 1, 2) == 124'439'808 + twice);
  CHECK(elements({}, 2, 0, 2) - elements({}, 2, 1, 2) == 768);
}

TEST_CASE("bytes of the model state are those of ZeRO's and MiCS's formulas") {
  // Rajbhandari et al., 2020, figure 1, in single precision: 16 bytes an element, divided by what shares them.
  const smp::GptShape shape{6, 384, 256, 8192};
  const std::size_t psi = 13'891'584;
  const auto total = [](const RankPlan& p) { return p.parameter + p.gradient + p.optimizer; };
  const GroupPlaces at = places(8, 0, 1, 4);
  CHECK(total(plan_data_parallel(gpt_sizes(shape, {}, at), at)) == 16 * psi);
  const RankPlan stage1 = plan_sharded_optimizer(gpt_sizes(shape, {}, at), at);
  CHECK(total(stage1) - 8 * psi >= psi);
  CHECK(total(stage1) - 8 * psi <= psi + 8 * 4);  // an element of each bucket and state
  const smp::ShardedPlan sharded = plan_sharded(gpt_sizes(shape, {}, at), at, {.max_live_parameters = unlimited});
  CHECK(total(sharded.rank) == 4 * psi);
}

TEST_CASE("bytes on the wire are those of the formulas: DDP, ZeRO 1, MiCS") {
  // Model G in single precision on two ranks: 55.57 MB for one all-reduce; the same for ZeRO 1.
  const smp::GptShape shape{6, 384, 256, 8192};
  const std::uint64_t bytes = 4 * std::uint64_t{13'891'584};
  const GroupPlaces two = places(2, 0, 1, 2), eight = places(8, 0, 1, 4);
  CHECK(plan_data_parallel(gpt_sizes(shape, {}, two), two).sent() == bytes);
  CHECK(plan_sharded_optimizer(gpt_sizes(shape, {}, two), two).sent() == bytes);
  // Everything is gathered once a step, reduced once a micro-batch, and the shards are summed once over 2 replicas.
  const smp::ShardedPlan sharded = plan_sharded(gpt_sizes(shape, {}, eight), eight, {.microbatches = 3});
  CHECK(sharded.rank.sent(Group::shard, Collective::all_gather).bytes == bytes * 3 / 4);
  CHECK(sharded.rank.sent(Group::shard, Collective::reduce_scatter).bytes == 3 * bytes * 3 / 4);
  CHECK(sharded.rank.sent(Group::replica, Collective::all_reduce).bytes == bytes / 4);
}

TEST_CASE("a layer sends 8 (t - 1) / t of a hidden state in a micro-batch, and half of that for a forward again") {
  const smp::GptShape one{.layers = 1, .hidden = 24, .sequence = 12}, none{.layers = 0, .hidden = 24, .sequence = 12};
  const std::uint64_t state = 2 * 12 * 24 * 4;
  for (const int tp : {2, 3, 4}) {
    const GroupPlaces at = places(tp, 0, tp, 1);
    const auto layer = [&](const smp::GptRun& run) {
      RankPlan with, without;
      add_gpt_activations(with, one, run, at);
      add_gpt_activations(without, none, run, at);
      return (with.sent() - without.sent()) * static_cast<unsigned>(tp);
    };
    const auto others = static_cast<std::uint64_t>(tp - 1);
    CHECK(layer({.samples = 2}) == 8 * others * state);
    CHECK(layer({.recompute = true, .samples = 2, .microbatches = 5}) == 5 * 12 * others * state);
    CHECK(layer({.slices = true, .samples = 2}) == (8 + 2) * others * state);
  }
}
