// SPDX-License-Identifier: Apache-2.0
// The published sizing examples, checked by the compiler, and who reads which samples.
#include <cstdint>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <smp/batch_plan.hpp>

namespace {

using smp::BatchPlan;
using smp::Degrees;
using smp::DynamicTopology;
using smp::Group;
using smp::Placement;
using smp::SampleRange;
using smp::Topology;

// The documentation's example for prescaled batches: 1536 ranks, sequences of 4096.
constexpr BatchPlan plain{.world = 1536, .batch = 1, .seq = 4096};
static_assert(plain.samples() == 1536);
static_assert(plain.tokens() == 6'291'456);
constexpr BatchPlan scaled{.world = 1536, .tp = 8, .prescaled = true, .batch = 4, .seq = 4096};
static_assert(scaled.feeds() == 192);
static_assert(scaled.samples() == 768);
static_assert(scaled.tokens() == 3'145'728);

// Published configurations, on nodes of 8: sharded data parallelism alone, then with tensor parallelism (prescaled).
static_assert(BatchPlan{.world = 2 * 8, .batch = 4}.samples() == 64);
static_assert(BatchPlan{.world = 8 * 8, .batch = 12}.samples() == 768);
static_assert(BatchPlan{.world = 64 * 8, .tp = 8, .prescaled = true, .batch = 8}.samples() == 512);
static_assert(BatchPlan{.world = 64 * 8, .tp = 2, .prescaled = true, .batch = 2}.samples() == 512);

// Stages of one pipeline read the same samples; without prescaling, ranks of one tp group do not.
static_assert(BatchPlan{.world = 16, .pp = 2, .tp = 4, .batch = 3}.samples() == 24);
static_assert(BatchPlan{.world = 16, .pp = 2, .tp = 4, .prescaled = true, .batch = 3}.samples() == 6);

// Beyond 32 bits.
static_assert(BatchPlan{.world = 65536, .batch = 65536, .seq = 65536}.tokens() == std::int64_t{1} << 48);

constexpr Topology<Degrees{.pp = 2, .tp = 2, .rdp = 2}> topology;
constexpr BatchPlan plan_of_8{.world = 8, .pp = 2, .tp = 2, .batch = 3};
constexpr SampleRange second_feed{3, 6};
static_assert(plan_of_8.samples_of(topology, 1) == second_feed);

template <class F>
std::string config_error(F f) {
  try {
    f();
  } catch (const smp::ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("which samples each of 8 ranks reads (pp 2, tp 2, cluster)") {
  for (int rank = 0; rank < 8; ++rank) {
    CAPTURE(rank);
    const BatchPlan prescaled{.world = 8, .pp = 2, .tp = 2, .prescaled = true, .batch = 6};
    CHECK(prescaled.samples_of(topology, rank) == (rank < 4 ? SampleRange{0, 6} : SampleRange{6, 12}));
    constexpr std::int64_t firsts[] = {0, 3, 0, 3, 6, 9, 6, 9};
    CHECK(plan_of_8.samples_of(topology, rank) == SampleRange{firsts[rank], firsts[rank] + 3});
  }
}

TEST_CASE("feeds cover the global batch once, under every placement") {
  for (const Placement placement : smp::all_placements) {
    for (const bool prescaled : {false, true}) {
      const DynamicTopology any(Degrees{.pp = 2, .tp = 3, .rdp = 4}, placement);
      const BatchPlan plan{.world = 24, .pp = 2, .tp = 3, .prescaled = prescaled, .batch = 5, .seq = 7};
      CAPTURE(to_string(placement));
      CAPTURE(prescaled);
      CHECK(plan.feeds() == (prescaled ? 4 : 12));
      CHECK(plan.tokens() == plan.samples() * 7);
      const Group same_feed = prescaled ? Group::mp : Group::pp;
      std::int64_t covered = 0;
      for (int i = 0; i < any.group_count(same_feed); ++i) {
        const SampleRange range = plan.samples_of(any, any.group_at(same_feed, i)[0]);
        for (const int rank : any.group_at(same_feed, i)) CHECK(plan.samples_of(any, rank) == range);
        CHECK(range.first % 5 == 0);
        covered += range.size();
      }
      CHECK(covered == plan.samples());
      const Group one_of_each = prescaled ? Group::rdp : Group::dp;
      std::int64_t next = 0;
      for (const int rank : any.group(one_of_each, 0)) {
        CHECK(plan.samples_of(any, rank).first == next);
        next = plan.samples_of(any, rank).last;
      }
      CHECK(next == plan.samples());
    }
  }
}

TEST_CASE("a plan that cannot work is a sentence") {
  const auto samples = [](const BatchPlan& plan) { return config_error([&] { return plan.samples(); }); };
  CHECK(samples({.world = 8, .tp = 3}) ==
        "smp: tp is 3, but must divide world / pp = 8 / 1 = 8; legal values are 1, 2, 4, 8");
  CHECK(samples({.world = 0}) == "smp: world is 0, but must be at least 1");
  CHECK(samples({.batch = 0}) == "smp: batch is 0, but must be at least 1");
  CHECK(samples({.batch = -4}) == "smp: batch is -4, but must be at least 1");
  CHECK(config_error([] { return BatchPlan{.seq = 0}.tokens(); }) == "smp: seq is 0, but must be at least 1");

  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(BatchPlan{.batch = most}.tokens() == most);
  CHECK(samples({.world = 2, .batch = most}) ==
        "smp: batch is 9223372036854775807, but times 2 feeds that is more than 63 bits can count");
  CHECK(config_error([] { return BatchPlan{.world = 2, .batch = 2, .seq = most / 2}.tokens(); }) ==
        "smp: seq is 4611686018427387903, but times 4 samples that is more than 63 bits can count");
}

TEST_CASE("a plan for another topology is refused") {
  CHECK(config_error([] { return BatchPlan{.world = 8, .tp = 2}.samples_of(topology, 0); }) ==
        "smp: the batch plan is for a world of 8 with pp 1 and tp 2, but the topology has a world of 8 with pp 2 and "
        "tp 2");
  CHECK(config_error([] { return plan_of_8.samples_of(topology, 8); }) == "smp: rank is 8, but must be 0 to 7");
}
