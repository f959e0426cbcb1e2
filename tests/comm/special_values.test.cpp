// SPDX-License-Identifier: Apache-2.0
// Reductions where sums are not plain: 16-bit floats, NaN and infinity, zeros with a sign, integers that overflow.
// MPI has no 16-bit floating-point type; a library that hands these to MPI fails to find one, or sums in 16 bits.
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::BFloat16;
using smp::Float16;

constexpr std::array<int, 4> worlds{2, 3, 4, 8};

template <class T>
std::vector<T> numbers(std::initializer_list<double> values) {
  std::vector<T> result;
  for (const double v : values) result.push_back(rounded<T>(v));
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](T x, T y) { return bits(x) == bits(y); });
}

/// What the ranks get from `mine`; compared on every rank, so they have equal bits.
template <class T, class Op>
std::vector<T> reduced(World& world, const std::vector<T>& mine, Op op) {
  smp::HostStream stream;
  std::vector<T> result(mine.size());
  world.all_reduce(stream, mine, result, op);
  return result;
}

TEST_CASE("case 6: three ranks reduce 16-bit floats {1, 2, 3, 256, -0}, and a NaN and an infinity") {
  on_ranks({3}, [](World& world) {
    for_each_type(Types<BFloat16, Float16>(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const std::vector<T> mine = numbers<T>({1, 2, 3, 256, -0.0});
      CHECK(same_bits(reduced(world, mine, smp::sum), numbers<T>({3, 6, 9, 768, -0.0})));
      CHECK(same_bits(reduced(world, mine, smp::average), mine));
      CHECK(same_bits(reduced(world, mine, smp::maximum), mine));
      CHECK(same_bits(reduced(world, mine, smp::minimum), mine));

      const bool middle = world.rank() == 1;
      const std::vector<T> special = numbers<T>({middle ? std::nan("") : 1, middle ? HUGE_VAL : 1});
      const auto check_special = [&](const std::vector<T>& result) {
        CHECK(std::isnan(as_double(result[0])));
        CHECK(as_double(result[1]) == HUGE_VAL);
      };
      check_special(reduced(world, special, smp::sum));
      check_special(reduced(world, special, smp::average));
      check_special(reduced(world, special, smp::maximum));
    });
  });
}

TEST_CASE("a sum of 16-bit floats is rounded once, not after every rank") {
  on_ranks({3}, [](World& world) {
    // 256 + 1 is 256 in bf16, 2048 + 1 is 2048 in fp16; only the sum of all three can be told from them.
    const bool first = world.rank() == 0;
    CHECK(same_bits(reduced(world, numbers<BFloat16>({first ? 256. : 1.}), smp::sum), numbers<BFloat16>({258})));
    CHECK(same_bits(reduced(world, numbers<Float16>({first ? 2048. : 1.}), smp::sum), numbers<Float16>({2050})));
  });
}

TEST_CASE("case 23: an average of 16-bit floats neither overflows nor vanishes on the way") {
  on_ranks({8}, [](World& world) {
    const std::vector<Float16> mine = numbers<Float16>({10000, 65504, 0x1p-24, -0x1p-24});
    CHECK(same_bits(reduced(world, mine, smp::average), mine));
    const auto sum = reduced(world, mine, smp::sum);
    CHECK(std::isinf(as_double(sum[0])));  // 80000 is more than fp16 has: seen, not wrapped
    CHECK(as_double(sum[2]) == 0x1p-21);
  });
}

/// What each rank gets of the average over all 8, in two hops: reduce-scatter over 4 ranks, all-reduce over the 2 that
/// have the same piece then.
std::vector<Float16> averaged_in_two_hops(World& shards, World& replicas, const std::vector<Float16>& mine) {
  smp::HostStream stream;
  std::vector<Float16> piece(mine.size() / 4);
  shards.reduce_scatter(stream, mine, piece, smp::average, smp::Purpose::gradient);
  replicas.all_reduce(stream, piece, piece, smp::average, smp::Purpose::gradient);
  return piece;
}

TEST_CASE("case 23: sharded 16-bit gradients neither overflow nor vanish, and a norm of them is no 16-bit sum") {
  on_ranks({8}, [](World& world) {
    World shards = world.split(world.rank() / 4, world.rank(), "SHARD");
    World replicas = world.split(world.rank() % 4, world.rank(), "REPLICA");
    const double smallest = 5.9604644775390625e-8;
    for (const double x : {10000.0, smallest, -smallest, 65504.0, 0.0, -0.0}) {
      const std::vector<Float16> mine(8, Float16(static_cast<float>(x)));
      CHECK(same_bits(averaged_in_two_hops(shards, replicas, mine), numbers<Float16>({x, x})));
    }
    // Four elements of 5000, one on each rank of a shard group: each square is more than fp16 has.
    const double element = as_double(Float16(5000.0f));
    double squares = element * element;
    smp::HostStream stream;
    shards.all_reduce(stream, std::span(&squares, 1), std::span(&squares, 1), smp::sum, smp::Purpose::norm);
    CHECK(std::sqrt(squares) == 10000);
  });
}

TEST_CASE("case 23: -inf on one rank and +inf on another are an overflow on all, not a number that goes on") {
  on_ranks({8}, [](World& world) {
    World shards = world.split(world.rank() / 4, world.rank(), "SHARD");
    World replicas = world.split(world.rank() % 4, world.rank(), "REPLICA");
    const double inf = std::numeric_limits<double>::infinity();
    for (const int second : {1, 4, 7}) {  // in the shard group of the first, and in the other
      const double x = world.rank() == 0 ? -inf : world.rank() == second ? inf : 1;
      std::vector<Float16> mine = numbers<Float16>({1, 1, 1, 1, 1, x, 1, 1});
      const auto piece = averaged_in_two_hops(shards, replicas, mine);
      int overflow = 0;
      for (const Float16 value : piece) overflow += std::isfinite(as_double(value)) ? 0 : 1;
      CHECK(overflow == (world.rank() % 4 == 2 ? 1 : 0));  // who has element 5
      smp::HostStream stream;
      world.all_reduce(stream, std::span(&overflow, 1), std::span(&overflow, 1), smp::maximum, smp::Purpose::norm);
      CHECK(overflow == 1);
    }
  });
}

TEST_CASE("a NaN on any one rank is a NaN for all, at every place of the buffer") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Floats(), [&]<class T>() {
      CAPTURE(type_name<T>());
      for (const std::size_t n : {std::size_t{37}, std::size_t{20000}}) {
        std::vector<T> mine(n);
        for (std::size_t i = 0; i < n; ++i) {
          const bool is_nan = static_cast<int>(i) % world.size() == world.rank();
          mine[i] = rounded<T>(is_nan ? std::nan("") : static_cast<double>(i % 100) - 50);
        }
        for_each_reduction<T>([&](auto op) {
          for (const T x : reduced(world, mine, op)) {
            if (!std::isnan(as_double(x))) FAIL_CHECK("not a NaN");
          }
        });
      }
    });
  });
}

TEST_CASE("infinities propagate, and opposite ones sum to a NaN") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Floats(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const double inf = std::numeric_limits<double>::infinity();
      const bool first = world.rank() == 0;
      const bool last = world.rank() == world.size() - 1;
      const std::vector<T> mine = numbers<T>({last ? inf : 1, first ? -inf : 1, first ? inf : last ? -inf : 0});
      const auto sum = reduced(world, mine, smp::sum);
      const auto average = reduced(world, mine, smp::average);
      CHECK(as_double(sum[0]) == inf);
      CHECK(as_double(sum[1]) == -inf);
      CHECK(std::isnan(as_double(sum[2])));
      CHECK(as_double(average[0]) == inf);
      CHECK(std::isnan(as_double(average[2])));
      CHECK(same_bits(reduced(world, mine, smp::maximum), numbers<T>({inf, 1, inf})));
      CHECK(same_bits(reduced(world, mine, smp::minimum), numbers<T>({1, -inf, -inf})));
    });
  });
}

TEST_CASE("a sum of negative zeros is a negative zero") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Floats(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const bool first = world.rank() == 0;
      const std::vector<T> mine = numbers<T>({-0.0, first ? 0.0 : -0.0, 0.0});
      CHECK(same_bits(reduced(world, mine, smp::sum), numbers<T>({-0.0, 0.0, 0.0})));
      CHECK(same_bits(reduced(world, mine, smp::average), numbers<T>({-0.0, 0.0, 0.0})));
      CHECK(same_bits(reduced(world, numbers<T>({-0.0}), smp::maximum), numbers<T>({-0.0})));
    });
  });
}

TEST_CASE("subnormal sums are kept") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Types<float, double, Float16>(), [&]<class T>() {
      CAPTURE(type_name<T>());
      const double smallest = std::is_same_v<T, float> ? 0x1p-149 : std::is_same_v<T, double> ? 0x1p-1074 : 0x1p-24;
      const auto sum = reduced(world, numbers<T>({smallest}), smp::sum);
      CHECK(as_double(sum[0]) == world.size() * smallest);
    });
  });
}

TEST_CASE("sums of integers wrap around") {
  on_ranks(worlds, [](World& world) {
    for_each_type(Integers(), [&]<class T>() {
      CAPTURE(type_name<T>());
      using Limits = std::numeric_limits<T>;
      const std::vector<T> mine{world.rank() < 2 ? Limits::max() : T{0}, world.rank() < 2 ? Limits::min() : T{0},
                                world.rank() == 0 ? Limits::max() : T{1}};
      const auto sum = reduced(world, mine, smp::sum);
      CHECK(sum[0] == static_cast<T>(-2));
      CHECK(sum[1] == T{0});
      CHECK(sum[2] ==
            static_cast<T>(static_cast<std::uint64_t>(Limits::min()) + static_cast<std::uint64_t>(world.size()) - 2));
    });
  });
}

TEST_CASE("64-bit integers keep what a double would round") {
  on_ranks(worlds, [](World& world) {
    const std::int64_t big = (std::int64_t{1} << 53) + world.rank();
    CHECK(reduced(world, std::vector<std::int64_t>{big}, smp::maximum)[0] ==
          (std::int64_t{1} << 53) + world.size() - 1);
    CHECK(reduced(world, std::vector<std::int64_t>{-big}, smp::minimum)[0] ==
          -(std::int64_t{1} << 53) - world.size() + 1);
    const std::uint64_t high = std::numeric_limits<std::uint64_t>::max() - static_cast<std::uint64_t>(world.rank());
    CHECK(reduced(world, std::vector<std::uint64_t>{high}, smp::maximum)[0] ==
          std::numeric_limits<std::uint64_t>::max());
  });
}

}  // namespace
