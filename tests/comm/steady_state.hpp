// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What communication allocates once it is under way: the body of a test that runs on several communicators. Each has
/// an executable of its own, because the global operators are replaced.

#include <algorithm>
#include <array>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>
#include <smp/comm/gathering.hpp>

#include "support/allocations.hpp"

namespace smp::testing {

/// After the first time, `step()` on all ranks of `world` allocates nothing on any of them.
template <class W, class F>
void check_no_allocation(W& world, HostStream& stream, F step) {
  // Other ranks' allocations are counted as well where they are threads, so all have to be inside.
  step();
  world.barrier(stream);
  stream.synchronize();
  const long before = allocations.load();
  world.barrier(stream);
  stream.synchronize();
  for (int i = 0; i < 5; ++i) step();
  world.barrier(stream);
  stream.synchronize();
  const long after = allocations.load();
  world.barrier(stream);
  stream.synchronize();
  CHECK(after == before);
}

/// Performs every operation on small and on large buffers again and again; after the first time nothing is allocated on
/// any rank.
template <class W>
void check_steady_state(W& world, HostStream& stream) {
  const auto n = static_cast<std::size_t>(world.size());
  const auto self = static_cast<std::size_t>(world.rank());
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  constexpr std::size_t large = 100000;
  std::vector<BFloat16> a((large + 10) * n), b((large + 10) * n);
  std::vector<std::size_t> counts(n, 5);
  counts.back() = large;
  const std::span<BFloat16> in(a), out(b);
  const std::array<comm::Transfer, 4> transfers{comm::Transfer::to(next, std::span<const BFloat16>(a).first(10)),
                                                comm::Transfer::from(previous, out.first(10)),
                                                comm::Transfer::to(next, std::span<const BFloat16>(a).first(large)),
                                                comm::Transfer::from(previous, out.subspan(10, large))};
  std::size_t all_counts = 0;
  for (const std::size_t c : counts) all_counts += c;

  const auto step = [&] {
    for (const std::size_t size : {std::size_t{10}, large}) {
      world.barrier(stream);
      world.broadcast(stream, in.first(size), 0);
      world.reduce(stream, in.first(size), out.first(size), sum, world.size() - 1);
      world.all_reduce(stream, in.first(size), out.first(size), average);
      world.all_reduce(stream, out.first(size), out.first(size), maximum);
      world.reduce_scatter(stream, in.first(size * n), out.first(size), sum);
      world.all_gather(stream, in.first(size), out.first(size * n));
      world.all_to_all(stream, in.first(size * n), out.first(size * n));
      world.all_to_all(stream, out.first(size * n), out.first(size * n));
      world.send_recv(stream, in.first(size), next, out.first(size), previous);
    }
    world.reduce_scatter_v(stream, in.first(all_counts), out.first(counts[self]), counts, sum);
    world.all_gather_v(stream, in.first(counts[self]), out.first(all_counts), counts);
    world.exchange(stream, transfers);
  };
  check_no_allocation(world, stream, step);
}

/// The same for gathers of every back end, on two nodes.
template <class W>
void check_gathers_in_steady_state(W& world, HostStream& stream) {
  using comm::GatherBackend;
  std::vector<comm::GroupGather> gathers;
  for (const GatherBackend b : {GatherBackend::flat, GatherBackend::hierarchical, GatherBackend::one_hop}) {
    gathers.emplace_back(world, comm::GatherOptions{.backend = b, .ranks_per_node = 2});
  }
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<float> in(10000), out(in.size() * n);
  check_no_allocation(world, stream, [&] {
    for (comm::GroupGather& gather : gathers) gather.all_gather(stream, in, out);
  });
}

}  // namespace smp::testing
