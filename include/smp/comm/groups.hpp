// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A communicator for each kind of group of a topology, all made at once, in an order that every rank shares.

#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/topology.hpp>

namespace smp::comm {

/// The groups that one rank is in.
template <Communicator C>
class Groups {
 public:
  /// Cuts `world` as `topology` says: all kinds, in the order of `all_groups`, whether they will be used or not. The
  /// order depends on nothing else, so no two ranks can meet in the making of different groups.
  /// @throws ConfigError if `world` does not have the size of the topology
  template <class Topo>
  Groups(C& world, const Topo& topology) {
    if (world.size() != topology.world_size()) {
      throw ConfigError("the topology is for " + std::to_string(topology.world_size()) + " ranks, but the world has " +
                        std::to_string(world.size()));
    }
    parts_.reserve(all_groups.size());
    for (const Group kind : all_groups) parts_.push_back(make(world, topology, kind));
    beside_.reserve(2);
    for (const Group kind : {Group::rdp, Group::dp}) beside_.push_back(make(world, topology, kind));
  }

  /// The group of this kind that this rank is in.
  [[nodiscard]] C& operator[](Group kind) noexcept { return parts_[static_cast<std::size_t>(kind)]; }
  /// The same ranks as the RDP or the DP group for what runs beside the computation: two streams share no communicator.
  [[nodiscard]] C& beside(Group kind) noexcept { return beside_[kind == Group::rdp ? 0 : 1]; }

 private:
  template <class Topo>
  static C make(C& world, const Topo& topology, Group kind) {
    std::string name(to_string(kind));
    if constexpr (requires { world.part(std::vector<int>(), name); }) {
      const auto ranks = topology.group(kind, world.rank());
      return world.part(std::vector<int>(ranks.begin(), ranks.end()), std::move(name));
    } else {
      return world.split(topology.group_index(kind, world.rank()), topology.rank_in(kind, world.rank()),
                         std::move(name));
    }
  }

  std::vector<C> parts_;
  std::vector<C> beside_;
};

}  // namespace smp::comm
