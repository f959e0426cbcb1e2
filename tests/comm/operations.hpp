// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Every collective operation, held against what all ranks know of each other's inputs: the bodies of tests that run on
/// several communicators.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/communicator.hpp>

#include "comm/typed_calls.hpp"
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

/// The operations of one world on elements of one type, each held against the small integers of all ranks. Every check
/// also looks at the bytes beside the output and at the input.
template <class W>
class OperationsOn {
 public:
  /// @param mode the stream that operations are enqueued in
  OperationsOn(W& world, InPlace choice, const MoveCalls<W>& type, HostStream::Mode mode = HostStream::Mode::at_once)
      : world_(world),
        type_(type),
        stream_(mode),
        ranks_(static_cast<std::size_t>(world.size())),
        in_place_(in_place(choice, world.rank())) {
    for (int r = 0; r < world.size(); ++r) inputs_.push_back(type.integers(r));
  }

  void all_reduce(const ReductionCalls<W>& calls, std::size_t n) {
    Guarded in(n, type_.bytes), out(n, type_.bytes);
    mine().fill(in.bytes());
    Guarded& target = in_place_ ? in : out;
    calls.all_reduce(world_, stream_, in.bytes(), target.bytes());
    stream_.synchronize();
    CHECK(calls.reduced_integers(world_.size()).matches(target.bytes()));
    unchanged(in, out);
  }

  void reduce(const ReductionCalls<W>& calls, std::size_t n, int root) {
    Guarded in(n, type_.bytes), out(n, type_.bytes);
    mine().fill(in.bytes());
    Guarded& target = in_place_ ? in : out;
    calls.reduce(world_, stream_, in.bytes(), target.bytes(), root);
    stream_.synchronize();
    if (world_.rank() == root) {
      CHECK(calls.reduced_integers(world_.size()).matches(target.bytes()));
      unchanged(in, out);
    } else {
      CHECK((mine().matches(in.bytes()) && in.intact() && out.untouched()));
    }
  }

  void reduce_scatter(const ReductionCalls<W>& calls, std::size_t n) {
    const std::vector<std::size_t> equal(ranks_, n);
    scatter(calls, equal, false);
  }

  void reduce_scatter_v(const ReductionCalls<W>& calls, Counts counts) { scatter(calls, counts, true); }

  void all_gather(std::size_t n) {
    const std::vector<std::size_t> equal(ranks_, n);
    gather(equal, false);
  }

  void all_gather_v(Counts counts) { gather(counts, true); }

  void all_to_all(std::size_t n) {
    Guarded in(ranks_ * n, type_.bytes), out(ranks_ * n, type_.bytes);
    mine().fill(in.bytes());
    Guarded& target = in_place_ ? in : out;
    type_.all_to_all(world_, stream_, in.bytes(), target.bytes());
    stream_.synchronize();
    bool right = true;
    for (std::size_t r = 0; r < ranks_; ++r) right = right && inputs_[r].matches(part(target, r * n, n), self() * n);
    CHECK(right);
    unchanged(in, out);
  }

  void broadcast(std::size_t n, int root) {
    Guarded buffer(n, type_.bytes);
    mine().fill(buffer.bytes());
    type_.broadcast(world_, stream_, buffer.bytes(), root);
    stream_.synchronize();
    CHECK(inputs_[static_cast<std::size_t>(root)].matches(buffer.bytes()));
    CHECK(buffer.intact());
  }

 private:
  [[nodiscard]] const Pattern& mine() const { return inputs_[self()]; }
  [[nodiscard]] std::size_t self() const { return static_cast<std::size_t>(world_.rank()); }
  [[nodiscard]] OutBytes part(Guarded& buffer, std::size_t first, std::size_t n) const {
    return buffer.bytes().subspan(first * type_.bytes, n * type_.bytes);
  }

  void unchanged(Guarded& in, Guarded& out) {
    CHECK((in.intact() && out.intact()));
    CHECK((in_place_ ? out.untouched() : mine().matches(in.bytes())));
  }

  static std::size_t before(Counts counts, std::size_t rank) {
    std::size_t sum = 0;
    for (const std::size_t n : counts.first(rank)) sum += n;
    return sum;
  }

  void scatter(const ReductionCalls<W>& calls, Counts counts, bool v) {
    const std::size_t first = before(counts, self());
    const std::size_t own = counts[self()];
    const std::size_t whole = before(counts, ranks_);
    Guarded in(whole, type_.bytes), out(own, type_.bytes);
    mine().fill(in.bytes());
    const OutBytes target = in_place_ ? part(in, first, own) : out.bytes();
    if (v) {
      calls.reduce_scatter_v(world_, stream_, in.bytes(), target, counts);
    } else {
      calls.reduce_scatter(world_, stream_, in.bytes(), target);
    }
    stream_.synchronize();
    CHECK(calls.reduced_integers(world_.size()).matches(target, first));
    CHECK((in.intact() && out.intact()));
    CHECK(mine().matches(part(in, 0, first)));
    CHECK(mine().matches(part(in, first + own, whole - first - own), first + own));
    CHECK((in_place_ ? out.untouched() : mine().matches(part(in, first, own), first)));
  }

  void gather(Counts counts, bool v) {
    const std::size_t own = counts[self()];
    Guarded in(own, type_.bytes), out(before(counts, ranks_), type_.bytes);
    const OutBytes source = in_place_ ? part(out, before(counts, self()), own) : in.bytes();
    mine().fill(source);
    if (v) {
      type_.all_gather_v(world_, stream_, source, out.bytes(), counts);
    } else {
      type_.all_gather(world_, stream_, source, out.bytes());
    }
    stream_.synchronize();
    bool right = true;
    for (std::size_t r = 0; r < ranks_; ++r) {
      right = right && inputs_[r].matches(part(out, before(counts, r), counts[r]));
    }
    CHECK(right);
    CHECK(mine().matches(source));
    CHECK((in.intact() && out.intact()));
  }

  W& world_;
  const MoveCalls<W>& type_;
  HostStream stream_;
  std::size_t ranks_;
  bool in_place_;
  std::vector<Pattern> inputs_;
};

/// What to say when a check fails.
template <class W>
std::string circumstances(const W& world, const char* element, const char* reduction, std::size_t n, InPlace choice) {
  constexpr std::array<const char*, 3> places{"nobody", "everybody", "odd ranks"};
  return "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) + ", " + std::to_string(n) +
         " " + element + ", " + reduction + ", in place: " + places[static_cast<std::size_t>(choice)];
}

/// The reductions of one world, size and choice of buffers.
template <class W>
void check_reductions(W& world, InPlace choice, std::size_t n, const ReductionCalls<W>& calls,
                      HostStream::Mode mode = HostStream::Mode::at_once) {
  INFO(circumstances(world, calls.element, calls.reduction, n, choice));
  OperationsOn<W> on(world, choice, calls, mode);
  on.all_reduce(calls, n);
  on.reduce(calls, n, static_cast<int>(n % static_cast<std::size_t>(world.size())));
  on.reduce_scatter(calls, n);
  on.reduce_scatter_v(calls, uneven_counts(world.size(), n));
}

/// The operations that only move data, likewise.
template <class W>
void check_moves(W& world, InPlace choice, std::size_t n, const MoveCalls<W>& calls,
                 HostStream::Mode mode = HostStream::Mode::at_once) {
  INFO(circumstances(world, calls.element, "moved", n, choice));
  OperationsOn<W> on(world, choice, calls, mode);
  on.all_gather(n);
  on.all_gather_v(uneven_counts(world.size(), n));
  on.all_to_all(n);
  on.broadcast(n, static_cast<int>(n % static_cast<std::size_t>(world.size())));
}

/// Everything on elements of each type of the list, with each of `sizes`.
template <class W, class List = AllElements>
void check_operations(W& world, std::span<const std::size_t> sizes, List = {}) {
  for (const std::size_t n : sizes) {
    for (const InPlace choice : in_place_choices) {
      for (const auto& calls : all_moves<W, List>()) check_moves(world, choice, n, calls);
      for (const auto& calls : all_reductions<W, List>()) check_reductions(world, choice, n, calls);
    }
  }
}

}  // namespace smp::testing
