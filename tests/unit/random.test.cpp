// Philox4x32-10 against the vectors published with Random123 (kat_vectors), by the compiler.
#include <cmath>
#include <cstddef>

#include <doctest/doctest.h>

#include <smp/random.hpp>

namespace {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;

constexpr Counter zeros{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u};
static_assert(smp::philox(Counter{}, Key{}) == zeros);

constexpr Counter all_ones{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
constexpr Counter ones{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu};
static_assert(smp::philox(all_ones, Key{0xffffffffu, 0xffffffffu}) == ones);

constexpr Counter pi_counter{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u};
constexpr Counter pi{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u};
static_assert(smp::philox(pi_counter, Key{0xa4093822u, 0x299f31d0u}) == pi);

// A position has one value, whatever is asked for before it; neighbours share a block.
constexpr smp::RandomStream stream{42, smp::stream_of("h.0.attn.c_attn.weight")};
static_assert(stream.bits(7) == smp::RandomStream{42, smp::stream_of("h.0.attn.c_attn.weight")}.bits(7));
static_assert(stream.bits(6) != stream.bits(7));
static_assert(smp::RandomStream{43, stream.stream}.bits(7) != stream.bits(7));
static_assert(smp::stream_of("") == 14695981039346656037u);

}  // namespace

TEST_CASE("uniform numbers are uniform: mean, variance and correlation of neighbours within five standard errors") {
  constexpr int n = 100000;
  double sum = 0, squares = 0, products = 0, last = 0.5;
  for (int i = 0; i < n; ++i) {
    const double u = stream.uniform(static_cast<std::uint64_t>(i));
    REQUIRE(u >= 0);
    REQUIRE(u < 1);
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
    products += (u - 0.5) * (last - 0.5);
    last = u;
  }
  const double root = std::sqrt(static_cast<double>(n));
  CHECK(std::abs(sum / n - 0.5) < 5 * std::sqrt(1.0 / 12) / root);
  CHECK(std::abs(squares / n - 1.0 / 12) < 5 * std::sqrt(1.0 / 180) / root);
  CHECK(std::abs(products / n) < 5 * (1.0 / 12) / root);
}

TEST_CASE("positions beyond 32 bits are positions of their own") {
  CHECK(stream.bits(std::uint64_t{1} << 33) != stream.bits(0));
  CHECK(stream.bits((std::uint64_t{1} << 33) + 1) != stream.bits(1));
}
