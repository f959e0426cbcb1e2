// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which MPI ranks share a node, from what the launcher, the host names and MPI itself say.

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <mpi.h>

#include <smp/comm/mpi_error.hpp>
#include <smp/comm/node_reports.hpp>
#include <smp/comm/objects.hpp>

namespace smp::comm {

/// How a report crosses ranks.
template <>
struct ObjectTraits<NodeReport> {
  static void pack(const NodeReport& report, Bytes& bytes) {
    comm::pack(report.host, bytes);
    comm::pack(report.shared_memory_first, bytes);
    comm::pack(report.launcher_local_rank.value_or(-1), bytes);
  }
  static NodeReport unpack(ByteReader& reader) {
    NodeReport report;
    report.host = comm::unpack<std::string>(reader);
    report.shared_memory_first = comm::unpack<int>(reader);
    const int local = comm::unpack<int>(reader);
    if (local >= 0) report.launcher_local_rank = local;
    return report;
  }
};

/// Where every rank of `world`, an `Mpi`, is. Collective; reads the launcher's environment variables.
/// @throws ConfigError, on all ranks, if one of these variables is no number
template <class World>
[[nodiscard]] NodeLayout mpi_node_layout(World& world) {
  NodeReport mine;
  std::array<char, MPI_MAX_PROCESSOR_NAME> host{};
  int length = 0;
  check(MPI_Get_processor_name(host.data(), &length), "MPI_Get_processor_name");
  mine.host.assign(host.data(), static_cast<std::size_t>(length));

  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world.handle(), MPI_COMM_TYPE_SHARED, world.rank(), MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  const int rank = world.rank();
  check(MPI_Allreduce(&rank, &mine.shared_memory_first, 1, MPI_INT, MPI_MIN, node), "MPI_Allreduce");
  check(MPI_Comm_free(&node), "MPI_Comm_free");

  std::string error;
  try {
    mine.launcher_local_rank = launcher_local_rank([](const char* name) { return std::getenv(name); });
  } catch (const ConfigError& e) {
    error = e.what();
  }
  for (const std::string& text : all_gather_object(world, error)) {
    if (!text.empty()) throw ConfigError(text);
  }
  return node_layout(std::span<const NodeReport>(all_gather_object(world, mine)));
}

}  // namespace smp::comm
