// SPDX-License-Identifier: Apache-2.0
// Checked: calls that match raise nothing, whatever the mixture and whoever comes first.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>

#include "comm/steps.hpp"
#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace {

using namespace smp::testing;
using smp::comm::Checked;

Step step(Operation o, int to = -1, int from = -1) {
  Step s;
  s.operation = o;
  s.to = to;
  s.from = from;
  return s;
}

Step exchange(std::vector<Leg> legs) {
  Step s = step(Operation::exchange);
  s.legs = std::move(legs);
  return s;
}

/// A round of calls in which every operation meets every form that fits it: a send_recv its like, a send and a receive
/// in either order, an exchange; rings with a rank that takes its two messages apart.
std::vector<Step> round_of(int rank, int world) {
  const int next = (rank + 1) % world;
  const int before = (rank + world - 1) % world;
  std::vector<Step> program;
  const auto all = [&](const Step& s) { program.push_back(s); };
  for (const Operation o : {Operation::all_reduce, Operation::barrier, Operation::broadcast, Operation::all_gather,
                            Operation::reduce_scatter, Operation::reduce, Operation::all_to_all,
                            Operation::reduce_scatter_v, Operation::all_gather_v}) {
    all(step(o));
  }
  Step maximum = step(Operation::all_reduce);
  maximum.type = Type::f32;
  maximum.reduction = ReduceOp::maximum;
  all(maximum);

  // Ranks 0 and 1 between themselves.
  if (rank < 2) {
    const int peer = 1 - rank;
    const bool first = rank == 0;
    const Step send = step(Operation::send, peer);
    const Step recv = step(Operation::recv, -1, peer);
    const Step both = step(Operation::send_recv, peer, peer);
    all(first ? send : recv);
    all(first ? recv : send);
    if (first) {
      all(both);
      all(send);
      all(recv);
      all(exchange({{peer, true}, {peer, false}}));
    } else {
      all(recv);
      all(send);
      all(both);
      all(both);
    }
    // Two at once against one after the other.
    if (first) {
      all(exchange({{peer, false}, {peer, false}, {peer, true}}));
    } else {
      all(recv);
      all(both);
    }
    all(exchange({{rank, false}, {rank, true}}));  // to itself
  }

  // Rings: together, and with one rank that takes its messages one after the other.
  all(step(Operation::send_recv, next, before));
  all(exchange({{next, false}, {before, true}}));
  for (int apart = 0; apart < world; ++apart) {
    if (rank == apart) {
      all(step(Operation::recv, -1, before));
      all(step(Operation::send, next));
    } else {
      all(step(Operation::send_recv, next, before));
    }
  }
  // With every other rank at once.
  std::vector<Leg> legs;
  for (int r = 0; r < world; ++r) {
    if (r == rank) continue;
    legs.push_back({r, true});
    legs.push_back({r, false});
  }
  all(exchange(legs));
  return program;
}

/// Calls on rank 0 of a world of this size: a million for two ranks that have a core each, fewer where a call costs
/// more.
int calls_wanted(int world) {
#if SMP_TEST_MPI
  return (world == 2 ? 100000 : 3000) * (full() ? 10 : 1);
#else
  return (world == 2 ? 1000000 : 30000) / (sanitized ? 10 : 1);
#endif
}

TEST_CASE("no false alarm in a million matched calls") {
  on_ranks({2, 3, 4}, [](World& world) {
    Checked<World> checked(world, smp::comm::CheckOptions{.timeout = std::chrono::seconds(30)});
    Performer<Checked<World>> perform(checked);
    const std::vector<Step> program = round_of(world.rank(), world.size());
    const std::size_t calls_a_round = round_of(0, world.size()).size();
    const int rounds = calls_wanted(world.size()) / static_cast<int>(calls_a_round) + 1;
    std::string alarm;
    bool right = true;
    try {
      for (int i = 0; i < rounds; ++i) {
        for (Step s : program) {
          s.value = i % 1000;
          right = perform(s) && right;
        }
      }
    } catch (const smp::CommError& e) {
      alarm = e.what();
    }
    CHECK(alarm == "");
    CHECK(right);
    if (world.rank() == 0) MESSAGE((rounds * static_cast<int>(calls_a_round)) << " calls, world " << world.size());
  });
}

}  // namespace
