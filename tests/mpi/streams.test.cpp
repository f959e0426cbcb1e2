// SPDX-License-Identifier: Apache-2.0
// An MPI that was initialised for calls from one thread is not called from another: a stream with a worker is refused.
// What an MPI for any thread does is tested in programs/mpi_streams.
// ranks: 2
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <mpi.h>

#include <smp/comm/delayed.hpp>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

TEST_CASE("a stream with a worker needs an MPI that can be called from any thread") {
  on_ranks({2}, [](World& world) {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE) return;  // more than was asked for
    smp::HostStream stream(smp::HostStream::Mode::worker);
    std::vector<int> data(4);
    const auto refused = [&](auto& group) {
      CHECK_THROWS_WITH_AS(
          group.all_reduce(stream, data, data, smp::sum),
          doctest::Contains("a stream with a worker calls MPI from another thread; initialise MPI with "
                            "MPI_THREAD_MULTIPLE, or enqueue in a stream that runs at once"),
          smp::ConfigError);
    };
    refused(world);
    smp::comm::Delayed<World> around(world, {});  // what performs its calls itself asks for what is inside
    refused(around);
    stream.synchronize();
    smp::HostStream now;
    world.all_reduce(now, data, data, smp::sum);
  });
}

}  // namespace
