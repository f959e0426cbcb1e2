// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The two 16-bit floating-point formats as storage types: values are converted to float, computed there, and rounded
/// back once. Branch-free conversions, so that loops over them vectorise. Needs no compiler or hardware support.

#include <bit>
#include <cstdint>

namespace smp {

/// bfloat16: the upper half of a float (8 exponent bits, 8 significant bits). Rounds to nearest, ties to even.
struct BFloat16 {
  std::uint16_t bits = 0;  ///< sign, exponent, significand

  BFloat16() = default;

  /// Rounds once; a NaN stays a (quiet) NaN, values beyond the largest finite one become infinite.
  constexpr explicit BFloat16(float value) noexcept {
    const auto b = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (b >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }

  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  friend constexpr bool operator==(BFloat16 a, BFloat16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

/// IEEE 754 binary16 (5 exponent bits, 11 significant bits, subnormals kept). Rounds to nearest, ties to even.
struct Float16 {
  std::uint16_t bits = 0;  ///< sign, exponent, significand

  Float16() = default;

  /// Rounds once; a NaN stays a (quiet) NaN, values from 65520 on become infinite.
  constexpr explicit Float16(float value) noexcept {
    const auto b = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (b >> 16) & 0x8000u;
    const std::uint32_t magnitude = b & 0x7fffffffu;
    // Normal results: rebias the exponent by 15 - 127 and round at bit 13.
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal results: adding 0.5 moves the last kept bit to bit 0 of the float, so the addition itself rounds.
    const float shifted = std::bit_cast<float>(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
    std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result;
    result = magnitude > 0x7f800000u ? (0x7e00u | ((magnitude >> 13) & 0x3ffu)) : result;
    bits = static_cast<std::uint16_t>(sign | result);
  }

  constexpr explicit operator float() const noexcept {
    const std::uint32_t sign = (static_cast<std::uint32_t>(bits) & 0x8000u) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(bits) & 0x7fffu;
    // Scaling by 2^112 rebiases the exponent and normalises subnormals in one multiplication.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const std::uint32_t special = 0x7f800000u | (magnitude << 13);
    const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
    return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
  }

  friend constexpr bool operator==(Float16 a, Float16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

}  // namespace smp
