// SPDX-License-Identifier: Apache-2.0
// The 16-bit formats against definitions computed in double: every bit pattern, and rounding at and around every
// boundary between two neighbours.
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include <doctest/doctest.h>

#include <smp/float16.hpp>

namespace {

using smp::BFloat16;
using smp::Float16;

/// A binary format of 16 bits by its definition in IEEE 754: widths of the fields, nothing else.
template <int ExponentBits>
struct Format {
  static constexpr int fraction_bits = 15 - ExponentBits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int top_exponent = (1 << ExponentBits) - 1;

  static double value(std::uint16_t bits) {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits >> fraction_bits) & top_exponent;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == top_exponent) {
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
    }
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }

  static bool is_nan(std::uint16_t bits) { return std::isnan(value(bits)); }
};

template <class T>
using FormatOf = Format<std::is_same_v<T, Float16> ? 5 : 8>;

template <class T>
T from_bits(std::uint16_t bits) {
  T result;
  result.bits = bits;
  return result;
}

/// `x` rounded to nearest, ties to even, by comparing it with both neighbours in double, which is exact here.
template <class T>
std::uint16_t nearest(float x) {
  using F = FormatOf<T>;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double magnitude = std::abs(static_cast<double>(x));
  // Positive bit patterns are in the order of their values; infinity stands for the next number after the largest.
  std::uint16_t low = 0;
  std::uint16_t high = static_cast<std::uint16_t>(F::top_exponent << F::fraction_bits);
  const double beyond_largest = std::ldexp(1.0, F::top_exponent - F::bias);
  const auto value = [&](std::uint16_t b) {
    return b == F::top_exponent << F::fraction_bits ? beyond_largest : F::value(b);
  };
  if (magnitude >= beyond_largest) return sign | high;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value(low);
  const double above = value(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

template <class T>
void check_rounding(float x) {
  const std::uint16_t found = T(x).bits;
  const std::uint16_t expected = nearest<T>(x);
  if (found != expected) FAIL_CHECK(x, " became ", found, ", expected ", expected);
}

TEST_CASE_TEMPLATE("all 65536 bit patterns have the value of their definition and survive a round trip", T, Float16,
                   BFloat16) {
  using F = FormatOf<T>;
  int nans = 0;
  for (unsigned b = 0; b <= 0xffff; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const auto value = static_cast<float>(from_bits<T>(bits));
    if (F::is_nan(bits)) {
      ++nans;
      // A NaN keeps its sign and payload and becomes quiet.
      const auto quiet = static_cast<std::uint16_t>(bits | 1 << (F::fraction_bits - 1));
      if (!std::isnan(value) || T(value).bits != quiet) FAIL_CHECK("NaN ", bits, " became ", T(value).bits);
    } else if (static_cast<double>(value) != F::value(bits) || std::signbit(value) != (bits >> 15 != 0) ||
               T(value).bits != bits) {
      FAIL_CHECK("bits ", bits, " became ", value, " and then ", T(value).bits);
    }
  }
  CHECK(nans == 2 * ((1 << F::fraction_bits) - 1));
}

TEST_CASE_TEMPLATE("ties between all neighbours go to the even one, what is beside a tie to the nearer", T, Float16,
                   BFloat16) {
  using F = FormatOf<T>;
  const unsigned infinity = static_cast<unsigned>(F::top_exponent) << F::fraction_bits;
  for (unsigned b = 0; b < infinity; ++b) {
    const double here = F::value(static_cast<std::uint16_t>(b));
    const double next =
        b + 1 == infinity ? std::ldexp(1.0, F::top_exponent - F::bias) : F::value(static_cast<std::uint16_t>(b + 1));
    const auto tie = static_cast<float>(here + (next - here) / 2);
    if (static_cast<double>(tie) != here + (next - here) / 2) {
      FAIL_CHECK("the tie after ", b, " is no float");  // then the next line would test nothing
    }
    for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, INFINITY),
                          std::nextafter(static_cast<float>(here), INFINITY)}) {
      check_rounding<T>(x);
      check_rounding<T>(-x);
    }
  }
}

TEST_CASE_TEMPLATE("a dense sample of all floats is rounded to the nearest", T, Float16, BFloat16) {
  for (std::uint64_t b = 0; b < std::uint64_t{1} << 32; b += 9973) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(b));
    if (!std::isnan(x)) check_rounding<T>(x);
  }
}

TEST_CASE("values at the limits") {
  CHECK(Float16(65504.0f).bits == 0x7bff);
  CHECK(Float16(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(Float16(65520.0f).bits == 0x7c00);
  CHECK(Float16(-65520.0f).bits == 0xfc00);
  CHECK(Float16(0x1p-24f).bits == 1);
  CHECK(Float16(0x1p-25f).bits == 0);
  CHECK(Float16(std::nextafter(0x1p-25f, 1.0f)).bits == 1);
  CHECK(Float16(-0.0f).bits == 0x8000);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(BFloat16(0x1.fep127f).bits == 0x7f7f);
  CHECK(BFloat16(0x1p-133f).bits == 1);
  CHECK(BFloat16(-0.0f).bits == 0x8000);
  CHECK(BFloat16(256.0f + 1.0f).bits == BFloat16(256.0f).bits);
  CHECK(BFloat16(259.0f).bits == BFloat16(260.0f).bits);
}

TEST_CASE("comparison is that of the values") {
  CHECK(Float16(0.0f) == Float16(-0.0f));
  CHECK(BFloat16(0.0f) == BFloat16(-0.0f));
  CHECK(Float16(1.0f) != Float16(1.001f));
  CHECK(Float16(std::nanf("")) != Float16(std::nanf("")));
  CHECK(BFloat16(std::nanf("")) != BFloat16(std::nanf("")));
}

TEST_CASE("the compiler computes the same") {
  static_assert(Float16(1.0f).bits == 0x3c00 && BFloat16(1.0f).bits == 0x3f80);
  static_assert(static_cast<float>(Float16(0x1p-24f)) == 0x1p-24f);
  static_assert(static_cast<float>(Float16(3.140625f)) == 3.140625f);
  static_assert(Float16(1e6f).bits == 0x7c00 && BFloat16(1e38f) == BFloat16(1e38f));
}

}  // namespace
