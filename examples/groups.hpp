// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <vector>

#include <smp/smp.hpp>

// [readme-begin]
using Topology = smp::Topology<smp::Degrees{.pp = 2, .tp = 2, .rdp = 2}>;  // wrong degrees do not compile

/// Averages a gradient over the ranks that hold the same parameters, and says what that has cost.
template <class Comm>
void train(Comm& everyone) {
  smp::comm::Counted<Comm> world(everyone);
  const Topology topology;
  smp::comm::Groups groups(world, topology);  // WORLD, TP, PP, RDP, DP, MP, SHARD, REPLICA

  smp::HostStream stream;
  std::vector<float> gradient(1000, static_cast<float>(world.rank()));
  groups[smp::Group::rdp].all_reduce(stream, gradient, gradient, smp::average, smp::Purpose::gradient);
  stream.synchronize();

  const smp::Coordinate c = topology.coordinate(world.rank());
  const auto cost = world.counters().get("RDP", smp::comm::Operation::all_reduce, smp::Purpose::gradient);
  std::printf("rank %d: pp %d tp %d rdp %d, mean gradient %.1f, %llu bytes sent\n", world.rank(), c.pp, c.tp, c.rdp,
              static_cast<double>(gradient[0]), static_cast<unsigned long long>(cost.bytes));
}
// [readme-end]
