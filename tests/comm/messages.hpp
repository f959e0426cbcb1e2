// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Messages between pairs of ranks: the bodies of tests that run on several communicators.

#include <cstddef>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>

#include "comm/typed_calls.hpp"

namespace smp::testing {

template <class W>
int next(const W& world, int distance = 1) {
  return (world.rank() + distance) % world.size();
}
template <class W>
int previous(const W& world, int distance = 1) {
  return (world.rank() + world.size() - distance) % world.size();
}

/// What message number `number` from `from` to `to` holds.
inline std::vector<int> contents(int from, int to, int number, std::size_t size) {
  std::vector<int> data(size);
  for (std::size_t i = 0; i < size; ++i) data[i] = (from * 8 + to) * 100000 + number * 1000 + static_cast<int>(i % 997);
  return data;
}

/// Everybody sends to the next and receives from the previous rank, once around.
template <class W>
void check_ring(W& world, std::size_t n, const MoveCalls<W>& calls) {
  HostStream stream;
  CAPTURE(calls.element);
  CAPTURE(n);
  Guarded travelling(n, calls.bytes), received(n, calls.bytes);
  calls.integers(world.rank()).fill(travelling.bytes());
  for (int step = 1; step <= world.size(); ++step) {
    calls.send_recv(world, stream, travelling.bytes(), next(world), received.bytes(), previous(world));
    std::copy(received.bytes().begin(), received.bytes().end(), travelling.bytes().begin());
    CHECK(calls.integers(previous(world, step)).matches(received.bytes()));
    CHECK((travelling.intact() && received.intact()));
  }
}

/// Sends and receives of their own, from even to odd ranks and back; a sender may wait for its receiver.
template <class W>
void check_send_and_recv(W& world, std::size_t n) {
  HostStream stream;
  const int peer = world.rank() ^ 1;
  if (peer >= world.size()) return;
  const std::vector<int> sent = contents(world.rank(), peer, 0, n);
  std::vector<int> received(n);
  if (world.rank() % 2 == 0) {
    world.send(stream, sent, peer);
    world.recv(stream, received, peer);
  } else {
    world.recv(stream, received, peer);
    world.send(stream, sent, peer);
  }
  CHECK(received == contents(peer, world.rank(), 0, n));
}

/// Messages of many sizes, empty ones too, from rank 0 to the last.
template <class W>
void check_order_of_messages(W& world) {
  HostStream stream;
  const int last = world.size() - 1;
  const auto size = [](int number) { return static_cast<std::size_t>(number * 97 % 400); };
  for (int number = 0; number < 100; ++number) {
    if (world.rank() == 0) world.send(stream, contents(0, last, number, size(number)), last);
    if (world.rank() == last) {
      std::vector<int> received(size(number));
      world.recv(stream, received, 0);
      CHECK(received == contents(0, last, number, size(number)));
    }
  }
}

/// Every rank sends `messages` messages to every rank, itself included, in one exchange; the sizes say who to whom.
template <class W>
void check_exchange_of_all(W& world, int messages, bool receives_first) {
  HostStream stream;
  const auto size = [](int from, int to, int number) { return static_cast<std::size_t>((from + 2 * to + number) % 5); };
  std::vector<std::vector<int>> sent, received;
  for (int number = 0; number < messages; ++number) {
    for (int r = 0; r < world.size(); ++r) {
      sent.push_back(contents(world.rank(), r, number, 300 * size(world.rank(), r, number)));
      received.emplace_back(300 * size(r, world.rank(), number));
    }
  }
  using smp::comm::Transfer;
  std::vector<Transfer> transfers;
  const auto add_sends = [&] {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      transfers.push_back(Transfer::to(static_cast<int>(i) % world.size(), std::span<const int>(sent[i])));
    }
  };
  if (!receives_first) add_sends();
  for (std::size_t i = 0; i < received.size(); ++i) {
    transfers.push_back(Transfer::from(static_cast<int>(i) % world.size(), std::span<int>(received[i])));
  }
  if (receives_first) add_sends();
  world.exchange(stream, transfers);
  for (std::size_t i = 0; i < received.size(); ++i) {
    const int from = static_cast<int>(i) % world.size();
    const int number = static_cast<int>(i) / world.size();
    CHECK(received[i] == contents(from, world.rank(), number, 300 * size(from, world.rank(), number)));
  }
}

}  // namespace smp::testing
