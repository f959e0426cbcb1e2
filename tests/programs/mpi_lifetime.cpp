// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// Communicators that live shorter or longer than MPI does, one case per argument. Everything that MPI gave is given
// back once, nothing after the end, and nobody ends an MPI that is not theirs: otherwise the exit code is 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <mpi.h>

#include <smp/comm/groups.hpp>
#include <smp/comm/mpi_session.hpp>

namespace {

int made = 0;
int freed = 0;
int finalized = 0;
bool failed = false;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("wrong: %s\n", what);
  failed = true;
}

bool ended() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

}  // namespace

// MPI's profiling interface: what is made, freed, and ended.
extern "C" int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* result) {
  ++made;
  return PMPI_Comm_dup(comm, result);
}
extern "C" int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* result) {
  ++made;
  return PMPI_Comm_split(comm, colour, key, result);
}
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* result) {
  ++made;
  return PMPI_Comm_split_type(comm, type, key, info, result);
}
extern "C" int MPI_Comm_free(MPI_Comm* comm) {
  if (ended()) {  // perhaps after main has returned
    std::printf("wrong: a communicator is freed after the end of MPI\n");
    std::_Exit(1);
  }
  ++freed;
  return PMPI_Comm_free(comm);
}
extern "C" int MPI_Finalize() {
  ++finalized;
  return PMPI_Finalize();
}

namespace {

using smp::comm::Mpi;
using smp::comm::MpiSession;

std::optional<Mpi> in_static_storage;

void use(Mpi& world) {
  smp::HostStream stream;
  int sum = 1;
  world.all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum);
  expect(sum == world.size(), "the sum of ones is the number of ranks");
}

/// A communicator and its parts in static storage, destroyed after `main`, and after MPI.
void static_storage(int argc, char** argv) {
  MpiSession session(argc, argv);
  in_static_storage = session.world().split(0, 0, "STATIC");
  use(*in_static_storage);
}

/// The host ends MPI while communicators are alive, and copies and moves them afterwards.
void outlives(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Mpi world(MPI_COMM_WORLD);
  Mpi part = world.split(world.rank() % 2, 0, "PART");
  smp::comm::Groups<Mpi> groups(world, smp::DynamicTopology(smp::Degrees{.pp = 1, .tp = 2, .rdp = world.size() / 2}));
  use(world);
  use(part);
  use(groups[smp::Group::tp]);
  MPI_Finalize();
  Mpi copy = part;
  Mpi moved = std::move(part);
  part = copy;
  expect(moved.size() == world.size() / 2, "a group can be asked for its size after the end of MPI");
}

/// The host has begun MPI: a session is only a guest.
void host_began(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    MpiSession session(argc, argv);
    use(session.world());
    MpiSession nested(argc, argv);
    use(nested.world());
  }
  expect(!ended() && finalized == 0, "a session does not end an MPI that it has not begun");
  int sum = 0;
  const int one = 1;
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect(made == freed, "what a session made it has freed");
  MPI_Finalize();
}

/// Copies, moves and assignments of handles, onto themselves too: one communicator, freed once.
void handles(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    Mpi world(MPI_COMM_WORLD);
    const int made_by_one = made;
    Mpi copy = world;
    Mpi moved = std::move(copy);
    copy = moved;
    Mpi& alias = copy;
    copy = alias;
    copy = std::move(alias);
    use(copy);
    use(moved);
    std::vector<Mpi> many(10, world);
    many.push_back(std::move(world));
    many.erase(many.begin(), many.begin() + 5);
    use(many.back());
    expect(made == made_by_one, "a copy is the same communicator");
    expect(freed < made, "a communicator lives as long as one of its handles");
  }
  expect(made == freed, "every communicator is freed once");
  MPI_Finalize();
}

/// What is made at the wrong time is refused.
void wrong_time(int argc, char** argv) {
  const auto refused = [](auto make, const char* text) {
    try {
      make();
    } catch (const smp::CommError& e) {
      if (std::strstr(e.what(), text) != nullptr) return;
      std::printf("found: %s\n", e.what());
    }
    expect(false, text);
  };
  refused([] { Mpi world(MPI_COMM_WORLD); }, "MPI is not running: call MPI_Init first, or use smp::comm::MpiSession");
  {
    MpiSession session(argc, argv);
    use(session.world());
  }
  expect(ended() && finalized == 1, "a session ends the MPI that it has begun");
  refused([&] { MpiSession again(argc, argv); }, "MPI is not running");
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<const char*, void (*)(int, char**)> cases[] = {{"static_storage", static_storage},
                                                                 {"outlives", outlives},
                                                                 {"host_began", host_began},
                                                                 {"handles", handles},
                                                                 {"wrong_time", wrong_time}};
  bool found = false;
  for (const auto& [name, run] : cases) {
    if (argc != 2 || std::strcmp(argv[1], name) != 0) continue;
    run(argc, argv);
    found = true;
  }
  expect(found, "the argument names a case");
  expect(finalized == 1, "MPI is ended once");
  return failed ? 1 : 0;
}
