// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The layout of nodes, and the device of a rank, from what the ranks report (host names, shared memory, launcher
/// variables). Pure functions, so that every rank computes the same answer from the same reports; reading the
/// environment, asking MPI and gathering the reports is the caller's part. No MPI, no CUDA. Not in smp.hpp: the headers
/// of MPI include it.
///
/// No single source is right everywhere. A launcher's variable is missing under another launcher, and a batch system's
/// is inherited by all ranks of an `mpirun` inside of its job, all with the same value; a shared-memory split comes
/// back with one rank if each rank is in its own cgroup or IPC namespace; containers on one machine have host names of
/// their own. So ranks are on one node if host name *or* shared memory says so, and a launcher's numbers are used for
/// the order on a node only where they are a numbering of it.

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <smp/comm/node_layout.hpp>
#include <smp/error.hpp>

namespace smp::comm {

/// What `std::getenv` does: the value of a variable, or null if it is not set.
template <class F>
concept EnvironmentLookup = requires(const F& lookup, const char* name) {
  { lookup(name) } -> std::convertible_to<const char*>;
};

/// Where launchers tell a process its number on the node. Batch systems come last: an `mpirun` inside of a job inherits
/// their variables. The node's size is not asked for: some launchers report it wrongly.
inline constexpr std::array local_rank_variables{
    "OMPI_COMM_WORLD_LOCAL_RANK",  // Open MPI
    "MPI_LOCALRANKID",             // Hydra: MPICH, Intel MPI
    "MV2_COMM_WORLD_LOCAL_RANK",   // MVAPICH2
    "PALS_LOCAL_RANKID",           // HPE PALS
    "PMI_LOCAL_RANK",              // Cray PMI
    "FLUX_TASK_LOCAL_ID",          // Flux
    "SLURM_LOCALID",               // Slurm
};

/// The local rank that the launcher gave this process, if any. To choose a device before MPI is initialised; after that
/// `node_layout` knows better.
/// @throws ConfigError naming variable and value, if it is not a non-negative integer
template <EnvironmentLookup F>
[[nodiscard]] std::optional<int> launcher_local_rank(const F& lookup) {
  for (const char* variable : local_rank_variables) {
    const char* text = lookup(variable);
    if (text == nullptr) continue;
    const std::string_view digits(text);
    unsigned value = 0;  // unsigned, so that a sign is refused
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || !std::in_range<int>(value)) {
      throw ConfigError("the environment variable " + std::string(variable) + " is \"" + std::string(digits) +
                        "\", but must be the number of this process on its node: 0, 1, 2, ...");
    }
    return static_cast<int>(value);
  }
  return std::nullopt;
}

/// What one rank says about the place it is in.
struct NodeReport {
  std::string host;             ///< for example from `MPI_Get_processor_name`
  int shared_memory_first = 0;  ///< lowest rank it shares memory with (`MPI_COMM_TYPE_SHARED`); itself, if none
  std::optional<int> launcher_local_rank;  ///< what the function of this name found
};

namespace detail {

// Ranks on one node, by local rank, from their world ranks in ascending order.
inline void order_by_launcher(std::vector<int>& ranks, std::span<const NodeReport> reports) {
  std::vector<int> ordered(ranks.size(), -1);
  for (const int rank : ranks) {
    const std::optional<int>& place = reports[static_cast<std::size_t>(rank)].launcher_local_rank;
    if (!place || std::cmp_greater_equal(*place, ranks.size())) return;
    int& slot = ordered[static_cast<std::size_t>(*place)];
    if (slot != -1) return;
    slot = rank;
  }
  ranks = std::move(ordered);
}

}  // namespace detail

/// The layout that the reports of all ranks, in rank order, add up to. Local ranks follow the launcher's numbers on
/// nodes where these are 0 to n-1, and the order of ranks on all others.
/// @throws ConfigError if a report names a `shared_memory_first` above its own rank or below 0
[[nodiscard]] inline NodeLayout node_layout(std::span<const NodeReport> reports) {
  const std::size_t world = reports.size();
  // Each rank points at a lower rank on its node, or at itself.
  std::vector<std::size_t> lower(world);
  std::iota(lower.begin(), lower.end(), std::size_t{0});
  const auto lowest = [&](std::size_t rank) {
    while (lower[rank] != rank) rank = lower[rank] = lower[lower[rank]];
    return rank;
  };
  const auto join = [&](std::size_t a, std::size_t b) {
    const auto [low, high] = std::minmax({lowest(a), lowest(b)});
    lower[high] = low;
  };
  std::map<std::string_view, std::size_t> first_on_host;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const NodeReport& report = reports[rank];
    if (report.shared_memory_first < 0 || std::cmp_greater(report.shared_memory_first, rank)) {
      throw ConfigError("rank " + std::to_string(rank) + " reports rank " + std::to_string(report.shared_memory_first) +
                        " as the lowest it shares memory with, but that must be between 0 and itself");
    }
    join(rank, static_cast<std::size_t>(report.shared_memory_first));
    join(rank, first_on_host.try_emplace(report.host, rank).first->second);
  }

  NodeLayout layout{.node = std::vector<int>(world), .local_rank = std::vector<int>(world), .ranks = {}};
  for (std::size_t rank = 0; rank < world; ++rank) {
    const std::size_t low = lowest(rank);
    layout.node[rank] = low == rank ? layout.nodes() : layout.node[low];
    if (low == rank) layout.ranks.emplace_back();
    layout.ranks[static_cast<std::size_t>(layout.node[rank])].push_back(static_cast<int>(rank));
  }
  for (std::vector<int>& ranks : layout.ranks) detail::order_by_launcher(ranks, reports);
  detail::number_local_ranks(layout);
  return layout;
}

/// What to do on a node with more ranks than devices.
enum class DeviceSharing : bool { refused, allowed };

/// The device of one rank, and a sentence to report if it is not the rank's own.
struct DeviceChoice {
  int device = 0;       ///< as the rank counts the devices it sees
  std::string warning;  ///< empty if no other rank uses the device
};

/// The device of a rank among the `devices` that it can see. If the node has more ranks than that, this is an error;
/// only when sharing is allowed do ranks take devices in turn (`local_rank % devices`), with a warning. Allow it too
/// where the launcher shows each rank a single device of its own.
/// @pre `0 <= local_rank < local_size`
/// @throws ConfigError if there is no device, or sharing is needed and refused
[[nodiscard]] inline DeviceChoice device_for(int local_rank, int local_size, int devices,
                                             DeviceSharing sharing = DeviceSharing::refused) {
  const auto counted = [](int n, const char* what) { return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s"); };
  const std::string found =
      "this node has " + counted(local_size, "rank") + " and this rank sees " + counted(devices, "device");
  if (devices < 1) throw ConfigError(found + "; start it where a device is visible");
  if (local_size <= devices) return {local_rank, {}};
  if (sharing == DeviceSharing::refused) {
    throw ConfigError(found + "; start at most as many ranks as devices, or allow ranks to share them");
  }
  const int device = local_rank % devices;
  return {device, "smp: " + found + "; local rank " + std::to_string(local_rank) + " shares device " +
                      std::to_string(device) + " with others"};
}

}  // namespace smp::comm
