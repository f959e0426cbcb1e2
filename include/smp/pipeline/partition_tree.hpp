// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The reference's recursive partition: modules stay whole as far as the number of stages lets them.
/// `partition_by_cost` cuts between any two units and balances at least as well; this one is for models whose modules
/// should not be torn.

#include <smp/pipeline/partition.hpp>

namespace smp {

/// Hands `seats` to parts by D'Hondt: one each, then each further one to the largest cost / (seats + 1) with room left.
/// @pre parts <= seats <= the sum of `room`
[[nodiscard]] constexpr Table<int> share_seats(const Table<double>& costs, const Table<int>& room, int seats) {
  Table<int> shares(costs.size(), 1);
  for (int given = costs.size(); given < seats; ++given) {
    int best = -1;
    for (int i = 0; i < costs.size(); ++i)
      if (shares[i] < room[i] && (best < 0 || costs[i] * (shares[best] + 1) > costs[best] * (shares[i] + 1))) best = i;
    ++shares[best];
  }
  return shares;
}

namespace detail {

/// A module of the tree with the sums over its units, which are `first` to `first + units`.
struct WeighedNode {
  const PartitionNode* node = nullptr;
  double cost = 0;
  int first = 0, units = 0;
};

[[nodiscard]] constexpr WeighedNode weigh(const PartitionNode& node, const Table<double>& costs, int first) {
  WeighedNode weighed{&node, 0, first, 0};
  if (node.children.empty()) return {&node, costs[first], first, 1};
  for (const PartitionNode& child : node.children) {
    const WeighedNode part = weigh(child, costs, first + weighed.units);
    weighed.cost += part.cost;
    weighed.units += part.units;
  }
  return weighed;
}

/// Gives the modules `row` the stages from `stage` on, `seats` of them, and notes where each stage begins.
constexpr void seat(const Table<WeighedNode>& row, int stage, int seats, const Table<double>& costs,
                    Partition& result) {
  result.first[stage] = row[0].first;
  if (seats == 1) return;
  if (row.size() == 1) {
    Table<WeighedNode> children;
    int first = row[0].first;
    for (const PartitionNode& child : row[0].node->children) {
      children.append(weigh(child, costs, first));
      first += children[children.size() - 1].units;
    }
    return seat(children, stage, seats, costs, result);
  }
  // First how many stages each segment has, then which: numbers handed out in D'Hondt's order would not be monotone.
  Table<double> row_costs;
  for (const WeighedNode& module : row) row_costs.append(module.cost);
  const Partition segments = cut_evenly(row_costs, seats < row.size() ? seats : row.size());
  Table<Table<WeighedNode>> parts(segments.stages());
  Table<double> part_costs(segments.stages());
  Table<int> room(segments.stages());
  for (int i = 0; i < row.size(); ++i) {
    const int part = segments.stage_of(i);
    parts[part].append(row[i]);
    part_costs[part] += row[i].cost;
    room[part] += row[i].units;
  }
  const Table<int> shares = share_seats(part_costs, room, seats);
  for (int part = 0; part < parts.size(); stage += shares[part++])
    seat(parts[part], stage, shares[part], costs, result);
}

}  // namespace detail

/// Cuts the children of each module into segments with the least maximum, gives each segment stages in proportion to
/// its cost, and goes on inside segments with several (Alg. 1 to 3 of the reference's paper; every stage gets a unit).
/// @throws ConfigError if there are fewer units than stages
[[nodiscard]] constexpr Partition partition_by_modules(const PartitionNode& root, int stages,
                                                       const PartitionOptions& options = {}) {
  const Table<PartitionNode> units = flatten(root);
  detail::require_enough_units(units.size(), stages);
  const Table<double> costs = unit_costs(units, options);
  Partition result{Table<int>(stages + 1)};
  result.first[stages] = units.size();
  Table<detail::WeighedNode> row;
  row.append(detail::weigh(root, costs, 0));
  detail::seat(row, 0, stages, costs, result);
  return result;
}

}  // namespace smp
