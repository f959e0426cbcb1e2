// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Random numbers as a function of their position: element i of stream s is the same whoever computes it, so a rank can
/// make just its own part of an initial value or a dropout mask. Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel
/// Random Numbers: As Easy as 1, 2, 3, SC11, section 3.2), on host and device.

#include <array>
#include <cstdint>
#include <string_view>

namespace smp {

/// The ten-round Philox bijection: 128 random bits for each counter and key.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key[0] += 0x9E3779B9u;  // the golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

/// A stream of random numbers, each at a position of 64 bits. Streams differ by seed and by number: the hash of a
/// parameter's name, or the number of a dropout layer and step.
struct RandomStream {
  std::uint64_t seed = 0;    ///< of the run
  std::uint64_t stream = 0;  ///< within the run

  /// 64 random bits.
  [[nodiscard]] constexpr std::uint64_t bits(std::uint64_t position) const noexcept {
    const std::array<std::uint32_t, 4> r = block(position / 2);
    const std::size_t half = position % 2 * 2;
    return (std::uint64_t{r[half + 1]} << 32) | r[half];
  }

  /// Uniform in [0, 1), with 53 bits.
  [[nodiscard]] constexpr double uniform(std::uint64_t position) const noexcept {
    return static_cast<double>(bits(position) >> 11) * 0x1p-53;
  }

  /// The 128 bits at the positions 2 * index and 2 * index + 1, for whoever needs many.
  [[nodiscard]] constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const noexcept {
    return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                   static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                  {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  }
};

/// A place in a model that draws random numbers: a dropout. A module lists it in `fields()`, and the layout gives it
/// the stream of its path, so that two places never draw the same numbers, whatever runs when and on which rank.
struct RandomSite {
  std::uint64_t stream = 0;  ///< of the place
};

/// What is being computed, as far as random numbers depend on it. The same numbers are drawn when a forward pass is
/// repeated, and for any cut of a batch into micro-batches and ranks.
struct RandomPosition {
  std::uint64_t step = 0;          ///< of the optimizer
  std::uint64_t first_sample = 0;  ///< number, in the global batch, of the first sample of the micro-batch
  std::uint64_t part = 0;          ///< which of the slices of rows, consecutive in memory, of these samples
  std::uint64_t parts = 1;         ///< slices of rows; 1: all rows are here
};

/// The number of the stream that belongs to a name: FNV-1a, 64 bits.
[[nodiscard]] constexpr std::uint64_t stream_of(std::string_view name) noexcept {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace smp
