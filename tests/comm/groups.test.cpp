// SPDX-License-Identifier: Apache-2.0
// The groups of a topology as communicators. Where each rank made only its own groups, the n-th creation meant other
// members on other ranks: two groups got each other's sums, or hung.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/decorator.hpp>
#include <smp/comm/groups.hpp>

#include "support/full.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::Degrees;
using smp::DynamicTopology;
using smp::Group;
using smp::Placement;
using smp::comm::Groups;

template <class C>
int sum_of_ranks_from_1(C& group, int world_rank) {
  smp::HostStream stream;
  int sum = world_rank + 1;
  group.all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum);
  return sum;
}

template <class F>
void for_each_degrees(int world, F f) {
  for (int pp = 1; pp <= world; ++pp) {
    for (int tp = 1; tp <= world / pp; ++tp) {
      if (world % (pp * tp) != 0) continue;
      const int rdp = world / (pp * tp);
      for (int sdp = 1; sdp <= rdp; ++sdp) {
        if (rdp % sdp == 0) f(Degrees{.pp = pp, .tp = tp, .rdp = rdp, .sdp = sdp});
      }
    }
  }
}

/// Every group of every kind has the topology's members, and sums over them and nobody else.
void check_all_kinds(World& world, const DynamicTopology& topology) {
  Groups<World> groups(world, topology);
  for (const Group kind : smp::all_groups) {
    const auto ranks = topology.group(kind, world.rank());
    int expected = 0;
    for (const int r : ranks) expected += r + 1;
    World& group = groups[kind];
    CHECK(group.group().name == smp::to_string(kind));
    CHECK(group.group().world_ranks == std::vector<int>(ranks.begin(), ranks.end()));
    CHECK(group.rank() == topology.rank_in(kind, world.rank()));
    CHECK(sum_of_ranks_from_1(group, world.rank()) == expected);
  }
}

TEST_CASE("RDP groups {0,2} and {1,3} of pp 2, rdp 2 sum ranks + 1 to 4 and 6") {
  on_ranks({4}, [](World& world) {
    Groups<World> groups(world, DynamicTopology(Degrees{.pp = 2, .tp = 1, .rdp = 2}));
    CHECK(sum_of_ranks_from_1(groups[Group::rdp], world.rank()) == (world.rank() % 2 == 0 ? 4 : 6));
    CHECK(sum_of_ranks_from_1(groups[Group::pp], world.rank()) == (world.rank() < 2 ? 3 : 7));
    CHECK(sum_of_ranks_from_1(groups[Group::world], world.rank()) == 10);
    CHECK(sum_of_ranks_from_1(groups[Group::tp], world.rank()) == world.rank() + 1);
  });
}

TEST_CASE("every kind of group sums over its own members, for all degrees") {
#if SMP_TEST_MPI
  constexpr std::array worlds{4, 8};
#else
  constexpr std::array worlds{4, 8, 12};
#endif
  on_ranks(worlds, [](World& world) {
    for_each_degrees(world.size(), [&](const Degrees& degrees) {
      CAPTURE(degrees.pp);
      CAPTURE(degrees.tp);
      CAPTURE(degrees.sdp);
      for (const Placement placement : smp::all_placements) {
        // MPI takes its time to make communicators. Which ranks are in a group is the topology's affair, and tested
        // there.
        const bool usual = placement == Placement::cluster && degrees.sdp == (degrees.rdp % 2 == 0 ? 2 : 1);
#if SMP_TEST_MPI
        if (!usual && !full()) continue;
#else
        (void)usual;
#endif
        check_all_kinds(world, DynamicTopology(degrees, placement));
      }
    });
  });
}

/// A communicator that writes down the parts that are made of it.
class Logged : public smp::comm::Decorator<Logged, World> {
 public:
  explicit Logged(World inner, std::vector<std::string>* log) : Decorator(std::move(inner)), log_(log) {}

  Logged split(int colour, int key, std::string name) {
    log_->push_back(name);
    return Logged(inner().split(colour, key, std::move(name)), log_);
  }
  void enqueue(smp::HostStream& stream, const smp::comm::Call& call) { inner().enqueue(stream, call); }

 private:
  std::vector<std::string>* log_;
};

TEST_CASE("groups are made in one order on every rank, whatever the degrees") {
  on_ranks({4, 8}, [](World& world) {
    const int half = world.size() / 2;
    for (const Degrees& degrees : {Degrees{.pp = 2, .tp = half}, Degrees{.pp = half, .rdp = 2, .sdp = 2}}) {
      std::vector<std::string> log;
      Logged logged(world, &log);
      Groups<Logged> groups(logged, DynamicTopology(degrees));
      CHECK(log == std::vector<std::string>{"WORLD", "TP", "PP", "RDP", "DP", "MP", "SHARD", "REPLICA"});
      (void)groups.beside(smp::comm::Lane::gather, Group::shard);
      (void)groups.beside(smp::comm::Lane::gather, Group::shard);
      CHECK(log.size() == 9);
      CHECK(sum_of_ranks_from_1(groups[Group::world], world.rank()) == world.size() * (world.size() + 1) / 2);
    }
  });
}

TEST_CASE("a topology for another world is refused before any group is made") {
  on_ranks({4}, [](World& world) {
    CHECK_THROWS_WITH_AS(Groups<World>(world, DynamicTopology(Degrees{.pp = 2, .tp = 1, .rdp = 4})),
                         "smp: the topology is for 8 ranks, but the world has 4", smp::ConfigError);
    smp::HostStream stream;
    world.barrier(stream);
  });
}

}  // namespace
