// SPDX-License-Identifier: Apache-2.0
// Which units go to which stage.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/partition.hpp>
#include <smp/pipeline/partition_file.hpp>
#include <smp/pipeline/partition_tree.hpp>
#include <smp/pipeline/schedules.hpp>

using namespace smp;

namespace {

template <class T>
constexpr Table<T> table(std::initializer_list<T> values) {
  Table<T> made;
  for (const T& value : values) made.append(value);
  return made;
}
constexpr Table<PartitionNode> equal_units(int count) { return Table<PartitionNode>(count); }
constexpr int size_of(const Partition& partition, int stage) { return partition.size(stage); }
std::vector<int> sizes(const Partition& partition) {
  std::vector<int> found;
  for (int stage = 0; stage < partition.stages(); ++stage) found.push_back(partition.size(stage));
  return found;
}
std::vector<int> cut_sizes(std::initializer_list<double> costs, int stages) {
  return sizes(cut_evenly(table(costs), stages));
}
template <class F>
std::string refusal(F f) {
  try {
    (void)f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}
using Sizes = std::vector<int>;

static_assert(size_of(partition_by_cost(equal_units(10), 3), 0) == 4 &&
              size_of(partition_by_cost(equal_units(10), 3), 2) == 3);
static_assert(partition_by_cost(equal_units(80), 32).stages() == 32);
static_assert(EqualPartition<64, 16, 2>::units_per_chunk == 2);

/// wte, then `blocks` blocks of 12 units of cost, then a head that shares wte.
PartitionNode language_model(int blocks) {
  static constexpr std::string_view names[] = {"h.0", "h.1", "h.2", "h.3", "h.4", "h.5", "h.6", "h.7"};
  PartitionNode model{.name = "model", .type = "Model"};
  model.children.append(
      {.name = "wte", .type = "Embedding", .parameters = 40, .ties = table<std::string_view>({"wte"})});
  PartitionNode stack{.name = "h", .type = "Repeat"};
  for (int i = 0; i < blocks; ++i)
    stack.children.append({.name = names[i], .type = "Block", .parameters = 12, .activations = 12, .flops = 24});
  model.children.append(stack);
  model.children.append({.name = "lm_head",
                         .type = "Head",
                         .parameters = 0,
                         .activations = 20,
                         .flops = 48,
                         .ties = table<std::string_view>({"wte"})});
  return model;
}

}  // namespace

// Field case 48: floor divisions that lose layers or leave the last stage empty.
TEST_CASE("equal units: sizes differ by one, larger ones first, none empty") {
  const auto automatic = [](int units, int stages) { return sizes(partition_by_cost(equal_units(units), stages)); };
  CHECK(automatic(10, 3) == Sizes{4, 3, 3});
  CHECK(automatic(5, 4) == Sizes{2, 1, 1, 1});
  CHECK(automatic(38, 8) == Sizes{5, 5, 5, 5, 5, 5, 4, 4});
  CHECK(automatic(42, 16) == Sizes{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2});
  for (int units = 1; units <= 64; ++units)
    for (int stages = 1; stages <= units; ++stages) {
      Sizes expected(static_cast<std::size_t>(stages), units / stages);
      for (int i = 0; i < units % stages; ++i) ++expected[static_cast<std::size_t>(i)];
      REQUIRE(automatic(units, stages) == expected);
    }
  CHECK(refusal([] { return partition_by_cost(equal_units(3), 4); }) ==
        "smp: cannot put 3 units on 4 pipeline stages: expected at least one unit for each stage");
  CHECK(refusal([] { return partition_by_cost(equal_units(3), 0); }) ==
        "smp: cannot put 3 units on 0 pipeline stages: expected at least 1 stage");
}

TEST_CASE("uneven costs: the least maximum, then the least squares, then larger parts first") {
  CHECK(cut_sizes({1, 1, 1, 1, 100}, 2) == Sizes{4, 1});
  CHECK(cut_sizes({100, 1, 1, 1, 1}, 2) == Sizes{1, 4});
  CHECK(cut_sizes({100, 1, 1, 1, 1}, 3) == Sizes{1, 2, 2});  // the maximum is 100 anyway; the rest is balanced, too
  CHECK(cut_sizes({.30, .25, .20, .25}, 4) == Sizes{1, 1, 1, 1});
  CHECK(cut_sizes({3, 1, 2, 2, 1, 3}, 2) == Sizes{3, 3});
  CHECK(cut_sizes({1, 2, 1}, 2) == Sizes{2, 1});
  CHECK(cut_sizes({0, 0, 1}, 2) == Sizes{2, 1});
  CHECK(cut_sizes({0, 0, 0}, 2) == Sizes{2, 1});
  CHECK(cut_sizes({.1, .1, .1, .1, .1, .1, .1}, 3) == Sizes{3, 2, 2});
  CHECK(refusal([] {
          return cut_evenly(table({1.0, -1.0}), 1);
        }) == "smp: cannot put 2 units on 1 pipeline stages: a cost is negative or not finite");
  CHECK_THROWS_AS((void)cut_evenly(table({1.0, 0.0 / 0.0 * 1.0}), 1), ConfigError);
}

TEST_CASE("the cut is the best of all cuts") {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const int units = 1 + static_cast<int>(random() % 9u);
    const int stages = 1 + static_cast<int>(random() % static_cast<unsigned>(units));
    Table<double> costs(units);
    for (double& cost : costs) cost = static_cast<double>(random() % 6u);
    struct Score {
      double maximum, squares;
      std::vector<double> parts;
    };
    // All cuts, as sets of inner boundaries.
    std::vector<Score> all;
    for (unsigned mask = 0; mask < 1u << (units - 1); ++mask) {
      Score score{0, 0, {0}};
      for (int i = 0; i < units; ++i) {
        score.parts.back() += costs[i];
        if (i + 1 < units && (mask >> i & 1u) != 0) score.parts.push_back(0);
      }
      if (static_cast<int>(score.parts.size()) != stages) continue;
      for (const double part : score.parts) {
        score.maximum = std::max(score.maximum, part);
        score.squares += part * part;
      }
      all.push_back(score);
    }
    const auto better = [](const Score& a, const Score& b) {
      if (a.maximum != b.maximum) return a.maximum < b.maximum;
      if (a.squares != b.squares) return a.squares < b.squares;
      return a.parts > b.parts;
    };
    const Score best = *std::min_element(all.begin(), all.end(), better);
    const Partition found = cut_evenly(costs, stages);
    std::vector<double> parts;
    for (int stage = 0; stage < stages; ++stage) {
      parts.push_back(0);
      for (int unit = found.first[stage]; unit < found.first[stage + 1]; ++unit) parts.back() += costs[unit];
      REQUIRE(found.size(stage) >= 1);
    }
    REQUIRE(parts == best.parts);
  }
}

TEST_CASE("memory_weight weighs memory against flops") {
  Table<PartitionNode> units(4);
  for (int i = 0; i < 4; ++i) units[i].flops = 1;
  units[0].parameters = 60;
  units[1].activations = 40;
  CHECK(sizes(partition_by_cost(units, 2, {.memory_weight = 0})) == Sizes{2, 2});
  CHECK(sizes(partition_by_cost(units, 2, {.memory_weight = 1})) == Sizes{1, 3});
  CHECK(sizes(partition_by_cost(units, 2)) == Sizes{1, 3});  // 0.8, as in the reference
  const Table<double> costs = unit_costs(units, {.memory_weight = 0.5});
  CHECK(costs[0] == doctest::Approx(0.5 * 0.6 + 0.5 * 0.25));
  CHECK(costs[1] == doctest::Approx(0.5 * 0.4 + 0.5 * 0.25));
  CHECK(costs[3] == doctest::Approx(0.5 * 0.25));
  CHECK_THROWS_WITH_AS((void)partition_by_cost(units, 2, {.memory_weight = 1.5}),
                       "smp: memory_weight must be from 0 to 1", ConfigError);
}

TEST_CASE("units that share parameters stay together, or each stage keeps a copy") {
  Table<PartitionNode> units = equal_units(6);
  units[1].ties.append("a");
  units[3].ties.append("a");
  CHECK(sizes(partition_by_cost(units, 2)) == Sizes{4, 2});
  CHECK(sizes(partition_by_cost(units, 4)) == Sizes{1, 3, 1, 1});
  CHECK(refusal([&] { return partition_by_cost(units, 5); }) ==
        "smp: cannot put 6 units on 5 pipeline stages: units that share parameters stay together, which leaves 4; "
        "TiedUnits::apart gives each stage a copy and sums the gradients");
  CHECK(sizes(partition_by_cost(units, 5, {.ties = TiedUnits::apart})) == Sizes{2, 1, 1, 1, 1});
  units[3].ties.append("b");
  units[4].ties.append("b");
  CHECK(sizes(partition_by_cost(units, 3)) == Sizes{1, 4, 1});
  CHECK_THROWS_AS((void)partition_by_cost(language_model(8), 2), ConfigError);
  CHECK(partition_by_cost(language_model(8), 2, {.ties = TiedUnits::apart}).units() == 10);
}

TEST_CASE("a tree: its leaves are the units; what a module has itself counts with its first one") {
  PartitionNode model = language_model(4);
  model.children[1].parameters = 5;
  const Table<PartitionNode> units = flatten(model);
  REQUIRE(units.size() == 6);
  CHECK(units[1].name == "h.0");
  CHECK(units[1].parameters == 17);
  CHECK(units[5].name == "lm_head");
  CHECK(partition_by_cost(model, 3, {.ties = TiedUnits::apart}) ==
        partition_by_cost(units, 3, {.ties = TiedUnits::apart}));
}

TEST_CASE("by modules: whole modules while there are stages for it, seats by D'Hondt, stages in order") {
  const auto list = [](const Table<int>& values) { return std::vector<int>(values.begin(), values.end()); };
  CHECK(list(share_seats(table({.30, .25, .20, .25}), table({9, 9, 9, 9}), 8)) == Sizes{2, 2, 2, 2});
  CHECK(list(share_seats(table({100.0, 10.0, 10.0}), table({9, 9, 9}), 8)) == Sizes{6, 1, 1});
  CHECK(list(share_seats(table({100.0, 10.0, 10.0}), table({2, 9, 9}), 6)) == Sizes{2, 2, 2});
  const PartitionNode model = language_model(8);
  CHECK(sizes(partition_by_modules(model, 1)) == Sizes{10});
  CHECK(sizes(partition_by_modules(model, 3)) == Sizes{1, 8, 1});
  CHECK(sizes(partition_by_modules(model, 5)) == Sizes{1, 3, 3, 2, 1});
  CHECK(sizes(partition_by_modules(model, 10)) == Sizes(10, 1));
  CHECK(refusal([&] { return partition_by_modules(model, 11); }) ==
        "smp: cannot put 10 units on 11 pipeline stages: expected at least one unit for each stage");

  // Never better balanced than the free cut, always complete and in order.
  const Table<PartitionNode> units = flatten(model);
  const Table<double> costs = unit_costs(units, {});
  const auto maximum = [&](const Partition& partition) {
    double most = 0;
    for (int stage = 0; stage < partition.stages(); ++stage) {
      double sum = 0;
      for (int unit = partition.first[stage]; unit < partition.first[stage + 1]; ++unit) sum += costs[unit];
      most = std::max(most, sum);
      CHECK(partition.size(stage) >= 1);
    }
    CHECK(partition.units() == units.size());
    return most;
  };
  for (int stages = 1; stages <= 10; ++stages)
    CHECK(maximum(partition_by_modules(model, stages)) >=
          maximum(partition_by_cost(units, stages, {.ties = TiedUnits::apart})) - 1e-12);
}

// Field case 47: 80 layers on 16 stages with 2 chunks silently became 64; layer numbers wrong per chunk and stage.
TEST_CASE("the equal split refuses what does not divide, the automatic one differs by 1; every layer once") {
  CHECK(refusal([] { return partition_equally(80, 16 * 2); }) ==
        "smp: cannot put 80 units on 32 pipeline stages: they do not divide; 64 or 96 units would, and an automatic "
        "partition makes stages that differ by one");
  CHECK(refusal([] { return partition_equally(40 / 2, 8); }) ==  // chunks of 2 layers
        "smp: cannot put 20 units on 8 pipeline stages: they do not divide; 16 or 24 units would, and an automatic "
        "partition makes stages that differ by one");
  CHECK(sizes(partition_by_cost(equal_units(80), 32))[15] == 3);
  CHECK(sizes(partition_by_cost(equal_units(80), 32))[16] == 2);
  CHECK(sizes(partition_by_cost(equal_units(40), 8)) == Sizes(8, 5));
  CHECK(sizes(partition_by_cost(equal_units(40 / 2), 8)) == Sizes{3, 3, 3, 3, 2, 2, 2, 2});

  const auto layers = [](auto schedule, int units, int ranks, int rank) {
    const PipelinePlan plan = place_stages(schedule, shape_of(schedule, {ranks, 1}));
    const Table<int> found = units_of_rank(partition_equally(units, plan.stages()), plan.stage_rank, rank);
    return std::vector<int>(found.begin(), found.end());
  };
  CHECK(layers(Schedule::Looped<2>{}, 8, 2, 0) == Sizes{0, 1, 4, 5});
  CHECK(layers(Schedule::Looped<2>{}, 8, 2, 1) == Sizes{2, 3, 6, 7});
  CHECK(layers(Schedule::Looped<4>{}, 8, 2, 0) == Sizes{0, 2, 4, 6});
  CHECK(layers(Schedule::Looped<4>{}, 8, 2, 1) == Sizes{1, 3, 5, 7});
  CHECK(layers(Schedule::ZeroBubbleV{}, 8, 2, 0) == Sizes{0, 1, 6, 7});
  for (const int chunks : {1, 2, 3, 4})
    for (int ranks = 1; ranks <= 4; ++ranks) {
      std::vector<int> all;
      for (int rank = 0; rank < ranks; ++rank)
        for (const int layer : layers(RuntimeSchedule::named("looped", chunks), 24 * ranks, ranks, rank))
          all.push_back(layer);
      std::sort(all.begin(), all.end());
      for (int i = 0; i < 24 * ranks; ++i) CHECK(all[static_cast<std::size_t>(i)] == i);
    }
}

TEST_CASE("by hand") {
  CHECK(sizes(partition_at(table({0, 4, 7}), 10)) == Sizes{4, 3, 3});
  CHECK(refusal([] {
          return partition_at(table({0, 4, 4}), 10);
        }) == "smp: cannot put 10 units on 3 pipeline stages: stage 1 would hold no unit");
  CHECK(refusal([] {
          return partition_at(table({0, 7, 4}), 10);
        }) == "smp: cannot put 10 units on 3 pipeline stages: stage 1 would hold no unit");
  CHECK(refusal([] {
          return partition_at(table({0, 10}), 10);
        }) == "smp: cannot put 10 units on 2 pipeline stages: stage 1 would hold no unit");
  CHECK(refusal([] {
          return partition_at(table({1, 4}), 10);
        }) == "smp: cannot put 10 units on 2 pipeline stages: the first stage must start with unit 0");

  const Table<PartitionNode> units = flatten(language_model(4));
  CHECK(sizes(partition_by_type(units, 2, table<StageOfType>({{"Head", 1}}))) == Sizes{5, 1});
  CHECK(sizes(partition_by_type(units, 3, table<StageOfType>({{"Embedding", 0}, {"Head", 2}, {"h.3", 2}}), 1)) ==
        Sizes{1, 3, 2});
  CHECK(refusal([&] {
          return partition_by_type(units, 2, table<StageOfType>({{"Embedding", 1}}));
        }) == "smp: cannot put 6 units on 2 pipeline stages: unit 0 (wte) is given stage 1 behind stage 0");
  CHECK(refusal([&] {
          return partition_by_type(units, 2, table<StageOfType>({{"Block", 1}}));
        }) == "smp: cannot put 6 units on 2 pipeline stages: unit 5 (lm_head) is given stage 0 behind stage 1");
  CHECK(refusal([&] { return partition_by_type(units, 2, {}); }) ==
        "smp: cannot put 6 units on 2 pipeline stages: stage 1 would hold no unit");
}

TEST_CASE("printed, saved and loaded") {
  const Table<PartitionNode> units = flatten(language_model(4));
  const Partition partition = partition_at(table({0, 2, 5}), 6);
  CHECK(to_string(partition, units, {.memory_weight = 0}) ==
        "Partition assignments:\n"
        "stage 0\t2 units\t16.7 %\twte h.0\n"
        "stage 1\t3 units\t50.0 %\th.1 h.2 h.3\n"
        "stage 2\t1 unit\t33.3 %\tlm_head\n");

  const std::string path =
      (std::filesystem::temp_directory_path() / ("smp_partition_" + std::to_string(std::random_device{}()))).string();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  const auto complaint = [&] { return refusal([&] { return load_partition(path, units); }); };
  save_partition(path, partition, units);
  CHECK(load_partition(path, units) == partition);
  const std::string where = "smp: partition file '" + path + "', ";
  const std::string head = "smp partition 1\nstages 2\nunits 6\n";
  write(head + "0\twte\n0\th.0\n0\th.1\n1\th.2\n1\th.3\n1\tlm_head\n");
  CHECK(sizes(load_partition(path, units)) == Sizes{3, 3});
  write("smp partition 2\n");
  CHECK(complaint() == where + "line 1: expected 'smp partition 1'");
  write("smp partition 1\nstages x\n");
  CHECK(complaint() == where + "line 2: expected 'stages' and a positive number");
  write("smp partition 1\nstages 2\nunits 7\n");
  CHECK(complaint() == where + "line 3: expected the 6 units of this model");
  write(head + "0\twte\n0\tx.0\n");
  CHECK(complaint() == where +
                           "line 5: expected a stage, a tab and 'h.0', the stage being that of the unit before or the "
                           "next; found '0\tx.0'");
  write(head + "0\twte\n1\th.0\n0\th.1\n");
  CHECK(complaint().starts_with(where + "line 6: expected a stage, a tab and 'h.1'"));
  write(head + "0\twte\n0\th.0\n0\th.1\n");
  CHECK(complaint() == where + "line 7: expected a stage, a tab and 'h.2'; found the end of the file");
  write(head + "0\twte\n0\th.0\n0\th.1\n0\th.2\n0\th.3\n0\tlm_head\n");
  CHECK(complaint() == where + "line 9: expected 2 stages; found 1");
  std::filesystem::remove(path);
  CHECK(complaint() == "smp: cannot read the partition file '" + path + "'");
  CHECK_THROWS_WITH_AS(save_partition("/nowhere/partition.txt", partition, units),
                       "smp: cannot write the partition file '/nowhere/partition.txt'", ConfigError);
}
