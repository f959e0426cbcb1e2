// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// MPI ranks of which one, or all, throw between collective operations; the first argument says how the program deals
// with exceptions. Says so if anything collective is called while an exception unwinds the stack: other ranks would
// have to come to it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <smp/comm/mpi_session.hpp>

#include "throws.hpp"

namespace {

void collective(const char* function) {
  if (std::uncaught_exceptions() > 0) std::fprintf(stderr, "wrong: %s while unwinding\n", function);
}

}  // namespace

// MPI's profiling interface.
extern "C" int MPI_Comm_free(MPI_Comm* comm) {
  collective("MPI_Comm_free");
  return PMPI_Comm_free(comm);
}
extern "C" int MPI_Barrier(MPI_Comm comm) {
  collective("MPI_Barrier");
  return PMPI_Barrier(comm);
}
extern "C" int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  collective("MPI_Ibarrier");
  return PMPI_Ibarrier(comm, request);
}
extern "C" int MPI_Finalize() {
  collective("MPI_Finalize");
  return PMPI_Finalize();
}

namespace {

using namespace smp::testing;
using smp::comm::Mpi;
using smp::comm::MpiSession;

constexpr smp::comm::MpiOptions options{.timeout = std::chrono::seconds(2)};
constexpr auto at_once = smp::HostStream::Mode::at_once;

/// The session runs the function, and ends the job if an exception leaves it.
int run(int argc, char** argv) {
  MpiSession session(argc, argv, options);
  session.run([](Mpi& world) { train(world, Thrower::rank_1, at_once); });
  return EXIT_SUCCESS;
}

/// The exception passes the session on its way to a handler.
int passes_session(int argc, char** argv) {
  try {
    MpiSession session(argc, argv, options);
    train(session.world(), Thrower::rank_1, at_once);
  } catch (const UserError&) {
    return EXIT_SUCCESS;  // not reached: nobody could go on from here
  }
  return EXIT_SUCCESS;
}

/// Nobody catches it.
int uncaught(int argc, char** argv) {
  MpiSession session(argc, argv, options);
  train(session.world(), Thrower::rank_1, at_once);
  return EXIT_SUCCESS;
}

/// MPI belongs to the host program.
int host(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Mpi world(MPI_COMM_WORLD, options);
  smp::comm::abort_on_exception(world, [&] { train(world, Thrower::rank_1, at_once); });
  MPI_Finalize();
  return EXIT_SUCCESS;
}

/// The rank that threw catches its exception, and does not come to what the others wait in.
int caught_by_one(int argc, char** argv) {
  MpiSession session(argc, argv, options);
  try {
    train(session.world(), Thrower::rank_1, at_once);
  } catch (const UserError&) {
    std::fprintf(stderr, "rank %d goes on alone\n", session.world().rank());
  }
  smp::HostStream stream;
  session.world().barrier(stream);
  return EXIT_SUCCESS;
}

/// All throw alike, catch it, and go on.
int all(int argc, char** argv) {
  MpiSession session(argc, argv, options);
  int caught = 0;
  session.run([&](Mpi& world) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      try {
        train(world, Thrower::everybody, at_once);
      } catch (const UserError&) {
        ++caught;
      }
    }
    train(world, Thrower::nobody, at_once);
  });
  return caught == 3 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc == 2 ? argv[1] : "";
  if (name == "run") return run(argc, argv);
  if (name == "passes_session") return passes_session(argc, argv);
  if (name == "uncaught") return uncaught(argc, argv);
  if (name == "host") return host(argc, argv);
  if (name == "caught_by_one") return caught_by_one(argc, argv);
  if (name == "all") return all(argc, argv);
  return 2;
}
