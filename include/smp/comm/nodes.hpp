// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which ranks of a group share a node, as far as its communicator knows.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/comm/node_layout.hpp>

namespace smp::comm {

/// Where every rank of the group of `c` is: what the transport says, or all on one node if it says nothing, as thread
/// ranks are. Collective.
template <Communicator C>
[[nodiscard]] NodeLayout node_layout(C& c) {
  if constexpr (requires { c.node_layout(); }) {
    return c.node_layout();
  } else if constexpr (requires { c.inner(); }) {
    return node_layout(c.inner());
  } else {
    return nodes_by_number(std::vector<int>(static_cast<std::size_t>(c.size()), 0));
  }
}

/// The layout of `part`, a part of the group `whole` whose layout is known.
[[nodiscard]] inline NodeLayout nodes_of_part(const NodeLayout& layout, const Membership& whole,
                                              const Membership& part) {
  std::vector<int> members;
  for (const int rank : part.world_ranks) {
    const auto place = std::find(whole.world_ranks.begin(), whole.world_ranks.end(), rank);
    members.push_back(static_cast<int>(place - whole.world_ranks.begin()));
  }
  return nodes_of_group(layout, members);
}

}  // namespace smp::comm
