// SPDX-License-Identifier: Apache-2.0
// Messages between pairs of ranks: rings, sends and receives of their own, exchanges of everybody with everybody.
#include "messages.hpp"

#include <array>

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::comm::Transfer;

constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};
constexpr std::array<std::size_t, 5> sizes{0, 1, 17, 4096, 70001};

TEST_CASE("a message that goes around comes back whole") {
  on_ranks(worlds, [](World& world) {
    for (const auto& calls : all_moves<World>()) {
      for (const std::size_t n : sizes) check_ring(world, n, calls);
    }
  });
}

TEST_CASE("a send meets its receive, empty or not") {
  on_ranks({2, 3, 4, 8}, [](World& world) {
    for (const std::size_t n : sizes) check_send_and_recv(world, n);
  });
}

TEST_CASE("messages of a pair keep their order") {
  on_ranks({2, 3, 4, 8}, [](World& world) { check_order_of_messages(world); });
}

TEST_CASE("what is sent and what is received at the same time may differ in size and peer") {
  on_ranks({3, 4, 8}, [](World& world) {
    smp::HostStream stream;
    const auto size = [](int from) { return static_cast<std::size_t>(from * 1000); };
    const int to = next(world, 2);
    const int from = previous(world, 2);
    std::vector<int> received(size(from));
    world.send_recv(stream, contents(world.rank(), to, 0, size(world.rank())), to, received, from);
    CHECK(received == contents(from, world.rank(), 0, size(from)));
  });
}

TEST_CASE("elements of any trivially copyable type travel") {
  struct Record {
    int a;
    char b;
    double c;
  };
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    const std::array<Record, 2> sent{{{world.rank(), 'x', 0.5}, {world.rank() + 100, 'y', -0.5}}};
    std::array<Record, 2> received{};
    world.send_recv(stream, sent, next(world), received, previous(world));
    CHECK(received[0].a == previous(world));
    CHECK(received[1].a == previous(world) + 100);
    CHECK(received[1].b == 'y');
    CHECK(received[1].c == -0.5);
  });
}

TEST_CASE("everybody exchanges with everybody, sends listed first or receives listed first") {
  on_ranks(worlds, [](World& world) {
    check_exchange_of_all(world, 1, false);
    check_exchange_of_all(world, 1, true);
  });
}

TEST_CASE("several messages of a pair in one exchange keep their order") {
  on_ranks(worlds, [](World& world) {
    check_exchange_of_all(world, 3, false);
    check_exchange_of_all(world, 3, true);
  });
}

TEST_CASE("an exchange meets plain sends and receives") {
  on_ranks({2, 3, 4, 8}, [](World& world) {
    smp::HostStream stream;
    const std::size_t n = 5000;
    if (world.rank() == 0) {
      std::vector<std::vector<int>> received(static_cast<std::size_t>(world.size()), std::vector<int>(n));
      std::vector<std::vector<int>> sent;
      for (int r = 0; r < world.size(); ++r) sent.push_back(contents(0, r, 0, n));
      std::vector<Transfer> transfers;
      for (int r = world.size() - 1; r > 0; --r) {
        transfers.push_back(Transfer::from(r, std::span<int>(received[static_cast<std::size_t>(r)])));
        transfers.push_back(Transfer::to(r, std::span<const int>(sent[static_cast<std::size_t>(r)])));
      }
      world.exchange(stream, transfers);
      for (int r = 1; r < world.size(); ++r) CHECK(received[static_cast<std::size_t>(r)] == contents(r, 0, 0, n));
    } else {
      std::vector<int> received(n);
      world.send(stream, contents(world.rank(), 0, 0, n), 0);
      world.recv(stream, received, 0);
      CHECK(received == contents(0, world.rank(), 0, n));
    }
  });
}

TEST_CASE("an exchange of nothing returns") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    world.exchange(stream, {});
    world.barrier(stream);
  });
}

}  // namespace
