// SPDX-License-Identifier: Apache-2.0
// Local ranks and devices from what launchers, host names and shared memory say, also when they are wrong or missing.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/node_reports.hpp>

namespace {

using smp::ConfigError;
using smp::comm::device_for;
using smp::comm::DeviceSharing;
using smp::comm::launcher_local_rank;
using smp::comm::node_layout;
using smp::comm::NodeLayout;
using smp::comm::NodeReport;

std::optional<int> local_rank_of(const std::map<std::string, std::string>& environment) {
  return launcher_local_rank([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

template <class F>
std::string config_error(F f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// `first` is the lowest rank of the shared-memory split; without one, as for a split of one rank, the rank itself.
NodeReport report(std::string host, int first, std::optional<int> launcher = {}) {
  return {.host = std::move(host), .shared_memory_first = first, .launcher_local_rank = launcher};
}

using Ints = std::vector<int>;

}  // namespace

TEST_CASE("case 7: all ranks of a node use device 0 because only one launcher's variable is read") {
  CHECK(local_rank_of({{"OMPI_COMM_WORLD_LOCAL_RANK", "3"}, {"OMPI_COMM_WORLD_RANK", "11"}}) == 3);    // Open MPI
  CHECK(local_rank_of({{"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "1"}, {"PMI_RANK", "6"}}) == 2);  // Hydra
  CHECK(local_rank_of({{"SLURM_LOCALID", "1"}, {"SLURM_PROCID", "5"}}) == 1);
  CHECK(local_rank_of({{"PMI_LOCAL_RANK", "7"}, {"PMI_RANK", "15"}}) == 7);
  CHECK(local_rank_of({{"MV2_COMM_WORLD_LOCAL_RANK", "0"}}) == 0);
  CHECK(local_rank_of({{"PALS_LOCAL_RANKID", "11"}}) == 11);
  CHECK(local_rank_of({{"FLUX_TASK_LOCAL_ID", "4"}}) == 4);
}

TEST_CASE("case 7: without any launcher's variable there is no local rank to be wrong about") {
  CHECK(local_rank_of({}) == std::nullopt);
  CHECK(local_rank_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}) == std::nullopt);  // global numbers are no local ones
}

TEST_CASE("case 7: all ranks use device 0 because mpirun inside of a Slurm job inherits SLURM_LOCALID=0") {
  CHECK(local_rank_of({{"SLURM_LOCALID", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}) == 2);
  CHECK(local_rank_of({{"SLURM_LOCALID", "0"}, {"MPI_LOCALRANKID", "1"}}) == 1);

  // Under a launcher without a variable of its own, all ranks report the inherited 0: not a numbering of the node.
  const std::vector<NodeReport> reports(4, report("a", 0, 0));
  CHECK(node_layout(reports).local_rank == Ints{0, 1, 2, 3});
}

TEST_CASE("case 7: a local rank that is not a number is an error that names the variable, not device 0") {
  for (const char* bad : {"", "x", "1x", " 1", "1 ", "-1", "+1", "0x1", "1.0", "2147483648", "99999999999999999999"}) {
    CHECK(config_error([&] {
            return local_rank_of({{"MPI_LOCALRANKID", bad}});
          }) == "smp: the environment variable MPI_LOCALRANKID is \"" + std::string(bad) +
                    "\", but must be the number of this process on its node: 0, 1, 2, ...");
  }
  CHECK(local_rank_of({{"MPI_LOCALRANKID", "2147483647"}}) == 2147483647);
  CHECK(config_error([] {
          return local_rank_of({{"OMPI_COMM_WORLD_LOCAL_RANK", "?"}, {"SLURM_LOCALID", "1"}});
        }) != "no error");  // the next variable is no way out
}

TEST_CASE("case 7: all ranks use device 0 because the shared-memory split has one rank under a cgroup launcher") {
  std::vector<NodeReport> reports;
  for (int rank = 0; rank < 4; ++rank) reports.push_back(report("a", rank));
  const NodeLayout layout = node_layout(reports);
  CHECK(layout.nodes() == 1);
  CHECK(layout.local_rank == Ints{0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) CHECK(layout.local_size(rank) == 4);
}

TEST_CASE("case 7: containers on one node have host names of their own, but share memory") {
  const NodeLayout layout = node_layout(std::vector{report("pod-0", 0), report("pod-1", 0), report("pod-2", 2)});
  CHECK(layout.node == Ints{0, 0, 1});
  CHECK(layout.local_rank == Ints{0, 1, 0});
}

TEST_CASE("case 7: host names and shared memory each know half of a node") {
  // 0 and 2 share a host name, 2 and 3 share memory, and so do 1 and 4.
  const std::vector reports{report("a", 0), report("b", 1), report("a", 2), report("c", 2), report("d", 1)};
  const NodeLayout layout = node_layout(reports);
  CHECK(layout.node == Ints{0, 1, 0, 0, 1});
  CHECK(layout.local_rank == Ints{0, 0, 1, 2, 1});
}

TEST_CASE("nodes of unequal size, ranks dealt out in turn") {
  const std::vector reports{report("b", 0), report("a", 1), report("b", 0), report("a", 1), report("b", 0)};
  const NodeLayout layout = node_layout(reports);
  CHECK(layout.nodes() == 2);
  CHECK(layout.node == Ints{0, 1, 0, 1, 0});  // in order of lowest ranks, not of names
  CHECK(layout.local_rank == Ints{0, 0, 1, 1, 2});
  CHECK(layout.ranks == std::vector<Ints>{{0, 2, 4}, {1, 3}});
  CHECK(layout.local_size(4) == 3);
  CHECK(layout.local_size(3) == 2);
}

TEST_CASE("a launcher's order on a node is kept where it is one, node by node") {
  const std::vector reports{report("a", 0, 1), report("a", 0, 0), report("b", 2, 0), report("b", 2, 0),
                            report("c", 4, 1), report("c", 4),    report("d", 6, 1), report("d", 6, 2)};
  const NodeLayout layout = node_layout(reports);
  CHECK(layout.local_rank == Ints{1, 0, 0, 1, 0, 1, 0, 1});  // a: 1, 0; b: twice 0; c: one missing; d: 1, 2
  CHECK(layout.ranks.front() == Ints{1, 0});
}

TEST_CASE("local ranks are 0 to n-1, each once, on every node, whatever is reported") {
  // All reports of 4 ranks with 2 host names, 2 splits and 3 launcher states.
  int layouts = 0;
  for (int code = 0; code < 12 * 12 * 12 * 12; ++code) {
    std::vector<NodeReport> reports;
    for (int rank = 0, rest = code; rank < 4; ++rank, rest /= 12) {
      const int launcher = rest % 3 - 1;
      reports.push_back(report(rest / 3 % 2 == 0 ? "a" : "b", rest / 6 % 2 == 0 ? rank : rank / 2 * 2,
                               launcher < 0 ? std::nullopt : std::optional(launcher)));
    }
    const NodeLayout layout = node_layout(reports);
    std::vector<Ints> seen(static_cast<std::size_t>(layout.nodes()), Ints(4));
    bool right = true;
    for (int rank = 0; rank < 4; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const auto node = static_cast<std::size_t>(layout.node[r]),
                 local = static_cast<std::size_t>(layout.local_rank[r]);
      right = right && layout.local_rank[r] < layout.local_size(rank) && ++seen[node][local] == 1 &&
              layout.ranks[node][local] == rank;
      for (std::size_t s = 0; s < r; ++s)
        right = right && (reports[r].host != reports[s].host || layout.node[s] == layout.node[r]);
    }
    layouts += right;
  }
  CHECK(layouts == 12 * 12 * 12 * 12);
}

TEST_CASE("no ranks, one rank, and a report that cannot be") {
  CHECK(node_layout({}).nodes() == 0);
  CHECK(node_layout(std::vector{report("a", 0)}).local_rank == Ints{0});
  CHECK(config_error([] {
          return node_layout(std::vector{report("a", 0), report("a", 2)});
        }) == "smp: rank 1 reports rank 2 as the lowest it shares memory with, but that must be between 0 and itself");
  CHECK(config_error([] { return node_layout(std::vector{report("a", -1)}); }) ==
        "smp: rank 0 reports rank -1 as the lowest it shares memory with, but that must be between 0 and itself");
}

TEST_CASE("case 7: more ranks than devices is an error, or sharing in turn with a warning, never device 0 for all") {
  for (int local = 0; local < 4; ++local) {
    CHECK(device_for(local, 4, 4).device == local);
    CHECK(device_for(local, 4, 8).device == local);
    CHECK(device_for(local, 4, 4).warning == "");
    CHECK(device_for(local, 4, 2, DeviceSharing::allowed).device == local % 2);
    CHECK(device_for(local, 4, 4, DeviceSharing::allowed).warning == "");
  }
  CHECK(
      config_error([] { return device_for(3, 4, 2); }) ==
      "smp: this node has 4 ranks and this rank sees 2 devices; start at most as many ranks as devices, or allow ranks "
      "to share them");
  CHECK(device_for(3, 4, 2, DeviceSharing::allowed).warning ==
        "smp: this node has 4 ranks and this rank sees 2 devices; local rank 3 shares device 1 with others");
  CHECK(config_error([] { return device_for(0, 1, 0, DeviceSharing::allowed); }) ==
        "smp: this node has 1 rank and this rank sees 0 devices; start it where a device is visible");
}
