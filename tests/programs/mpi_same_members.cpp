// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// Two ranks that wait for each other in two groups with the same members.
#include <chrono>

#include <smp/comm/mpi_session.hpp>

int main(int argc, char** argv) {
  smp::comm::MpiSession session(argc, argv, {.timeout = std::chrono::seconds(1)});
  smp::HostStream stream;
  smp::comm::Mpi outer = session.world().split(0, 0, "OUTER");
  smp::comm::Mpi inner = outer.split(0, 0, "INNER");
  (outer.rank() == 0 ? outer : inner).barrier(stream);
}
