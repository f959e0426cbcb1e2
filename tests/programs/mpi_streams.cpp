// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// MPI called from streams with workers, which a session has to be asked for: two groups in two streams at the same
// time, ordered with computation by events; gathers of two steps, too. Exit code 77 if this MPI cannot.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <smp/comm/gathering.hpp>
#include <smp/comm/mpi_session.hpp>

namespace {

using smp::HostEvent;
using smp::HostStream;
using smp::comm::Mpi;

constexpr std::size_t n = 20000;
constexpr auto worker = HostStream::Mode::worker;

/// Wrong results of `steps` steps.
int compute_and_communicate(Mpi& world, int steps) {
  Mpi second = world.split(0, -world.rank(), "SECOND");
  smp::comm::GroupGather in_two_steps(world.split(0, world.rank(), "THIRD"), {.ranks_per_node = 2});
  HostStream compute(worker), gather(worker), reduce(worker);
  HostEvent computed, gathered, reduced;
  std::vector<int> shard(n), whole(n * static_cast<std::size_t>(world.size())), same(whole.size()), sums(n);
  int wrong = 0;
  for (int step = 1; step <= steps; ++step) {
    compute.enqueue([&, step] { shard.assign(n, step * (world.rank() + 1)); });
    compute.record(computed);
    gather.wait(computed);
    world.all_gather(gather, shard, whole);
    in_two_steps.all_gather(gather, shard, same);
    gather.record(gathered);
    reduce.wait(computed);
    second.all_reduce(reduce, shard, sums, smp::sum);
    reduce.record(reduced);
    compute.wait(gathered);
    compute.wait(reduced);
    compute.enqueue([&, step] {
      const int ranks = world.size();
      const bool right = whole.front() == step && whole.back() == step * ranks && same == whole &&
                         sums.back() == step * ranks * (ranks + 1) / 2;
      if (!right) ++wrong;
    });
  }
  compute.synchronize();
  gather.synchronize();
  reduce.synchronize();
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    smp::comm::MpiSession session(argc, argv, {}, smp::comm::MpiThreads::any);
    const int wrong = compute_and_communicate(session.world(), 30);
    std::printf("rank %d: %d wrong\n", session.world().rank(), wrong);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const smp::CommError& e) {
    std::printf("%s\n", e.what());
    return 77;
  }
}
