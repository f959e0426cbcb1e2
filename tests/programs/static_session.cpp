// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// A session of static storage, and copies of its communicator that live even longer: the session ends MPI after main,
// and nothing after that calls MPI.
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include <smp/comm/mpi_session.hpp>

namespace {

std::optional<smp::comm::Mpi> longest;  // begins before the session, ends after it

}  // namespace

int main(int argc, char** argv) {
  static smp::comm::MpiSession session(argc, argv);
  smp::comm::Mpi part = session.world().split(0, 0, "PART");
  smp::comm::Mpi moved = std::move(part);
  longest = moved;
  smp::comm::Mpi& same = moved;
  moved = std::move(same);

  smp::HostStream stream;
  std::array<int, 1> ranks{1};
  longest->all_reduce(stream, ranks, ranks, smp::sum);
  std::printf("static_session: %d ranks\n", ranks[0]);
  return ranks[0] == session.world().size() ? 0 : 1;
}
