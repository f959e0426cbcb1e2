// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Cuts a message whose size needs 64 bits into messages that a 32-bit count can state.

#include <cstddef>
#include <cstdint>
#include <limits>

namespace smp::comm {

/// The largest count that MPI-3 functions take.
inline constexpr std::size_t max_mpi_count = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());

/// A piece of a message: where it begins, in bytes, and how many bytes it has.
struct Chunk {
  std::size_t offset = 0;  ///< bytes before the piece
  std::size_t bytes = 0;   ///< size of the piece
};

/// The pieces of a message of `total` bytes, none larger than `limit`; an empty message is one empty piece.
class Chunks {
 public:
  /// Cuts `total` bytes into pieces of `limit` bytes, the last being the rest.
  constexpr Chunks(std::size_t total, std::size_t limit = max_mpi_count) noexcept : total_(total), limit_(limit) {}

  /// Number of pieces, at least 1.
  [[nodiscard]] constexpr std::size_t size() const noexcept {
    return total_ == 0 ? 1 : total_ / limit_ + (total_ % limit_ != 0 ? 1 : 0);
  }

  /// Piece `i`.
  [[nodiscard]] constexpr Chunk operator[](std::size_t i) const noexcept {
    const std::size_t offset = i * limit_;
    const std::size_t rest = total_ - offset;
    return {offset, rest < limit_ ? rest : limit_};
  }

 private:
  std::size_t total_;
  std::size_t limit_;
};

}  // namespace smp::comm
