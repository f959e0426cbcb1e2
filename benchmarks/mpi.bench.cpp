// SPDX-License-Identifier: Apache-2.0
// needs: mpi
// Mpi against the raw calls of the library underneath, in turn:  mpiexec -n 2 build/release/benchmarks/mpi
// The default malloc of the C library is left as it is: a temporary that an MPI allocates on every call is part of what
// its users get. (MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 shows the calls without it.)
#include <cstddef>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <mpi.h>

#include <smp/comm/mpi_session.hpp>

#include "paired.hpp"

namespace {

using smp::comm::Mpi;

struct Buffers {
  Mpi& world;
  MPI_Comm raw;
  smp::HostStream stream{};
  std::vector<float> in, out;
  int count = 0;  // elements of `in`
  int part = 0;   // elements of one rank's piece
};

using Side = void (*)(Buffers&);

std::span<float> piece(std::vector<float>& v, const Buffers& b) {
  return std::span(v).first(static_cast<std::size_t>(b.part));
}
int next(const Buffers& b) { return (b.world.rank() + 1) % b.world.size(); }
int previous(const Buffers& b) { return (b.world.rank() + b.world.size() - 1) % b.world.size(); }

struct Case {
  const char* name;
  Side ours, theirs;
};

// One line of the table for each operation.
const Case cases[] = {
    {"all_reduce", [](Buffers& b) { b.world.all_reduce(b.stream, b.in, b.out, smp::sum); },
     [](Buffers& b) { MPI_Allreduce(b.in.data(), b.out.data(), b.count, MPI_FLOAT, MPI_SUM, b.raw); }},
    {"reduce_scatter", [](Buffers& b) { b.world.reduce_scatter(b.stream, b.in, piece(b.out, b), smp::sum); },
     [](Buffers& b) { MPI_Reduce_scatter_block(b.in.data(), b.out.data(), b.part, MPI_FLOAT, MPI_SUM, b.raw); }},
    {"all_gather", [](Buffers& b) { b.world.all_gather(b.stream, piece(b.in, b), b.out); },
     [](Buffers& b) { MPI_Allgather(b.in.data(), b.part, MPI_FLOAT, b.out.data(), b.part, MPI_FLOAT, b.raw); }},
    {"reduce", [](Buffers& b) { b.world.reduce(b.stream, b.in, b.out, smp::sum, 0); },
     [](Buffers& b) { MPI_Reduce(b.in.data(), b.out.data(), b.count, MPI_FLOAT, MPI_SUM, 0, b.raw); }},
    {"broadcast", [](Buffers& b) { b.world.broadcast(b.stream, b.in, 0); },
     [](Buffers& b) { MPI_Bcast(b.in.data(), b.count, MPI_FLOAT, 0, b.raw); }},
    {"all_to_all", [](Buffers& b) { b.world.all_to_all(b.stream, b.in, b.out); },
     [](Buffers& b) { MPI_Alltoall(b.in.data(), b.part, MPI_FLOAT, b.out.data(), b.part, MPI_FLOAT, b.raw); }},
    {"send_recv", [](Buffers& b) { b.world.send_recv(b.stream, b.in, next(b), b.out, previous(b)); },
     [](Buffers& b) {
       MPI_Sendrecv(b.in.data(), b.count, MPI_FLOAT, next(b), 0, b.out.data(), b.count, MPI_FLOAT, previous(b), 0,
                    b.raw, MPI_STATUS_IGNORE);
     }},
    {"barrier", [](Buffers& b) { b.world.barrier(b.stream); }, [](Buffers& b) { MPI_Barrier(b.raw); }},
};

void against_raw(benchmark::State& state, Mpi& world, MPI_Comm raw, const Case& c, std::size_t bytes) {
  const std::size_t count = bytes / sizeof(float);
  Buffers b{world,
            raw,
            {},
            std::vector<float>(count, 1.0F),
            std::vector<float>(count),
            static_cast<int>(count),
            static_cast<int>(count) / world.size()};
  const auto agree = [&](bool mine) {
    int answer = mine ? 1 : 0;
    MPI_Bcast(&answer, 1, MPI_INT, 0, raw);
    return answer == 1;
  };
  const auto rounds = smp::benchmarks::alternate(
      1.0, smp::benchmarks::calls_for(bytes), [&] { MPI_Barrier(raw); }, agree, [&] { c.ours(b); },
      [&] { c.theirs(b); });
  smp::benchmarks::report(state, rounds, static_cast<double>(bytes));
}

}  // namespace

int main(int argc, char** argv) {
  smp::comm::MpiSession session(argc, argv);
  session.run([&](Mpi& world) {
    MPI_Comm raw = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &raw);
    for (const Case& c : cases) {
      for (const std::size_t bytes :
           {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20}) {
        const std::string name =
            std::string(c.name) + "/ranks:" + std::to_string(world.size()) + "/" + smp::benchmarks::size_name(bytes);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&, bytes](benchmark::State& s) { against_raw(s, world, raw, c, bytes); })
            ->UseManualTime()
            ->Iterations(1);
        if (c.name == std::string("barrier")) break;
      }
    }
    benchmark::Initialize(&argc, argv);
    benchmark::ConsoleReporter console;
    std::ofstream nowhere;
    if (world.rank() != 0) {
      console.SetOutputStream(&nowhere);
      console.SetErrorStream(&nowhere);
    }
    benchmark::RunSpecifiedBenchmarks(&console);
    MPI_Comm_free(&raw);
  });
}
