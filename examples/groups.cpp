// SPDX-License-Identifier: Apache-2.0
// Eight ranks, as threads of this process, in two pipeline stages of two tensor-parallel ranks and two copies: every
// rank averages a gradient with the ranks that hold the same parameters, and counts what that costs.
#include <cstdio>
#include <vector>

#include <smp/smp.hpp>

using World = smp::comm::Counted<smp::comm::Threads>;
using Topology = smp::Topology<smp::Degrees{.pp = 2, .tp = 2, .rdp = 2}>;  // wrong degrees do not compile

void train(World world) {
  const Topology topology;
  smp::comm::Groups<World> groups(world, topology);  // WORLD, TP, PP, RDP, DP, MP, SHARD, REPLICA
  World& rdp = groups[smp::Group::rdp];

  smp::HostStream stream;
  std::vector<float> gradient(1000, static_cast<float>(world.rank()));
  rdp.all_reduce(stream, gradient, gradient, smp::average, smp::Purpose::gradient);
  stream.synchronize();

  const auto cost = world.counters().get("RDP", smp::comm::Operation::all_reduce, smp::Purpose::gradient);
  const smp::Coordinate c = topology.coordinate(world.rank());
  std::printf("rank %d: pp %d tp %d rdp %d, mean gradient %.1f, %llu bytes sent\n", world.rank(), c.pp, c.tp, c.rdp,
              static_cast<double>(gradient[0]), static_cast<unsigned long long>(cost.bytes));
}

int main() {
  smp::comm::launch(8, [](smp::comm::Threads& world) { train(World(world)); });
}
