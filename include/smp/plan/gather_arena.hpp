// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Storage of a fixed size that blocks come into and go out of: where there is room, and who was there before.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace smp {

/// A range of storage, and who has it, or who had it.
struct ArenaSpan {
  std::size_t begin = 0;  ///< first
  std::size_t end = 0;    ///< behind the last
  int block = -1;         ///< whose
  std::size_t left = 0;   ///< when its last reader left; 0: nobody has read it
};

/// Puts spans in the order of their begins.
constexpr void sort_by_begin(std::vector<ArenaSpan>& spans) {
  std::sort(spans.begin(), spans.end(), [](const ArenaSpan& a, const ArenaSpan& b) { return a.begin < b.begin; });
}

/// Most that fits into one piece of [0, capacity) beside `taken`, which is in order.
[[nodiscard]] constexpr std::size_t largest_gap(const std::vector<ArenaSpan>& taken, std::size_t capacity) {
  std::size_t largest = 0, behind = 0;
  for (const ArenaSpan& span : taken) {
    if (span.begin > behind) largest = std::max(largest, span.begin - behind);
    behind = std::max(behind, span.end);
  }
  return std::max(largest, capacity - behind);
}

/// Blocks by address. All its searches go over the blocks that are here, or are binary.
/// @tparam Size of the blocks
template <std::unsigned_integral Size>
class GatherArena {
 public:
  static constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();  ///< no place
  static constexpr std::size_t free = std::numeric_limits<std::size_t>::max();     ///< worth of a place without blocks

  /// Room for `capacity`, empty.
  constexpr explicit GatherArena(Size capacity) : capacity_(capacity) {}

  /// The lowest of the best places for `size`. A place is worth as much as the least of the blocks that must go; only
  /// places worth more than `least` count. Every best place may be moved down to the end of a block: those are tried.
  /// @param worth of a block; those in use: nothing
  /// @param accept if a place, given by its begin, will do
  template <class Worth, class Accept>
  [[nodiscard]] constexpr std::size_t find(std::size_t size, std::size_t least, Worth worth, Accept accept) const {
    std::size_t best = nowhere;
    for (std::size_t k = 0; k <= here_.size();) {
      const std::size_t begin = k == 0 ? 0 : here_[k - 1].end;
      if (size > capacity_ - begin) break;
      std::size_t least_here = free, next = k + 1;
      for (std::size_t m = k; m < here_.size() && here_[m].begin < begin + size; ++m) {
        least_here = std::min(least_here, worth(here_[m].block));
        if (least_here <= least) {
          next = m + 1;  // no place with this block is better
          break;
        }
      }
      if (least_here > least && accept(begin)) {
        best = begin;
        least = least_here;
        if (least == free) break;
      }
      k = next;
    }
    return best;
  }

  /// The blocks that have any of [begin, end).
  [[nodiscard]] constexpr std::span<const ArenaSpan> overlapping(std::size_t begin, std::size_t end) const {
    return overlapping(here_, begin, end);
  }

  /// The one that was left last among all that had any of [begin, end) and have gone; block -1: nobody has read it.
  [[nodiscard]] constexpr ArenaSpan last_reader(std::size_t begin, std::size_t end) const {
    ArenaSpan last;
    for (const ArenaSpan& span : overlapping(past_, begin, end)) {
      if (span.left > last.left) last = span;
    }
    return last;
  }

  /// `span.block` takes a place where no block is. An empty one takes none.
  constexpr void put(const ArenaSpan& span) {
    if (span.begin == span.end) return;
    here_.insert(first_behind(here_, span.begin), span);
    most_ = std::max(most_, span.end);
  }

  /// The block that is at `span` goes. Its last reader left at `span.left`, 0 if nobody has read it here.
  constexpr void remove(const ArenaSpan& span) {
    if (span.begin == span.end) return;
    here_.erase(first_behind(here_, span.begin));
    if (span.left != 0) write_past(span);
  }

  /// End of what was ever taken.
  [[nodiscard]] constexpr std::size_t most() const noexcept { return most_; }
  /// Its size.
  [[nodiscard]] constexpr std::size_t capacity() const noexcept { return capacity_; }

 private:
  using Spans = std::vector<ArenaSpan>;

  /// The first that begins at `begin` or behind.
  [[nodiscard]] static constexpr Spans::iterator first_behind(Spans& spans, std::size_t begin) {
    return std::lower_bound(spans.begin(), spans.end(), begin,
                            [](const ArenaSpan& s, std::size_t at) { return s.begin < at; });
  }
  [[nodiscard]] static constexpr std::span<const ArenaSpan> overlapping(const Spans& spans, std::size_t begin,
                                                                        std::size_t end) {
    const auto before = [](const ArenaSpan& s, std::size_t at) { return s.end <= at; };
    const auto first = std::lower_bound(spans.begin(), spans.end(), begin, before);
    auto last = first;
    while (last != spans.end() && last->begin < end) ++last;
    return {first, last};
  }

  /// What was read later hides what was read before.
  constexpr void write_past(const ArenaSpan& span) {
    const std::span<const ArenaSpan> hidden = overlapping(past_, span.begin, span.end);
    Spans now;
    if (!hidden.empty() && hidden.front().begin < span.begin) {
      now.push_back(hidden.front());
      now.back().end = span.begin;
    }
    now.push_back(span);
    if (!hidden.empty() && hidden.back().end > span.end) {
      now.push_back(hidden.back());
      now.back().begin = span.end;
    }
    const auto at = past_.begin() + (hidden.data() - past_.data());
    const auto rest = past_.erase(at, at + static_cast<std::ptrdiff_t>(hidden.size()));
    past_.insert(rest, now.begin(), now.end());
  }

  Size capacity_;
  std::size_t most_ = 0;
  Spans here_;  // in order
  Spans past_;  // in order; of each place the one that was left last
};

}  // namespace smp
