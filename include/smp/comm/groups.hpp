// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A communicator for each kind of group of a topology, all made at once, in an order that every rank shares.

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/topology.hpp>

namespace smp::comm {

/// What a stream beside the computation does: reduces gradients, sums what has been reduced over the replicas, or
/// gathers parameters ahead of their use.
enum class Lane : unsigned char { reduce, replicate, gather };

/// Who communicates beside the computation, and in which groups.
inline constexpr std::array<std::pair<Lane, Group>, 8> lane_groups{{{Lane::reduce, Group::rdp},
                                                                    {Lane::reduce, Group::dp},
                                                                    {Lane::reduce, Group::shard},
                                                                    {Lane::replicate, Group::tp},
                                                                    {Lane::replicate, Group::replica},
                                                                    {Lane::gather, Group::rdp},
                                                                    {Lane::gather, Group::dp},
                                                                    {Lane::gather, Group::shard}}};

/// The groups that one rank is in.
template <Communicator C>
class Groups {
 public:
  /// Cuts `world` as `topology` says: all kinds, in the order of `all_groups`, whether they will be used or not. The
  /// order depends on nothing else, so no two ranks can meet in the making of different groups.
  /// @throws ConfigError if `world` does not have the size of the topology
  template <class Topo>
  Groups(C& world, const Topo& topology) : maker_(std::make_unique<MakerOf<Topo>>(world, topology)) {
    if (world.size() != topology.world_size()) {
      throw ConfigError("the topology is for " + std::to_string(topology.world_size()) + " ranks, but the world has " +
                        std::to_string(world.size()));
    }
    parts_.reserve(all_groups.size());
    for (const Group kind : all_groups) parts_.push_back(maker_->make(kind));
  }

  /// The group of this kind that this rank is in.
  [[nodiscard]] C& operator[](Group kind) noexcept { return parts_[static_cast<std::size_t>(kind)]; }
  /// The same ranks as `(*this)[kind]` for a stream beside the computation: two streams share no communicator.
  /// Two models that are trained by turns share them: they use `stream(lane)`, so that messages of both are in one
  /// order.
  /// Made when it is first asked for, which all ranks do in one order: strategies ask when they are constructed.
  /// @pre `lane_groups` has the pair
  [[nodiscard]] C& beside(Lane lane, Group kind) {
    const auto place = std::find(lane_groups.begin(), lane_groups.end(), std::pair(lane, kind)) - lane_groups.begin();
    std::optional<C>& communicator = lanes_[static_cast<std::size_t>(place)];
    if (!communicator) communicator.emplace(maker_->make(kind));
    return *communicator;
  }

  /// The stream that communicates beside the computation in a lane; begins when it is asked for.
  [[nodiscard]] HostStream& stream(Lane lane) {
    auto& stream = streams_[static_cast<std::size_t>(lane)];
    if (stream == nullptr) stream = std::make_unique<HostStream>(HostStream::Mode::worker);
    return *stream;
  }

 private:
  // Cuts the world again, whatever the type of the topology.
  struct Maker {
    Maker() = default;
    Maker(const Maker&) = delete;
    Maker& operator=(const Maker&) = delete;
    virtual ~Maker() = default;
    virtual C make(Group kind) = 0;
  };
  template <class Topo>
  struct MakerOf final : Maker {
    MakerOf(const C& w, const Topo& t) : world(w), topology(t) {}
    C make(Group kind) override {
      std::string name(to_string(kind));
      if constexpr (requires { world.part(std::vector<int>(), name); }) {
        const auto ranks = topology.group(kind, world.rank());
        return world.part(std::vector<int>(ranks.begin(), ranks.end()), std::move(name));
      } else {
        return world.split(topology.group_index(kind, world.rank()), topology.rank_in(kind, world.rank()),
                           std::move(name));
      }
    }
    C world;
    Topo topology;
  };

  std::unique_ptr<Maker> maker_;
  std::vector<C> parts_;
  std::array<std::optional<C>, lane_groups.size()> lanes_;
  std::array<std::unique_ptr<HostStream>, 3> streams_;  // by lane; end before what they communicate with
};

}  // namespace smp::comm
