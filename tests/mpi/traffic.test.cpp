// SPDX-License-Identifier: Apache-2.0
// The bytes that are handed to MPI, seen from below: MPI_Isend is defined here, and MPI's profiling interface keeps the
// real one reachable as PMPI_Isend.
// ranks: 1 2 3 4
#include <array>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>
#include <mpi.h>

#include <smp/comm/counted.hpp>

#include "support/ranks.hpp"

namespace {

std::uint64_t handed_to_mpi = 0;
std::uint64_t largest_handed = 0;

}  // namespace

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int size = 0;
  PMPI_Type_size(type, &size);
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(size);
  handed_to_mpi += bytes;
  largest_handed = std::max(largest_handed, bytes);
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

namespace {

using namespace smp::testing;
using smp::Purpose;
using smp::comm::Counted;
using smp::comm::Operation;
using smp::comm::Transfer;

constexpr std::array<int, 4> worlds{1, 2, 3, 4};
constexpr std::size_t elements = 3 * 4 * 16 * 5000;  // pieces of whole cache lines in every world

/// `call(counted, stream)` hands to MPI what is counted for `operation` on this rank.
template <class Call>
void check_traffic(World& world, Operation operation, Call call) {
  smp::HostStream stream;
  Counted<World> counted(world);
  handed_to_mpi = 0;
  call(counted, stream);
  CAPTURE(name(operation));
  CHECK(handed_to_mpi == counted.counters().get("WORLD", operation, Purpose::other).bytes);
  CHECK((handed_to_mpi != 0 || world.size() == 1 || operation == Operation::recv));
}

void check_all(World& world) {
  const auto n = static_cast<std::size_t>(world.size());
  const auto self = static_cast<std::size_t>(world.rank());
  std::vector<float> in(elements), out(elements);
  check_traffic(world, Operation::all_reduce, [&](auto& c, auto& s) { c.all_reduce(s, in, out, smp::sum); });
  check_traffic(world, Operation::reduce_scatter,
                [&](auto& c, auto& s) { c.reduce_scatter(s, in, std::span(out).first(elements / n), smp::sum); });
  std::vector<std::size_t> counts(n, 0);
  counts[0] = elements / 2;
  counts[n - 1] += elements / 2;
  check_traffic(world, Operation::reduce_scatter_v, [&](auto& c, auto& s) {
    c.reduce_scatter_v(s, in, std::span(out).first(counts[self]), counts, smp::sum);
  });
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  if (world.size() > 1) {
    check_traffic(world, Operation::send_recv, [&](auto& c, auto& s) { c.send_recv(s, in, next, out, previous); });
    const std::array transfers{Transfer::to(next, std::span<const float>(in)),
                               Transfer::from(previous, std::span<float>(out))};
    check_traffic(world, Operation::exchange, [&](auto& c, auto& s) { c.exchange(s, transfers); });
  }
}

TEST_CASE("reductions and messages hand to MPI the bytes that are counted") {
  on_ranks(worlds, [](World& world) { check_all(world); });
}

TEST_CASE("cut into small messages they hand over the same bytes, none larger than the limit") {
  on_ranks(worlds, [](World& world) {
    World cut(world.handle(), {.largest_message = 10000, .segment = 20000});
    largest_handed = 0;
    check_all(cut);
    CHECK(largest_handed == (world.size() == 1 ? 0 : 10000));
  });
}

TEST_CASE("all_gathers of different pieces hand over each piece n-1 times") {
  on_ranks(worlds, [](World& world) {
    const auto n = static_cast<std::size_t>(world.size());
    std::vector<std::size_t> counts(n);
    for (std::size_t r = 0; r < n; ++r) counts[r] = 1000 * r;
    std::vector<float> in(counts[static_cast<std::size_t>(world.rank())]), out(1000 * n * (n - 1) / 2);
    smp::HostStream stream;
    Counted<World> counted(world);
    handed_to_mpi = 0;
    counted.all_gather_v(stream, in, out, counts);
    CHECK(handed_to_mpi == counted.counters().get("WORLD", Operation::all_gather_v, Purpose::other).bytes);
  });
}

}  // namespace
