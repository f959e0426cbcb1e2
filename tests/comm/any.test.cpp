// A communicator that is chosen at run time does what the one inside does, in its groups, with its names.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/any.hpp>
#include <smp/comm/counted.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/objects.hpp>
#include <smp/topology.hpp>

#include "support/ranks.hpp"

using smp::comm::Any, smp::comm::Counted;

TEST_CASE("operations, groups, counts and objects go through") {
  smp::testing::on_ranks({1, 2, 4}, [](smp::testing::World& inside) {
    Counted<Any> world(Any{inside});
    CHECK(world.rank() == inside.rank());
    CHECK(smp::comm::describe(world.group()) == smp::comm::describe(inside.group()));
    const int tp = world.size() % 2 == 0 ? 2 : 1;
    smp::comm::Groups groups(world,
                             smp::DynamicTopology(smp::degrees_for(world.size(), {.tp = tp, .rdp = smp::dynamic})));
    auto& group = groups[smp::Group::tp];
    CHECK(group.size() == tp);
    CHECK(group.group().name == "TP");

    smp::HostStream stream;
    std::vector<double> x{1.0 + world.rank()}, all(static_cast<std::size_t>(tp));
    group.all_gather(stream, x, all);
    CHECK(all.back() == 1.0 + (world.rank() / tp) * tp + tp - 1);
    world.all_reduce(stream, x, x, smp::sum);
    CHECK(x[0] == world.size() * (world.size() + 1) / 2);
    CHECK(world.counters().get("TP", smp::comm::Operation::all_gather, smp::Purpose::other).calls == 1);
    CHECK(smp::comm::all_gather_object(world, world.rank()).size() == static_cast<std::size_t>(world.size()));
    CHECK(smp::comm::works_in_any_thread(world) == smp::comm::works_in_any_thread(inside));
  });
}
