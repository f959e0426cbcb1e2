// SPDX-License-Identifier: Apache-2.0
// absent_rank_threads OPERATION DEVIATION: see absent_rank.hpp; ranks are threads.
#include <smp/comm/launch.hpp>

#include "programs/absent_rank.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto body = [&](smp::comm::Threads& world) {
    try {
      absent_rank::run(world, argv[1], argv[2]);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d: %s\n", world.rank(), e.what());
      throw;
    }
  };
  try {
    smp::comm::launch(3, body, {.timeout = absent_rank::timeout});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "launch: %s\n", e.what());
    return 1;
  }
}
