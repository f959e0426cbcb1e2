// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reductions of values that round: the bodies of tests that run on several communicators.

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>

#include "comm/typed_calls.hpp"

namespace smp::testing {

inline bool equal_bits(InBytes a, InBytes b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// A reduction has the same bits as the serial loop over ranks 0 to n-1, in every operation, on every rank, each time.
template <class W>
void check_ordered_sums(W& world, std::size_t n, const ReductionCalls<W>& calls) {
  HostStream stream;
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto self = static_cast<std::size_t>(world.rank());
  const std::vector<std::byte> in = calls.random(world.rank(), n);
  const std::vector<std::byte> expected = calls.reduced_random(world.size(), n);
  CAPTURE(calls.element);
  CAPTURE(calls.reduction);
  CAPTURE(n);
  for (int run = 0; run < 2; ++run) {
    CAPTURE(run);
    std::vector<std::byte> out(in.size());
    calls.all_reduce(world, stream, in, out);
    CHECK(equal_bits(out, expected));

    std::vector<std::byte> in_place = in;
    calls.all_reduce(world, stream, in_place, in_place);
    CHECK(equal_bits(in_place, expected));

    const int root = world.size() - 1;
    std::vector<std::byte> at_root(world.rank() == root ? in.size() : 0);
    calls.reduce(world, stream, in, at_root, root);
    if (world.rank() == root) CHECK(equal_bits(at_root, expected));

    const std::size_t piece = n / ranks;
    std::vector<std::byte> mine(piece * calls.bytes);
    calls.reduce_scatter(world, stream, InBytes(in).first(piece * ranks * calls.bytes), mine);
    CHECK(equal_bits(mine, InBytes(expected).subspan(self * mine.size(), mine.size())));

    // All that is left goes to the last rank.
    std::vector<std::size_t> counts(ranks, piece / 2);
    counts.back() = n - (ranks - 1) * (piece / 2);
    mine.resize(counts[self] * calls.bytes);
    calls.reduce_scatter_v(world, stream, in, mine, counts);
    CHECK(equal_bits(mine, InBytes(expected).subspan(self * (piece / 2) * calls.bytes, mine.size())));
  }
}

}  // namespace smp::testing
