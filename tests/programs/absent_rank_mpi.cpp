// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// absent_rank_mpi OPERATION DEVIATION: see absent_rank.hpp; ranks are the processes of an mpiexec of three.
#include <smp/comm/mpi_session.hpp>

#include "programs/absent_rank.hpp"

int main(int argc, char** argv) {
  smp::comm::MpiSession session(argc, argv, {.timeout = absent_rank::timeout});
  session.run([&](smp::comm::Mpi& world) { absent_rank::run(world, argv[1], argv[2]); });
}
