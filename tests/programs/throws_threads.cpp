// SPDX-License-Identifier: Apache-2.0
// Thread ranks of which one, or all, throw between collective operations. Prints what each rank sees.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <smp/comm/launch.hpp>

#include "throws.hpp"

namespace {

using namespace smp::testing;
using smp::comm::Threads;

int rank_1_throws(smp::HostStream::Mode mode) {
  try {
    smp::comm::launch(4,
                      [&](Threads& world) {
                        try {
                          train(world, Thrower::rank_1, mode);
                        } catch (const std::exception& e) {
                          std::fprintf(stderr, "rank %d: %s\n", world.rank(), e.what());
                          throw;
                        }
                      },
                      {.timeout = std::chrono::seconds(2)});
  } catch (const UserError& e) {
    std::fprintf(stderr, "job: %s\n", e.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

int all_throw(smp::HostStream::Mode mode) {
  int caught = 0;
  smp::comm::launch(4,
                    [&](Threads& world) {
                      for (int attempt = 0; attempt < 3; ++attempt) {
                        try {
                          train(world, Thrower::everybody, mode);
                        } catch (const UserError&) {
                          if (world.rank() == 0) ++caught;
                        }
                      }
                      train(world, Thrower::nobody, mode);
                    },
                    {.timeout = std::chrono::seconds(2)});
  return caught == 3 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc == 2 ? argv[1] : "";
  if (name == "rank_1") return rank_1_throws(smp::HostStream::Mode::at_once);
  if (name == "rank_1_streams") return rank_1_throws(smp::HostStream::Mode::worker);
  if (name == "all") return all_throw(smp::HostStream::Mode::at_once);
  return 2;
}
