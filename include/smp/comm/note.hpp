// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The short messages in which ranks tell each other what they are about to do, and the boxes they arrive in. Posting
/// never waits, so that ranks can compare calls that do not match.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <smp/comm/agreement.hpp>

namespace smp::comm {

/// One such message. Crosses processes as bytes.
struct Note {
  /// What the sender is going to do with the receiver.
  enum class Kind : unsigned char {
    collective,  ///< take part in the operation of `signature`
    send,        ///< send it a message of `signature`
    recv,        ///< receive one from it
    fault        ///< throw `text`
  };

  Kind kind = Kind::collective;
  bool fused = false;          ///< the operation sends and receives at once
  std::uint64_t epoch = 0;     ///< faults that the sender has seen in this group
  std::uint64_t sequence = 0;  ///< collective operations that the sender has called in this group
  Signature signature{};       ///< without `file`, which points into the sender's memory
  std::array<char, 64> file{};
  std::array<char, 640> text{};

  /// Copies as much of `from` as fits.
  template <std::size_t N>
  static void put(std::array<char, N>& to, std::string_view from) noexcept {
    const std::size_t n = std::min(from.size(), N - 1);
    std::copy_n(from.begin(), n, to.begin());
    to[n] = '\0';
  }
  /// What `put` stored, whatever arrived.
  template <std::size_t N>
  [[nodiscard]] static std::string_view get(const std::array<char, N>& from) noexcept {
    return {from.data(), static_cast<std::size_t>(std::find(from.begin(), from.end(), '\0') - from.begin())};
  }
};

static_assert(std::is_trivially_copyable_v<Note>);

/// Boxes for notes between the ranks of a group.
template <class M>
concept Mailbox = requires(M& m, const Note& note, Note& out) {
  m.post(0, note);                           // to a rank: never waits
  { m.poll(0, out) } -> std::same_as<bool>;  // the next of a rank, if there is one
  m.pause();                                 // between two polls; throws if the job has ended
};

}  // namespace smp::comm
