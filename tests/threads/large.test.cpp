// SPDX-License-Identifier: Apache-2.0
// Messages and reductions of more than 2^31 bytes with real memory. Seconds and gigabytes: under --full only; the
// planning of such sizes is tested without memory in unit/chunks, and cut messages in mpi/operations_in_chunks.
#include <vector>

#include <doctest/doctest.h>

#include "support/full.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr std::size_t bytes = 2'200'000'007;
static_assert(bytes > std::size_t{1} << 31);

TEST_CASE("a message of 2.2 GB arrives whole") {
  if (!full()) return;
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    const Pattern sent = small_integers<std::uint8_t>(0);
    std::vector<std::uint8_t> buffer(bytes);
    if (world.rank() == 0) {
      sent.fill(std::span(buffer));
      world.send(stream, buffer, 1);
    } else {
      world.recv(stream, buffer, 0);
      CHECK(sent.matches(std::span(buffer)));
    }
  });
}

TEST_CASE("an all_reduce of 2.2 GB reaches every element") {
  if (!full()) return;
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    std::vector<std::int8_t> buffer(bytes);
    small_integers<std::int8_t>(world.rank()).fill(std::span(buffer));
    world.all_reduce(stream, buffer, buffer, smp::sum);
    CHECK(reduced_integers<smp::Sum, std::int8_t>(2).matches(std::span(buffer)));
  });
}

}  // namespace
