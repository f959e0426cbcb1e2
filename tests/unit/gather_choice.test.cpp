// Which way a gather takes for which options, sizes and nodes, and what is said about it.
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/gather_choice.hpp>

namespace {

using namespace smp::comm;
using enum GatherBackend;
using enum GatherReason;

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;
constexpr GroupOnNodes nodes_of_8{.ranks = 16, .nodes = 2, .smallest = 8};

TEST_CASE("the defaults are those of the reference") {
  const GatherOptions options;
  CHECK(options.backend == automatic);
  CHECK(options.hierarchical);
  CHECK(options.scratch_bytes == 16777216);
  CHECK(options.sort_bytes == 134217728);
  CHECK_NOTHROW(check(options));
}

TEST_CASE("a gather is flat when scratch < input, or sort < ranks * input / ranks per node") {
  const GatherOptions options;
  CHECK(choose_gather(options, nodes_of_8, 0) == GatherChoice{hierarchical, several_nodes});
  CHECK(choose_gather(options, nodes_of_8, 16 * mib) == GatherChoice{hierarchical, several_nodes});
  CHECK(choose_gather(options, nodes_of_8, 16 * mib + 1) == GatherChoice{flat, scratch_too_small});
  // 128 MiB hold what 64 ranks on 8 nodes bring to one rank: 8 pieces of 16 MiB. More nodes bring more.
  CHECK(choose_gather(options, {.ranks = 64, .nodes = 8, .smallest = 8}, 16 * mib).backend == hierarchical);
  CHECK(choose_gather(options, {.ranks = 72, .nodes = 9, .smallest = 8}, 16 * mib) ==
        GatherChoice{flat, sort_too_small});

  const GatherOptions small{.backend = one_hop, .scratch_bytes = 8 * kib, .sort_bytes = 16 * kib};
  CHECK(choose_gather(small, nodes_of_8, 8 * kib) == GatherChoice{one_hop, asked_for});
  CHECK(choose_gather(small, nodes_of_8, 8 * kib + 1) == GatherChoice{flat, scratch_too_small});
  // Fewer ranks on one of the nodes: they collect more each. 10 pieces on 3 ranks, of 4915 bytes: 16383.3 a rank.
  CHECK(choose_gather(small, {.ranks = 10, .nodes = 2, .smallest = 3}, 4915) == GatherChoice{one_hop, asked_for});
  CHECK(choose_gather(small, {.ranks = 10, .nodes = 2, .smallest = 3}, 4916) == GatherChoice{flat, sort_too_small});
  CHECK(choose_gather(small, {.ranks = 7, .nodes = 2, .smallest = 3}, 7022) == GatherChoice{flat, sort_too_small});
}

TEST_CASE("with both buffers at 8192 a gather of 1 MiB is flat, and says why") {
  const GatherOptions options{.scratch_bytes = 8192, .sort_bytes = 8192, .ranks_per_node = 8};
  CHECK_NOTHROW(check(options));
  GatherReport report("SHARD", options, nodes_of_8);
  CHECK(report.lines().empty());
  CHECK(report.count(mib) == GatherChoice{flat, scratch_too_small});
  CHECK(report.count(mib / 2) == GatherChoice{flat, scratch_too_small});
  CHECK(report.count(8192) == GatherChoice{flat, sort_too_small});
  CHECK(report.count(4096) == GatherChoice{hierarchical, several_nodes});
  CHECK(report.lines() ==
        std::vector<std::string>{
            "SHARD: 2 gathers flat: the piece of a rank, 1048576 bytes, is larger than scratch_bytes, 8192",
            "SHARD: 1 gather flat: a rank collects 16384 bytes for its node, which is more than sort_bytes, 8192",
            "SHARD: 1 gather hierarchical: 16 ranks on 2 nodes"});
  REQUIRE(report.rows().size() == 3);
  CHECK(report.rows()[0].gathers == 2);
  CHECK(report.rows()[0].largest == mib);
}

TEST_CASE("sizes that are no multiple of 8192 are refused by name") {
  const auto refused = [](const GatherOptions& options, const char* text) {
    CHECK_THROWS_WITH_AS(check(options), text, smp::ConfigError);
  };
  refused({.scratch_bytes = 8191}, "smp: the gather option scratch_bytes is 8191, but must be a multiple of 8192");
  refused({.scratch_bytes = 8193}, "smp: the gather option scratch_bytes is 8193, but must be a multiple of 8192");
  refused({.sort_bytes = 8191}, "smp: the gather option sort_bytes is 8191, but must be a multiple of 8192");
  refused({.ranks_per_node = -1},
          "smp: the gather option ranks_per_node is -1, but must be at least 1, or 0 for what the communicator knows");
  refused({.ranks_per_node = 2, .nodes = nodes_by_number(std::vector<int>{0, 1})},
          "smp: the gather options ranks_per_node and nodes both say who shares a node; give one of them");
}

TEST_CASE("no hierarchy without several nodes of several ranks, or where it is switched off") {
  const GroupOnNodes alone{}, one_node{.ranks = 4, .nodes = 1, .smallest = 4}, spread{.ranks = 4, .nodes = 4},
      uneven{.ranks = 3, .nodes = 2};
  for (const GatherBackend b : {automatic, GatherBackend::hierarchical}) {
    CHECK(choose_gather({.backend = b}, alone, 8) == GatherChoice{flat, GatherReason::one_node});
    CHECK(choose_gather({.backend = b}, one_node, 8) == GatherChoice{flat, GatherReason::one_node});
    CHECK(choose_gather({.backend = b}, spread, 8) == GatherChoice{flat, one_rank_per_node});
    CHECK(choose_gather({.backend = b}, uneven, 8).backend == GatherBackend::hierarchical);
  }
  CHECK(choose_gather({.hierarchical = false}, uneven, 8) == GatherChoice{flat, switched_off});
  CHECK(choose_gather({.backend = GatherBackend::hierarchical, .hierarchical = false}, uneven, 8) ==
        GatherChoice{GatherBackend::hierarchical, asked_for});
  CHECK(choose_gather({.backend = one_hop}, alone, 8) == GatherChoice{flat, GatherReason::one_node});
  CHECK(choose_gather({.backend = one_hop}, one_node, 8) == GatherChoice{one_hop, asked_for});
  CHECK(choose_gather({.backend = flat}, uneven, mib) == GatherChoice{flat, asked_for});
}

}  // namespace
