// SPDX-License-Identifier: Apache-2.0
// A program outside of the repository. Where the smp it got includes MPI, it uses that too.
#include <cstdio>

#include <smp/smp.hpp>

#if USE_MPI
#include <smp/comm/mpi.hpp>
#include <smp/comm/mpi_session.hpp>
#endif

#include "other.hpp"

int main(int argc, char** argv) {
#if USE_MPI
  smp::comm::MpiSession session(argc, argv);
  smp::comm::Mpi world = session.world();
  if (world.size() != 1) return 1;
#else
  static_cast<void>(argc);
  static_cast<void>(argv);
#endif
  int ranks = 0;
  smp::comm::launch(2, [&](smp::comm::Threads& world) {
    if (world.rank() == 0) ranks = world.size();
  });
  if (ranks != 2 || version_seen_elsewhere() != smp::version) return 1;
  float product = 0;
  const float two = 2, three = 3;
  smp::gemm(
      smp::Gemm<float>{.m = 1, .n = 1, .k = 1, .a = &two, .lda = 1, .b = &three, .ldb = 1, .c = &product, .ldc = 1});
  if (product != 6) return 1;
  std::printf("smp %d, float matrices by %s\n", smp::version, smp::gemm_kernel<float>().c_str());
}
