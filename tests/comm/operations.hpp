// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Every collective operation on one element type: the bodies of tests that run on several communicators.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>

#include "support/full.hpp"
#include "support/oracle.hpp"

namespace smp::testing {

/// Which ranks pass one buffer as input and output.
enum class InPlace { nobody, everybody, odd_ranks };
inline constexpr std::array in_place_choices{InPlace::nobody, InPlace::everybody, InPlace::odd_ranks};

inline bool in_place(InPlace choice, int rank) {
  return choice == InPlace::everybody || (choice == InPlace::odd_ranks && rank % 2 == 1);
}

/// Pieces of different sizes, some of them empty, `n` elements on average and more.
inline std::vector<std::size_t> uneven_counts(int ranks, std::size_t n) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) {
    const auto factor = static_cast<std::size_t>((r + ranks) % 3);
    counts.push_back(factor * n + (factor == 2 ? 1 : 0));
  }
  return counts;
}

/// The collective operations of one world on elements `T`, each held against the small integers of all ranks. Every
/// check also looks at the bytes beside the output and at the input.
template <class T, class W>
class OperationsOn {
 public:
  OperationsOn(W& world, InPlace choice, HostStream::Mode mode = HostStream::Mode::at_once)
      : world_(world),
        stream_(mode),
        ranks_(static_cast<std::size_t>(world.size())),
        in_place_(in_place(choice, world.rank())) {
    for (int r = 0; r < world.size(); ++r) inputs_.push_back(small_integers<T>(r));
  }

  template <class Op>
  void all_reduce(Op op, const Pattern<T>& expected, std::size_t n) {
    Guarded<T> in(n), out(n);
    mine().fill(in.span());
    Guarded<T>& target = in_place_ ? in : out;
    world_.all_reduce(stream_, in.span(), target.span(), op);
    stream_.synchronize();
    CHECK(expected.matches(target.span()));
    unchanged(in, out);
  }

  template <class Op>
  void reduce(Op op, const Pattern<T>& expected, std::size_t n, int root) {
    Guarded<T> in(n), out(n);
    mine().fill(in.span());
    Guarded<T>& target = in_place_ ? in : out;
    world_.reduce(stream_, in.span(), target.span(), op, root);
    stream_.synchronize();
    if (world_.rank() == root) {
      CHECK(expected.matches(target.span()));
      unchanged(in, out);
    } else {
      CHECK((mine().matches(in.span()) && in.intact() && out.untouched()));
    }
  }

  template <class Op>
  void reduce_scatter(Op op, const Pattern<T>& expected, std::size_t n) {
    const std::vector<std::size_t> equal(ranks_, n);
    scatter(expected, equal, [&](auto in, auto out) { world_.reduce_scatter(stream_, in, out, op); });
  }

  template <class Op>
  void reduce_scatter_v(Op op, const Pattern<T>& expected, std::span<const std::size_t> counts) {
    scatter(expected, counts, [&](auto in, auto out) { world_.reduce_scatter_v(stream_, in, out, counts, op); });
  }

  void all_gather(std::size_t n) {
    const std::vector<std::size_t> equal(ranks_, n);
    gather(equal, [&](auto in, auto out) { world_.all_gather(stream_, in, out); });
  }

  void all_gather_v(std::span<const std::size_t> counts) {
    gather(counts, [&](auto in, auto out) { world_.all_gather_v(stream_, in, out, counts); });
  }

  void all_to_all(std::size_t n) {
    Guarded<T> in(ranks_ * n), out(ranks_ * n);
    mine().fill(in.span());
    Guarded<T>& target = in_place_ ? in : out;
    world_.all_to_all(stream_, in.span(), target.span());
    stream_.synchronize();
    bool right = true;
    for (std::size_t r = 0; r < ranks_; ++r) {
      right = right && inputs_[r].matches(target.span().subspan(r * n, n), self() * n);
    }
    CHECK(right);
    unchanged(in, out);
  }

  void broadcast(std::size_t n, int root) {
    Guarded<T> buffer(n);
    mine().fill(buffer.span());
    world_.broadcast(stream_, buffer.span(), root);
    stream_.synchronize();
    CHECK(inputs_[static_cast<std::size_t>(root)].matches(buffer.span()));
    CHECK(buffer.intact());
  }

 private:
  [[nodiscard]] const Pattern<T>& mine() const { return inputs_[self()]; }
  [[nodiscard]] std::size_t self() const { return static_cast<std::size_t>(world_.rank()); }

  void unchanged(Guarded<T>& in, Guarded<T>& out) {
    CHECK((in.intact() && out.intact()));
    CHECK(in_place_ ? out.untouched() : mine().matches(in.span()));
  }

  static std::size_t before(std::span<const std::size_t> counts, std::size_t rank) {
    std::size_t sum = 0;
    for (const std::size_t n : counts.first(rank)) sum += n;
    return sum;
  }

  template <class Call>
  void scatter(const Pattern<T>& expected, std::span<const std::size_t> counts, Call call) {
    const std::size_t first = before(counts, self());
    const std::size_t own = counts[self()];
    const std::size_t whole = before(counts, ranks_);
    Guarded<T> in(whole), out(own);
    mine().fill(in.span());
    const std::span<T> target = in_place_ ? in.span().subspan(first, own) : out.span();
    call(in.span(), target);
    stream_.synchronize();
    CHECK(expected.matches(target, first));
    CHECK((in.intact() && out.intact()));
    CHECK(mine().matches(in.span().first(first)));
    CHECK(mine().matches(in.span().subspan(first + own), first + own));
    CHECK(in_place_ ? out.untouched() : mine().matches(in.span().subspan(first, own), first));
  }

  template <class Call>
  void gather(std::span<const std::size_t> counts, Call call) {
    const std::size_t own = counts[self()];
    Guarded<T> in(own), out(before(counts, ranks_));
    const std::span<T> source = in_place_ ? out.span().subspan(before(counts, self()), own) : in.span();
    mine().fill(source);
    call(std::span<const T>(source), out.span());
    stream_.synchronize();
    bool right = true;
    for (std::size_t r = 0; r < ranks_; ++r) {
      right = right && inputs_[r].matches(out.span().subspan(before(counts, r), counts[r]));
    }
    CHECK(right);
    CHECK(mine().matches(source));
    CHECK((in.intact() && out.intact()));
  }

  W& world_;
  HostStream stream_;
  std::size_t ranks_;
  bool in_place_;
  std::vector<Pattern<T>> inputs_;
};

/// The reductions of one world, size and choice of buffers under `op`.
template <class T, class W, class Op>
void check_reductions(W& world, InPlace choice, std::size_t n, Op op,
                      HostStream::Mode mode = HostStream::Mode::at_once) {
  OperationsOn<T, W> on(world, choice, mode);
  const Pattern<T> expected = reduced_integers<Op, T>(world.size());
  const int root = static_cast<int>(n % static_cast<std::size_t>(world.size()));
  on.all_reduce(op, expected, n);
  on.reduce(op, expected, n, root);
  on.reduce_scatter(op, expected, n);
  on.reduce_scatter_v(op, expected, uneven_counts(world.size(), n));
}

/// The operations that only move data, likewise.
template <class T, class W>
void check_moves(W& world, InPlace choice, std::size_t n, HostStream::Mode mode = HostStream::Mode::at_once) {
  OperationsOn<T, W> on(world, choice, mode);
  on.all_gather(n);
  on.all_gather_v(uneven_counts(world.size(), n));
  on.all_to_all(n);
  on.broadcast(n, static_cast<int>(n % static_cast<std::size_t>(world.size())));
}

/// Everything on elements `T` with each of `sizes`.
template <class T, class W>
void check_operations(W& world, std::span<const std::size_t> sizes) {
  for (const std::size_t n : sizes) {
    for (const InPlace choice : in_place_choices) {
      CAPTURE(world.size());
      CAPTURE(world.rank());
      CAPTURE(type_name<T>());
      CAPTURE(n);
      CAPTURE(static_cast<int>(choice));
      check_moves<T>(world, choice, n);
      for_each_reduction<T>([&](auto op) { check_reductions<T>(world, choice, n, op); });
    }
  }
}

}  // namespace smp::testing
