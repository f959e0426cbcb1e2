// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which units of a model go to which pipeline stage: cut automatically by cost, or by hand. A unit is the smallest
/// piece that can be on a stage by itself; units are numbered in the order in which they run, and each stage takes a
/// run of them, so that stages follow one another as units do. constexpr and run time alike.

#include <string>
#include <string_view>
#include <utility>

#include <smp/error.hpp>
#include <smp/pipeline/table.hpp>

namespace smp {

/// A unit, or a module made of units. What a module has besides its children (own parameters, its input) counts with
/// the first unit in it. Names are not copied.
struct PartitionNode {
  std::string_view name{};          ///< the path in the model: "h.3"
  std::string_view type{};          ///< "Block"
  double parameters = 0;            ///< bytes
  double activations = 0;           ///< bytes kept for backward
  double flops = 0;                 ///< forward and backward
  Table<std::string_view> ties{};   ///< names of parameters that other units use, too
  Table<PartitionNode> children{};  ///< in the order in which they run
};

/// What is done with a parameter that several units use.
enum class TiedUnits : unsigned char {
  together,  ///< its units, and all between them, stay on one stage
  apart      ///< each stage keeps a copy of it and their gradients are summed
};

/// How an automatic partition weighs costs.
struct PartitionOptions {
  double memory_weight = 0.8;            ///< 1: parameters and activations only; 0: flops only. The reference's default
  TiedUnits ties = TiedUnits::together;  ///< what parameters with several users mean
};

/// The result: stage s holds the units first[s] up to first[s + 1].
struct Partition {
  Table<int> first;  ///< by stage, and one more: the number of units

  /// How many stages there are.
  [[nodiscard]] constexpr int stages() const noexcept { return first.size() - 1; }
  /// How many units there are.
  [[nodiscard]] constexpr int units() const noexcept { return first[stages()]; }
  /// How many units a stage holds.
  [[nodiscard]] constexpr int size(int stage) const noexcept { return first[stage + 1] - first[stage]; }
  /// The stage that holds a unit. @pre `0 <= unit < units()`
  [[nodiscard]] constexpr int stage_of(int unit) const noexcept {
    int stage = 0;
    while (first[stage + 1] <= unit) ++stage;
    return stage;
  }
  friend constexpr bool operator==(const Partition&, const Partition&) = default;
};

namespace detail {

/// @throws ConfigError
[[noreturn]] inline void refuse_units(int units, int stages, const std::string& why) {
  throw ConfigError("cannot put " + std::to_string(units) + (units == 1 ? " unit on " : " units on ") +
                    std::to_string(stages) + " pipeline stages: " + why);
}

constexpr void require_enough_units(int units, int stages) {
  if (stages < 1) refuse_units(units, stages, "expected at least 1 stage");
  if (units < stages) refuse_units(units, stages, "expected at least one unit for each stage");
}

/// Sums of the costs before each unit, and comparison up to the rounding of such sums.
class CostSums {
 public:
  constexpr explicit CostSums(const Table<double>& costs) : before_(costs.size() + 1) {
    for (int i = 0; i < costs.size(); ++i) before_[i + 1] = before_[i] + costs[i];
    slack_ = 1e-12 * total();
  }
  [[nodiscard]] constexpr double total() const noexcept { return before_[before_.size() - 1]; }
  [[nodiscard]] constexpr double between(int from, int to) const noexcept { return before_[to] - before_[from]; }
  [[nodiscard]] constexpr double slack() const noexcept { return slack_; }

 private:
  Table<double> before_;
  double slack_ = 0;
};

/// The least possible maximum of the costs of `parts` runs.
[[nodiscard]] constexpr double least_maximum(const CostSums& sums, const Table<double>& costs, int parts) {
  double bound = sums.total() / parts;
  for (const double cost : costs) bound = cost > bound ? cost : bound;
  while (true) {  // fill runs up to the bound; if that takes too many, go to the next bound at which one takes more
    int runs = 0;
    double next = sums.total();
    for (int from = 0, to = 1; from < costs.size(); from = to++, ++runs) {
      while (to < costs.size() && sums.between(from, to + 1) <= bound + sums.slack()) ++to;
      if (to < costs.size() && sums.between(from, to + 1) < next) next = sums.between(from, to + 1);
    }
    if (runs <= parts) return bound;
    bound = next;
  }
}

}  // namespace detail

/// Cuts a row of costs into `stages` runs, none empty. Of the cuts with the least maximum (Alg. 2 of the reference's
/// paper) it takes the one with the least sum of squares; of those, the one with the larger parts first.
/// @throws ConfigError if there are fewer costs than stages, or one is negative
[[nodiscard]] constexpr Partition cut_evenly(const Table<double>& costs, int stages) {
  const int units = costs.size();
  detail::require_enough_units(units, stages);
  for (const double cost : costs) {
    const bool usable = cost >= 0 && cost < 1e150;  // false for NaN; larger ones have no square
    if (!usable) detail::refuse_units(units, stages, "a cost is negative or not finite");
  }
  const detail::CostSums sums(costs);
  const double bound = detail::least_maximum(sums, costs, stages) + sums.slack();

  // least[parts, from]: the least sum of squares of `parts` runs that hold the units from `from` on; -1 if there are
  // none.
  Table<double> least((stages + 1) * (units + 1), -1.0);
  const auto at = [&](int parts, int from) -> double& { return least[parts * (units + 1) + from]; };
  const auto squares = [&](int parts, int from, int to) {
    const double rest = at(parts - 1, to), here = sums.between(from, to);
    return rest < 0 ? -1.0 : rest + here * here;
  };
  at(0, units) = 0;
  for (int parts = 1; parts <= stages; ++parts)
    for (int from = units - parts; from >= stages - parts; --from)
      for (int to = from + 1; to <= units - parts + 1 && sums.between(from, to) <= bound; ++to) {
        const double found = squares(parts, from, to);
        if (found >= 0 && (at(parts, from) < 0 || found < at(parts, from))) at(parts, from) = found;
      }
  Partition partition{Table<int>(stages + 1)};
  for (int stage = 0, from = 0; stage < stages; ++stage) {
    const int parts = stages - stage;
    const double best = at(parts, from) + sums.slack() * sums.total();
    int to = units - parts + 1;
    while (sums.between(from, to) > bound || squares(parts, from, to) < 0 || squares(parts, from, to) > best) --to;
    partition.first[stage + 1] = from = to;
  }
  return partition;
}

/// The units of a tree in the order of the model.
[[nodiscard]] constexpr Table<PartitionNode> flatten(const PartitionNode& root) {
  Table<PartitionNode> units;
  if (root.children.empty()) {
    units.append(root);
    return units;
  }
  for (const PartitionNode& child : root.children)
    for (const PartitionNode& unit : flatten(child)) units.append(unit);
  units[0].parameters += root.parameters;
  units[0].activations += root.activations;
  units[0].flops += root.flops;
  for (const std::string_view tie : root.ties) units[0].ties.append(tie);
  return units;
}

/// The cost of each unit: memory_weight of its share of all memory, the rest of its share of all flops (spec of the
/// reference: C = a mem + (1 - a) time). If the units state only one of the two, that one counts; if none, all are
/// equal.
[[nodiscard]] constexpr Table<double> unit_costs(const Table<PartitionNode>& units, const PartitionOptions& options) {
  const double weight = options.memory_weight;
  const bool is_share = weight >= 0 && weight <= 1;
  if (!is_share) throw ConfigError("memory_weight must be from 0 to 1");
  double memory = 0, flops = 0;
  for (const PartitionNode& unit : units) {
    memory += unit.parameters + unit.activations;
    flops += unit.flops;
  }
  Table<double> costs(units.size());
  for (int i = 0; i < units.size(); ++i) {
    const double of_memory = memory > 0 ? (units[i].parameters + units[i].activations) / memory : 0;
    const double of_flops = flops > 0 ? units[i].flops / flops : 0;
    costs[i] = memory > 0 && flops > 0 ? weight * of_memory + (1 - weight) * of_flops
               : memory + flops > 0    ? of_memory + of_flops
                                       : 1;
  }
  return costs;
}

namespace detail {

/// Numbers the groups of units that must stay together, in the order of the model: by unit, its group.
[[nodiscard]] constexpr Table<int> groups_of(const Table<PartitionNode>& units, TiedUnits ties) {
  Table<bool> joins_next(units.size());
  for (int i = 0; i < units.size() && ties == TiedUnits::together; ++i)
    for (const std::string_view tie : units[i].ties)
      for (int j = units.size() - 1, last = i; j > last; --j)
        for (const std::string_view other : units[j].ties)
          if (other == tie)
            for (; last < j; ++last) joins_next[last] = true;
  Table<int> groups(units.size());
  for (int i = 1; i < units.size(); ++i) groups[i] = groups[i - 1] + (joins_next[i - 1] ? 0 : 1);
  return groups;
}

}  // namespace detail

/// The best cut of `units` (see cut_evenly) by their costs.
/// @throws ConfigError if there are fewer units, or groups of tied units, than stages
[[nodiscard]] constexpr Partition partition_by_cost(const Table<PartitionNode>& units, int stages,
                                                    const PartitionOptions& options = {}) {
  detail::require_enough_units(units.size(), stages);
  const Table<double> costs = unit_costs(units, options);
  const Table<int> groups = detail::groups_of(units, options.ties);
  const int count = groups[units.size() - 1] + 1;
  if (count < stages)
    detail::refuse_units(units.size(), stages,
                         "units that share parameters stay together, which leaves " + std::to_string(count) +
                             "; TiedUnits::apart gives each stage a copy and sums the gradients");
  Table<double> sums(count);
  for (int i = 0; i < units.size(); ++i) sums[groups[i]] += costs[i];
  const Partition by_group = cut_evenly(sums, stages);
  Partition result{Table<int>(stages + 1)};
  for (int i = 0; i < units.size(); ++i) result.first[by_group.stage_of(groups[i]) + 1] = i + 1;
  return result;
}

/// The same for a tree, whose leaves are the units.
[[nodiscard]] constexpr Partition partition_by_cost(const PartitionNode& root, int stages,
                                                    const PartitionOptions& options = {}) {
  return partition_by_cost(flatten(root), stages, options);
}

/// By hand, by index: `first` holds the first unit of each stage.
/// @throws ConfigError if a stage would be empty or units would be left over
[[nodiscard]] constexpr Partition partition_at(const Table<int>& first, int units) {
  detail::require_enough_units(units, first.size());
  Partition result{first};
  result.first.append(units);
  if (first[0] != 0) detail::refuse_units(units, first.size(), "the first stage must start with unit 0");
  for (int stage = 0; stage < first.size(); ++stage)
    if (result.size(stage) < 1)
      detail::refuse_units(units, first.size(), "stage " + std::to_string(stage) + " would hold no unit");
  return result;
}

/// By hand, all stages alike.
/// @throws ConfigError if the number of units is no multiple of the number of stages
[[nodiscard]] constexpr Partition partition_equally(int units, int stages) {
  detail::require_enough_units(units, stages);
  if (units % stages != 0)
    detail::refuse_units(units, stages,
                         "they do not divide; " + std::to_string(units - units % stages) + " or " +
                             std::to_string(units - units % stages + stages) +
                             " units would, and an automatic partition makes stages that differ by one");
  Partition result{Table<int>(stages + 1)};
  for (int stage = 0; stage <= stages; ++stage) result.first[stage] = stage * (units / stages);
  return result;
}

/// One line of partition_by_type: units of this type, or with this name, go to this stage.
struct StageOfType {
  std::string_view type;  ///< or the name of one unit
  int stage;              ///< where it goes
};

/// By hand, by type: each unit goes to the stage of the last line that names its type or its own name, else to
/// `default_stage`.
/// @throws ConfigError if stages would not follow one another in the order of the units, or one would be empty
[[nodiscard]] constexpr Partition partition_by_type(const Table<PartitionNode>& units, int stages,
                                                    const Table<StageOfType>& lines, int default_stage = 0) {
  detail::require_enough_units(units.size(), stages);
  Table<int> first(stages, -1);
  for (int i = 0, before = 0; i < units.size(); ++i) {
    int stage = default_stage;
    for (const StageOfType& line : lines)
      if (line.type == units[i].type || line.type == units[i].name) stage = line.stage;
    if (stage < before || stage > before + 1 || stage >= stages || (i == 0 && stage != 0))
      detail::refuse_units(units.size(), stages,
                           "unit " + std::to_string(i) + " (" + std::string(units[i].name) + ") is given stage " +
                               std::to_string(stage) + " behind stage " + std::to_string(before));
    if (first[stage] < 0) first[stage] = i;
    before = stage;
  }
  if (first[stages - 1] < 0)
    detail::refuse_units(units.size(), stages, "stage " + std::to_string(stages - 1) + " would hold no unit");
  return partition_at(first, units.size());
}

/// The units that a rank runs, chunk by chunk. `stage_rank[s]` is the rank that holds stage s
/// (PipelinePlan::stage_rank).
[[nodiscard]] constexpr Table<int> units_of_rank(const Partition& partition, const Table<int>& stage_rank, int rank) {
  Table<int> units;
  for (int stage = 0; stage < partition.stages(); ++stage)
    if (stage_rank[stage] == rank)
      for (int unit = partition.first[stage]; unit < partition.first[stage + 1]; ++unit) units.append(unit);
  return units;
}

/// partition_equally for numbers that the compiler knows.
template <int Units, int Ranks, int Chunks = 1>
struct EqualPartition {
  static_assert(Ranks >= 1 && Chunks >= 1 && Units >= Ranks * Chunks,
                "smp::EqualPartition: every chunk of every rank needs at least one unit");
  static_assert(Units % (Ranks * Chunks) == 0,
                "smp::EqualPartition: the units do not divide by ranks times chunks; change one of them, or write "
                "smp::partition_by_cost(...), whose stages differ by one unit");
  /// How many units each chunk holds.
  static constexpr int units_per_chunk = Units / (Ranks * Chunks);
};

}  // namespace smp
