// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which ranks share a node, and what number each has there.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/error.hpp>

namespace smp::comm {

/// Where every rank of the world is.
struct NodeLayout {
  std::vector<int> node;                ///< of each rank; nodes count from 0, in order of their lowest ranks
  std::vector<int> local_rank;          ///< of each rank: 0 to n-1, each once, on a node of n ranks
  std::vector<std::vector<int>> ranks;  ///< of each node, by local rank

  /// How many nodes there are.
  [[nodiscard]] int nodes() const noexcept { return static_cast<int>(ranks.size()); }
  /// How many ranks are on the node of `rank`.
  [[nodiscard]] int local_size(int rank) const {
    return static_cast<int>(ranks[static_cast<std::size_t>(node[static_cast<std::size_t>(rank)])].size());
  }
};

namespace detail {

// Local ranks as the order of the ranks on each node says.
inline void number_local_ranks(NodeLayout& layout) {
  for (const std::vector<int>& ranks : layout.ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      layout.local_rank[static_cast<std::size_t>(ranks[i])] = static_cast<int>(i);
    }
  }
}

}  // namespace detail

/// The layout in which rank `r` is on node `node[r]`: any numbers, equal for ranks that share a node. Local ranks
/// follow the order of ranks.
[[nodiscard]] inline NodeLayout nodes_by_number(std::span<const int> node) {
  NodeLayout layout{.node = std::vector<int>(node.size()), .local_rank = std::vector<int>(node.size()), .ranks = {}};
  std::vector<int> known;  // the number of each node
  for (std::size_t rank = 0; rank < node.size(); ++rank) {
    const auto place = static_cast<std::size_t>(std::find(known.begin(), known.end(), node[rank]) - known.begin());
    if (place == known.size()) {
      known.push_back(node[rank]);
      layout.ranks.emplace_back();
    }
    layout.node[rank] = static_cast<int>(place);
    layout.ranks[place].push_back(static_cast<int>(rank));
  }
  detail::number_local_ranks(layout);
  return layout;
}

/// The layout of a group: its rank `i` is rank `members[i]` of `whole`. Nodes are counted anew; the order of the ranks
/// on a node stays.
/// @throws ConfigError if `whole` has no such rank
[[nodiscard]] inline NodeLayout nodes_of_group(const NodeLayout& whole, std::span<const int> members) {
  std::vector<int> node;
  for (const int rank : members) {
    if (rank < 0 || std::cmp_greater_equal(rank, whole.node.size())) {
      throw ConfigError("the node layout is of " + std::to_string(whole.node.size()) +
                        " ranks, but the group has a rank " + std::to_string(rank));
    }
    node.push_back(whole.node[static_cast<std::size_t>(rank)]);
  }
  NodeLayout part = nodes_by_number(node);
  const auto local = [&](int i) {
    return whole.local_rank[static_cast<std::size_t>(members[static_cast<std::size_t>(i)])];
  };
  for (std::vector<int>& ranks : part.ranks) {
    std::sort(ranks.begin(), ranks.end(), [&](int a, int b) { return local(a) < local(b); });
  }
  detail::number_local_ranks(part);
  return part;
}

}  // namespace smp::comm
