// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank holds and sends in a training step: the numbers that a plan foretells and counters find.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <smp/topology.hpp>

namespace smp {

/// A rank's place in each of its groups, and how large these are.
struct GroupPlaces {
  std::array<int, all_groups.size()> rank{};                         ///< by kind
  std::array<int, all_groups.size()> ranks{1, 1, 1, 1, 1, 1, 1, 1};  ///< by kind

  /// Of a rank of a job.
  template <class Topo>
  [[nodiscard]] static constexpr GroupPlaces of(const Topo& topology, int rank) {
    GroupPlaces places;
    for (const Group kind : all_groups) {
      const auto k = static_cast<std::size_t>(kind);
      places.rank[k] = topology.rank_in(kind, rank);
      places.ranks[k] = topology.group_size(kind);
    }
    return places;
  }
  /// Its place in a group.
  [[nodiscard]] constexpr std::size_t rank_in(Group kind) const {
    return static_cast<std::size_t>(rank[static_cast<std::size_t>(kind)]);
  }
  /// Members of a group.
  [[nodiscard]] constexpr std::size_t size(Group kind) const {
    return static_cast<std::size_t>(ranks[static_cast<std::size_t>(kind)]);
  }
};

/// Elements of piece `rank` when `elements` are cut for `ranks`, each ceil(elements / ranks) but for the last ones.
[[nodiscard]] constexpr std::size_t piece_size(std::size_t elements, std::size_t rank, std::size_t ranks) noexcept {
  const std::size_t piece = (elements + ranks - 1) / ranks;
  return std::min(elements, (rank + 1) * piece) - std::min(elements, rank * piece);
}

/// What data-parallel strategies call.
enum class Collective : unsigned char { all_gather, reduce_scatter, all_reduce };

/// "all_gather", ...
[[nodiscard]] constexpr std::string_view to_string(Collective c) noexcept {
  constexpr std::array<std::string_view, 3> names{"all_gather", "reduce_scatter", "all_reduce"};
  return names[static_cast<std::size_t>(c)];
}

/// What a rank sends in one group by one kind of call, in a step.
struct GroupTraffic {
  Group group = Group::world;                      ///< which
  Collective collective = Collective::all_reduce;  ///< what is called
  std::uint64_t calls = 0;                         ///< how often
  std::uint64_t bytes = 0;  ///< sent by this rank, by an algorithm that sends as little as it can
  friend constexpr bool operator==(const GroupTraffic&, const GroupTraffic&) = default;
};

/// What a rank holds all the time, in bytes, and sends in a step. What the norm of the gradient needs, some numbers a
/// step, is left out.
struct RankPlan {
  std::size_t parameter = 0;            ///< values that it owns
  std::size_t gradient = 0;             ///< gradients that it keeps up to the update
  std::size_t optimizer = 0;            ///< states of the optimizer
  std::size_t buffer = 0;               ///< gathered values, gradients that are not reduced yet, messages
  std::vector<GroupTraffic> traffic{};  ///< by group and call

  /// What is sent in a group by a kind of call.
  [[nodiscard]] constexpr GroupTraffic sent(Group group, Collective collective) const {
    for (const GroupTraffic& t : traffic) {
      if (t.group == group && t.collective == collective) return t;
    }
    return {group, collective, 0, 0};
  }
  /// All bytes that are sent.
  [[nodiscard]] constexpr std::uint64_t sent() const {
    std::uint64_t total = 0;
    for (const GroupTraffic& t : traffic) total += t.bytes;
    return total;
  }
  /// Adds calls.
  constexpr void add(Group group, Collective collective, std::uint64_t calls, std::uint64_t bytes) {
    for (GroupTraffic& t : traffic) {
      if (t.group != group || t.collective != collective) continue;
      t.calls += calls;
      t.bytes += bytes;
      return;
    }
    traffic.push_back({group, collective, calls, bytes});
  }
  /// Adds an all-reduce of `bytes` in elements of `element_bytes`: what others reduce goes out, and what is reduced
  /// here goes to the others; 2(n-1)/n of the buffer. Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for
  /// clusters of workstations, 2009.
  constexpr void add_all_reduce(const GroupPlaces& places, Group group, std::size_t elements, std::size_t element_bytes,
                                std::uint64_t calls = 1) {
    const std::size_t n = places.size(group), own = piece_size(elements, places.rank_in(group), n);
    add(group, Collective::all_reduce, calls, calls * element_bytes * (elements - own + (n - 1) * own));
  }
};

}  // namespace smp
