// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// The same eight ranks as processes:  mpirun -n 8 build/release/examples/groups_mpi
#include <smp/comm/mpi_session.hpp>

#include "groups.hpp"

// [readme-begin]
int main(int argc, char** argv) {
  smp::comm::MpiSession mpi(argc, argv);
  mpi.run([](smp::comm::Mpi& world) { train(world); });
}
// [readme-end]
