// SPDX-License-Identifier: Apache-2.0
// Which rank does what in a job of a given shape, and who forms a group with whom, as tab-separated lines:
//   topology --world 8 --pp 2 --tp 2 --placement DTP
// Bad degrees or arguments: exit code 2 and one sentence.
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include <smp/topology.hpp>

#include "command_line.hpp"

namespace {

void print(const smp::DynamicTopology& topology) {
  using smp::Group;
  constexpr Group columns[] = {Group::pp, Group::tp, Group::rdp, Group::dp, Group::mp, Group::shard, Group::replica};
  std::cout << "rank\tpp_rank\ttp_rank\trdp_rank\tdp_rank\tmp_rank\tshard_rank\treplica_rank\n";
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    std::cout << rank;
    for (const Group kind : columns) std::cout << '\t' << topology.rank_in(kind, rank);
    std::cout << '\n';
  }

  for (const Group kind : smp::all_groups) {
    if (kind == Group::world) continue;
    std::cout << "group\t" << to_string(kind);
    for (int index = 0; index < topology.group_count(kind); ++index) {
      const char* separator = index == 0 ? "\t" : " ";
      for (const int member : topology.group_at(kind, index)) {
        std::cout << separator << member;
        separator = ",";
      }
    }
    std::cout << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  int world = 0;
  smp::Degrees degrees{.rdp = smp::dynamic};
  std::string placement = "cluster";

  CLI::App app("Prints the ranks and groups of a job");
  app.add_option("--world", world, "ranks of the job")->required()->transform(decimal());
  app.add_option("--pp", degrees.pp, "stages of the pipeline")->capture_default_str()->transform(decimal());
  app.add_option("--tp", degrees.tp, "ranks that share each layer")->capture_default_str()->transform(decimal());
  app.add_option("--sdp", degrees.sdp, "ranks that hold one copy of the model state")
      ->capture_default_str()
      ->transform(decimal());
  app.add_option("--placement", placement, "cluster, spread, or the letters D, P and T in any order")
      ->capture_default_str();
  return run(app, argc, argv,
             [&] { print(smp::DynamicTopology(degrees_for(world, degrees), smp::parse_placement(placement))); });
}
