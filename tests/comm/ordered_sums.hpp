// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reductions of values that round: the bodies of tests that run on several communicators.

#include <cstddef>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>

#include "support/oracle.hpp"

namespace smp::testing {

/// Calls `f(op)`, which has to give the same bits as the serial loop over ranks 0 to n-1, in every operation that
/// reduces, on every rank, each time.
template <class T, class Op, class W>
void check_ordered_sums(W& world, std::size_t n, Op op) {
  HostStream stream;
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto self = static_cast<std::size_t>(world.rank());
  std::vector<T> in(n), expected(n);
  for (std::size_t i = 0; i < n; ++i) {
    in[i] = random_value<T>(world.rank(), i);
    expected[i] = reduced_random<Op, T>(world.size(), i);
  }
  const auto equal_bits = [](std::span<const T> a, std::span<const T> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) { return bits(x) == bits(y); });
  };
  CAPTURE(type_name<T>());
  CAPTURE(n);
  for (int run = 0; run < 2; ++run) {
    CAPTURE(run);
    std::vector<T> out(n);
    world.all_reduce(stream, in, out, op);
    CHECK(equal_bits(out, expected));

    std::vector<T> in_place = in;
    world.all_reduce(stream, in_place, in_place, op);
    CHECK(equal_bits(in_place, expected));

    const int root = world.size() - 1;
    std::vector<T> at_root(world.rank() == root ? n : 0);
    world.reduce(stream, in, at_root, op, root);
    if (world.rank() == root) CHECK(equal_bits(at_root, expected));

    const std::size_t piece = n / ranks;
    std::vector<T> mine(piece);
    world.reduce_scatter(stream, std::span(in).first(piece * ranks), mine, op);
    CHECK(equal_bits(mine, std::span(expected).subspan(self * piece, piece)));

    // All that is left goes to the last rank.
    std::vector<std::size_t> counts(ranks, piece / 2);
    counts.back() = n - (ranks - 1) * (piece / 2);
    mine.resize(counts[self]);
    world.reduce_scatter_v(stream, in, mine, counts, op);
    CHECK(equal_bits(mine, std::span(expected).subspan(self * (piece / 2), counts[self])));
  }
}

}  // namespace smp::testing
