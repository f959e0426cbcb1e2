// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Partitions as text: printed for people, saved and loaded for the next run.

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <smp/pipeline/partition.hpp>

namespace smp {

/// "Partition assignments:" and a line for each stage: its units, its share of all costs, and the names of the units.
[[nodiscard]] inline std::string to_string(const Partition& partition, const Table<PartitionNode>& units,
                                           const PartitionOptions& options = {}) {
  const Table<double> costs = unit_costs(units, options);
  double total = 0;
  for (const double cost : costs) total += cost;
  std::string text = "Partition assignments:\n";
  for (int stage = 0; stage < partition.stages(); ++stage) {
    double cost = 0;
    std::string names;
    for (int unit = partition.first[stage]; unit < partition.first[stage + 1]; ++unit) {
      cost += costs[unit];
      names += (names.empty() ? "" : " ") + std::string(units[unit].name);
    }
    char share[16];
    std::snprintf(share, sizeof share, "%.1f %%", 100 * cost / total);
    text += "stage " + std::to_string(stage) + "\t" + std::to_string(partition.size(stage)) +
            (partition.size(stage) == 1 ? " unit\t" : " units\t") + share + "\t" + names + "\n";
  }
  return text;
}

/// Writes `partition` to a file that load_partition reads.
/// @throws ConfigError if the file cannot be written
inline void save_partition(const std::string& path, const Partition& partition, const Table<PartitionNode>& units) {
  std::ofstream file(path);
  file << "smp partition 1\nstages " << partition.stages() << "\nunits " << partition.units() << '\n';
  for (int unit = 0; unit < partition.units(); ++unit)
    file << partition.stage_of(unit) << '\t' << units[unit].name << '\n';
  if (!file.flush()) throw ConfigError("cannot write the partition file '" + path + "'");
}

/// Reads what save_partition wrote, for a model with the same units.
/// @throws ConfigError naming the line that is wrong, or the unit that has another name
[[nodiscard]] inline Partition load_partition(const std::string& path, const Table<PartitionNode>& units) {
  std::ifstream file(path);
  if (!file) throw ConfigError("cannot read the partition file '" + path + "'");
  int line_number = 0;
  const auto refuse = [&](const std::string& expected) {
    throw ConfigError("partition file '" + path + "', line " + std::to_string(line_number) + ": expected " + expected);
  };
  const auto next_line = [&](const std::string& expected) {
    std::string line;
    ++line_number;
    if (!std::getline(file, line)) refuse(expected + "; found the end of the file");
    return line;
  };
  const auto number_behind = [&](const std::string& word) {
    const std::string expected = "'" + word + "' and a positive number";
    std::istringstream line(next_line(expected));
    std::string found, rest;
    int value = 0;
    if (!(line >> found >> value) || found != word || value < 1 || line >> rest) refuse(expected);
    return value;
  };
  if (next_line("'smp partition 1'") != "smp partition 1") refuse("'smp partition 1'");
  const int stages = number_behind("stages");
  if (number_behind("units") != units.size()) refuse("the " + std::to_string(units.size()) + " units of this model");
  Table<int> first;
  for (int unit = 0; unit < units.size(); ++unit) {
    const std::string name(units[unit].name), expected = "a stage, a tab and '" + name + "'";
    const std::string line = next_line(expected);
    const int stage = first.size() - 1;
    if (line == std::to_string(stage + 1) + "\t" + name)
      first.append(unit);
    else if (unit == 0 || line != std::to_string(stage) + "\t" + name)
      refuse(expected + ", the stage being that of the unit before or the next; found '" + line + "'");
  }
  if (first.size() != stages) refuse(std::to_string(stages) + " stages; found " + std::to_string(first.size()));
  return partition_at(first, units.size());
}

}  // namespace smp
