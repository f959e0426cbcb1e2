// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// Data parallelism over an MPI that may be called from any thread, which a session has to be asked for: reductions
// beside the computation, without, and on thread ranks give the same bits. Exit code 77 if this MPI cannot.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <smp/comm/launch.hpp>
#include <smp/comm/mpi_session.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
constexpr std::int64_t width = 40;
using Net = smp::Repeat<Dense<double>>;

/// Norms of 12 steps, and the parameters after them.
template <class World>
std::vector<double> train(World world, bool overlap) {
  smp::Worker worker(world, smp::Topology<smp::Degrees{.rdp = smp::dynamic}>(world.size()), 1);
  auto ctx = worker.context();
  smp::DataParallel trainer(ctx, Net(4, [](std::size_t) { return Dense<double>(width, width); }), smp::optim::AdamW{},
                            {.clip = 0.1, .bucket_bytes = 10000, .overlap = overlap});
  std::vector<double> all;
  for (int s = 0; s < 12; ++s) {
    smp::Tensor64 x(worker.memory(), {4, width});
    for (std::size_t i = 0; i < x.size(); ++i) {
      x.data()[i] = std::sin(static_cast<double>(i) + 100 * s + 10000 * world.rank());
    }
    smp::step(ctx, trainer, SquaredError<double>{}, x, x, {.microbatches = 2});
    all.push_back(trainer.step(ctx, 0.01));
  }
  trainer.for_each_parameter([&](std::string_view, const smp::Shape&, auto values, auto) {
    for (const auto v : values) all.push_back(static_cast<double>(v));
  });
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    smp::comm::MpiSession session(argc, argv, {}, smp::comm::MpiThreads::any);
    const smp::comm::Mpi world = session.world();
    const std::vector<double> overlapped = train(world, true);
    const std::vector<double> sequential = train(world, false);
    bool equal = overlapped == sequential && overlapped.back() != 0;
    if (world.rank() == 0) {
      smp::comm::launch(world.size(), [&](smp::comm::Threads& threads) {
        const std::vector<double> found = train(threads, true);
        if (threads.rank() == 0) equal = equal && found == overlapped;
      });
    }
    std::printf("rank %d of %d: %s\n", world.rank(), world.size(), equal ? "equal bits" : "other bits");
    return equal ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const smp::CommError& e) {
    std::printf("%s\n", e.what());
    return 77;
  }
}
