// SPDX-License-Identifier: Apache-2.0
// Thread ranks against what the memory does: both ranks copy, at the same time and with memcpy, the bytes of the
// operation (all_gather: its output, else its input). Floor, in bytes that pass between memory and a rank, for a buffer
// of X bytes and n ranks, against 2X (read and write) of the copy, 3X where a write reads its line first:
//   all_gather      X read, X written                      = 2X
//   reduce_scatter  X read, X/n written                    = 1.5X at n = 2
//   all_reduce      X read, X written                      = 2X
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/comm/launch.hpp>

#include "paired.hpp"

namespace {

using smp::benchmarks::Round;
using smp::comm::Threads;

struct Buffers {
  std::vector<float> in, out;
};

using Operation = void (*)(Threads&, smp::HostStream&, Buffers&);

struct Case {
  const char* name;
  Operation run;
};

void all_gather(Threads& world, smp::HostStream& stream, Buffers& b) {
  world.all_gather(stream, std::span(b.in).first(b.in.size() / static_cast<std::size_t>(world.size())), b.out);
}
void reduce_scatter(Threads& world, smp::HostStream& stream, Buffers& b) {
  world.reduce_scatter(stream, b.in, std::span(b.out).first(b.out.size() / static_cast<std::size_t>(world.size())),
                       smp::sum);
}
void all_reduce(Threads& world, smp::HostStream& stream, Buffers& b) {
  world.all_reduce(stream, b.in, b.out, smp::sum);
}
void send_recv(Threads& world, smp::HostStream& stream, Buffers& b) {
  world.send_recv(stream, b.in, (world.rank() + 1) % world.size(), b.out,
                  (world.rank() + world.size() - 1) % world.size());
}

constexpr Case cases[] = {{"all_gather", all_gather},
                          {"reduce_scatter", reduce_scatter},
                          {"all_reduce", all_reduce},
                          {"send_recv", send_recv}};

void against_memcpy(benchmark::State& state, Operation operation, int ranks, std::size_t bytes) {
  std::vector<Round> rounds;
  smp::comm::launch(ranks, [&](Threads& world) {
    smp::HostStream stream;
    Buffers b{std::vector<float>(bytes / sizeof(float), 1.0F), std::vector<float>(bytes / sizeof(float), 0.0F)};
    const auto barrier = [&] { world.barrier(stream); };
    const auto agree = [&](bool mine) {
      int answer = mine ? 1 : 0;
      world.broadcast(stream, std::span(&answer, 1), 0);
      return answer == 1;
    };
    const auto result = smp::benchmarks::alternate(
        1.0, smp::benchmarks::calls_for(bytes), barrier, agree, [&] { operation(world, stream, b); },
        [&] {
          std::memcpy(b.out.data(), b.in.data(), bytes);
          benchmark::ClobberMemory();
        });
    if (world.rank() == 0) rounds = result;
  });
  smp::benchmarks::report(state, rounds, static_cast<double>(bytes));
}

}  // namespace

int main(int argc, char** argv) {
  for (const Case& c : cases) {
    for (const std::size_t bytes :
         {std::size_t{4} << 10, std::size_t{1} << 20, std::size_t{16} << 20, std::size_t{64} << 20}) {
      const std::string name = std::string(c.name) + "/ranks:2/" + smp::benchmarks::size_name(bytes);
      benchmark::RegisterBenchmark(name.c_str(), against_memcpy, c.run, 2, bytes)->UseManualTime()->Iterations(1);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
