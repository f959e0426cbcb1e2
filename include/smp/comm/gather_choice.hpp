// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which way a gather of parameters takes, and why: the options, the rules, and a count of what was chosen. No
/// communication here: plans and reports ask the same rules.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/node_layout.hpp>
#include <smp/error.hpp>

namespace smp::comm {

/// The ways of a gather.
enum class GatherBackend : unsigned char {
  automatic,     ///< hierarchical where it carries less between nodes, else flat
  flat,          ///< the transport's own
  hierarchical,  ///< between nodes first, then on each node
  one_hop,       ///< every rank sends to every other directly
};

/// Number of back ends.
inline constexpr std::size_t gather_backends = 4;

/// The name of a back end.
[[nodiscard]] constexpr const char* name(GatherBackend b) noexcept {
  constexpr const char* names[gather_backends] = {"automatic", "flat", "hierarchical", "one-hop"};
  return names[static_cast<std::size_t>(b)];
}

/// How parameters are gathered; equal on all ranks of a group.
///
/// The two sizes are those of the reference's all-gather, with its rules: a gather for which a buffer is too small is
/// flat, and reported. Here no such buffers exist: pieces go straight to their places. They bound what a rank has under
/// way between nodes at a time, and are memory for nobody.
struct GatherOptions {
  GatherBackend backend = GatherBackend::automatic;   ///< which way, where the sizes allow it
  bool hierarchical = true;                           ///< whether `automatic` may choose that
  std::size_t scratch_bytes = std::size_t{16} << 20;  ///< largest piece of one rank; a multiple of 8192
  std::size_t sort_bytes = std::size_t{128} << 20;    ///< most that a rank collects for its node; likewise
  int ranks_per_node = 0;  ///< so many consecutive ranks of the world share a node; 0: what the communicator knows
  NodeLayout nodes{};      ///< of the world, instead; empty: what the communicator knows
};

/// What sizes of buffers are multiples of.
inline constexpr std::size_t gather_buffer_unit = 8192;

/// @throws ConfigError naming the option, if one has a value that cannot work
inline void check(const GatherOptions& options) {
  using Size = std::pair<const char*, std::size_t>;
  for (const auto& [option, bytes] :
       {Size("scratch_bytes", options.scratch_bytes), Size("sort_bytes", options.sort_bytes)}) {
    if (bytes % gather_buffer_unit != 0) {
      throw ConfigError("the gather option " + std::string(option) + " is " + std::to_string(bytes) +
                        ", but must be a multiple of " + std::to_string(gather_buffer_unit));
    }
  }
  if (options.ranks_per_node < 0) {
    throw ConfigError("the gather option ranks_per_node is " + std::to_string(options.ranks_per_node) +
                      ", but must be at least 1, or 0 for what the communicator knows");
  }
  if (options.ranks_per_node != 0 && !options.nodes.node.empty()) {
    throw ConfigError("the gather options ranks_per_node and nodes both say who shares a node; give one of them");
  }
}

/// What the rules ask about a group.
struct GroupOnNodes {
  int ranks = 1;     ///< of the group
  int nodes = 1;     ///< that they are on
  int smallest = 1;  ///< ranks on the node that has fewest

  /// Of a layout.
  [[nodiscard]] static GroupOnNodes of(const NodeLayout& layout) {
    GroupOnNodes group{static_cast<int>(layout.node.size()), layout.nodes(), static_cast<int>(layout.node.size())};
    for (const auto& ranks : layout.ranks) group.smallest = std::min(group.smallest, static_cast<int>(ranks.size()));
    return group;
  }
  /// The most that one rank of a node collects of a gather, in bytes, if `piece` are those of one rank.
  [[nodiscard]] constexpr std::size_t collected(std::size_t piece) const noexcept {
    const auto per_node = static_cast<std::size_t>(smallest);
    return (static_cast<std::size_t>(ranks) * piece + per_node - 1) / per_node;
  }
};

/// Why a gather takes the way it takes.
enum class GatherReason : unsigned char {
  asked_for,          ///< the option says so
  several_nodes,      ///< hierarchical, chosen for several nodes with several ranks
  one_node,           ///< flat: nothing crosses nodes
  one_rank_per_node,  ///< flat: no node has two ranks
  switched_off,       ///< flat: `hierarchical` is false
  scratch_too_small,  ///< flat: the piece of one rank is larger than `scratch_bytes`
  sort_too_small,     ///< flat: a rank collects more than `sort_bytes`
};

/// Number of reasons.
inline constexpr std::size_t gather_reasons = 7;

/// A way, and why.
struct GatherChoice {
  GatherBackend backend = GatherBackend::flat;   ///< never `automatic`
  GatherReason reason = GatherReason::one_node;  ///< why this one
  friend bool operator==(const GatherChoice&, const GatherChoice&) = default;
};

/// The way of a gather in which each rank has `piece` bytes (at most, if they differ).
[[nodiscard]] constexpr GatherChoice choose_gather(const GatherOptions& options, const GroupOnNodes& group,
                                                   std::size_t piece) {
  using enum GatherBackend;
  using enum GatherReason;
  const bool chosen = options.backend == automatic;
  if (options.backend == flat) return {flat, asked_for};
  if (options.backend == one_hop) {
    if (group.ranks == 1) return {flat, one_node};
  } else {
    if (group.nodes == 1) return {flat, one_node};
    if (group.nodes == group.ranks) return {flat, one_rank_per_node};
    if (chosen && !options.hierarchical) return {flat, switched_off};
  }
  if (piece > options.scratch_bytes) return {flat, scratch_too_small};
  if (group.collected(piece) > options.sort_bytes) return {flat, sort_too_small};
  return {chosen ? hierarchical : options.backend, chosen ? several_nodes : asked_for};
}

/// "flat: the piece of a rank, 1048576 bytes, is larger than scratch_bytes, 8192"
[[nodiscard]] inline std::string describe(const GatherChoice& choice, const GatherOptions& options,
                                          const GroupOnNodes& group, std::size_t piece) {
  const auto why = [&]() -> std::string {
    switch (choice.reason) {
      case GatherReason::asked_for:
        return "asked for";
      case GatherReason::several_nodes:
        return std::to_string(group.ranks) + " ranks on " + std::to_string(group.nodes) + " nodes";
      case GatherReason::one_node:
        return "the ranks are on one node";
      case GatherReason::one_rank_per_node:
        return "no two ranks share a node";
      case GatherReason::switched_off:
        return "hierarchical gathers are switched off";
      case GatherReason::scratch_too_small:
        return "the piece of a rank, " + std::to_string(piece) + " bytes, is larger than scratch_bytes, " +
               std::to_string(options.scratch_bytes);
      case GatherReason::sort_too_small:
        return "a rank collects " + std::to_string(group.collected(piece)) +
               " bytes for its node, which is more than sort_bytes, " + std::to_string(options.sort_bytes);
    }
    return {};
  };
  return std::string(name(choice.backend)) + ": " + why();
}

/// What was chosen for the gathers of one group, and how often. Several streams may count and read at the same time.
class GatherReport {
 public:
  /// For the group called `name`.
  GatherReport(std::string name, GatherOptions options, GroupOnNodes group)
      : name_(std::move(name)), options_(std::move(options)), group_(group) {}

  /// One choice that was made.
  struct Row {
    GatherChoice choice;    ///< what, and why
    std::uint64_t gathers;  ///< how often
    std::size_t largest;    ///< largest piece of a rank, in bytes
  };

  /// What a gather takes in which each rank has `piece` bytes.
  [[nodiscard]] GatherChoice choose(std::size_t piece) const noexcept { return choose_gather(options_, group_, piece); }
  /// The same, with a count.
  GatherChoice count(std::size_t piece) noexcept {
    const GatherChoice choice = choose(piece);
    Cell& cell = cells_[index(choice)];
    cell.gathers.fetch_add(1, std::memory_order_relaxed);
    std::size_t largest = cell.largest.load(std::memory_order_relaxed);
    while (largest < piece && !cell.largest.compare_exchange_weak(largest, piece, std::memory_order_relaxed)) {
    }
    return choice;
  }

  /// The options.
  [[nodiscard]] const GatherOptions& options() const noexcept { return options_; }
  /// The group as the rules see it.
  [[nodiscard]] const GroupOnNodes& group() const noexcept { return group_; }

  /// What was chosen so far.
  [[nodiscard]] std::vector<Row> rows() const {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const std::uint64_t gathers = cells_[i].gathers.load(std::memory_order_relaxed);
      if (gathers == 0) continue;
      rows.push_back({{static_cast<GatherBackend>(i / gather_reasons), static_cast<GatherReason>(i % gather_reasons)},
                      gathers,
                      cells_[i].largest.load(std::memory_order_relaxed)});
    }
    return rows;
  }

  /// A line for each choice: "SHARD: 12 gathers flat: the piece of a rank, 1048576 bytes, is larger than ..."
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const Row& row : rows()) {
      lines.push_back(name_ + ": " + std::to_string(row.gathers) + (row.gathers == 1 ? " gather " : " gathers ") +
                      describe(row.choice, options_, group_, row.largest));
    }
    return lines;
  }

 private:
  struct Cell {
    std::atomic<std::uint64_t> gathers{0};
    std::atomic<std::size_t> largest{0};
  };
  static constexpr std::size_t index(const GatherChoice& choice) noexcept {
    return static_cast<std::size_t>(choice.backend) * gather_reasons + static_cast<std::size_t>(choice.reason);
  }

  std::string name_;
  GatherOptions options_;
  GroupOnNodes group_;
  std::array<Cell, gather_backends * gather_reasons> cells_{};
};

}  // namespace smp::comm
