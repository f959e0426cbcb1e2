// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the order in which units are used says about their blocks: what is in use at once, and when it is needed next.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <smp/error.hpp>

namespace smp {

/// One use of a unit, in the order of a step: from its own place in the order until it is left.
struct GatherUse {
  int unit = 0;   ///< which
  int until = 0;  ///< how many uses have begun when it is left; those that begin in between are inside of it
};

/// Lists of lists in one array.
struct GatherLists {
  std::vector<std::size_t> begin;  ///< of each list; one more than lists
  std::vector<int> items;          ///< of all lists

  /// List `i`.
  [[nodiscard]] constexpr std::span<const int> operator[](std::size_t i) const {
    return {items.data() + begin[i], begin[i + 1] - begin[i]};
  }
};

/// An order of uses that nest, as a planner needs it. Linear in the number of uses of blocks.
/// @tparam Size of the blocks
template <std::unsigned_integral Size>
class GatherUses {
 public:
  /// @throws ConfigError if a use ends behind the use it is inside of, or before it begins
  constexpr GatherUses(const std::vector<GatherUse>& order, const std::vector<std::vector<int>>& blocks_of_unit,
                       std::span<const Size> sizes)
      : order_(order), parent_(order.size(), -1), in_use_(order.size(), 0), inside_(order.size(), 0) {
    find_brought(blocks_of_unit, sizes);
    find_inside();
    find_uses(blocks_of_unit, sizes.size());
  }

  /// Number of uses.
  [[nodiscard]] constexpr std::size_t size() const noexcept { return order_.size(); }
  /// The use that `use` is inside of, or -1.
  [[nodiscard]] constexpr int parent(std::size_t use) const { return parent_[use]; }
  /// Number of uses that have begun when `use` ends.
  [[nodiscard]] constexpr std::size_t until(std::size_t use) const {
    return static_cast<std::size_t>(order_[use].until);
  }
  /// The blocks that `use` brings into use: those of its unit that no use around it has.
  [[nodiscard]] constexpr std::span<const int> brought(std::size_t use) const { return brought_[use]; }
  /// The most that the uses inside of `use` bring into use at once.
  [[nodiscard]] constexpr std::size_t inside(std::size_t use) const { return inside_[use]; }
  /// The most that is in use at once.
  [[nodiscard]] constexpr std::size_t needed() const noexcept { return needed_; }
  /// Size of all blocks that are used, together.
  [[nodiscard]] constexpr std::size_t total() const noexcept { return total_; }
  /// The moment when `use` ends, in the order of these moments: inner uses end first. Never 0.
  [[nodiscard]] constexpr std::size_t end(std::size_t use) const { return until(use) * size() + (size() - use); }

  /// The first use of `block` behind `use`, or size(). `use` never decreases from call to call.
  [[nodiscard]] constexpr std::size_t next(int block, std::size_t use) {
    const auto b = static_cast<std::size_t>(block);
    const std::span<const int> uses = uses_[b];
    std::size_t& at = next_[b];
    while (at < uses.size() && static_cast<std::size_t>(uses[at]) <= use) ++at;
    return at < uses.size() ? static_cast<std::size_t>(uses[at]) : size();
  }

 private:
  constexpr void find_brought(const std::vector<std::vector<int>>& blocks_of_unit, std::span<const Size> sizes) {
    std::vector<char> used(sizes.size(), 0), ever(sizes.size(), 0);
    int around = -1;
    std::size_t in_use = 0;
    const auto mark = [&](std::size_t use, char now) {
      for (const int b : brought_[use]) used[static_cast<std::size_t>(b)] = now;
    };
    brought_.begin.push_back(0);
    for (std::size_t i = 0; i < size(); ++i) {
      while (around >= 0 && until(static_cast<std::size_t>(around)) <= i) {
        const auto left = static_cast<std::size_t>(around);
        mark(left, 0);
        around = parent_[left];
        in_use = around < 0 ? 0 : in_use_[static_cast<std::size_t>(around)];
      }
      const int latest = around < 0 ? static_cast<int>(size()) : order_[static_cast<std::size_t>(around)].until;
      if (order_[i].until <= static_cast<int>(i) || order_[i].until > latest) {
        throw ConfigError("use " + std::to_string(i) + " of a unit ends when " + std::to_string(order_[i].until) +
                          " uses have begun; expected from " + std::to_string(i + 1) + " to " + std::to_string(latest) +
                          ": uses nest");
      }
      for (const int b : blocks_of_unit[static_cast<std::size_t>(order_[i].unit)]) {
        const auto block = static_cast<std::size_t>(b);
        if (used[block] != 0) continue;
        used[block] = 1;
        in_use += sizes[block];
        if (ever[block] == 0) total_ += sizes[block];
        ever[block] = 1;
        brought_.items.push_back(b);
      }
      brought_.begin.push_back(brought_.items.size());
      in_use_[i] = in_use;
      needed_ = std::max(needed_, in_use);
      parent_[i] = around;
      around = static_cast<int>(i);
    }
  }

  /// Uses come before those inside of them.
  constexpr void find_inside() {
    std::vector<std::size_t> most(in_use_);
    for (std::size_t i = size(); i-- > 0;) {
      inside_[i] = most[i] - in_use_[i];
      if (parent_[i] < 0) continue;
      std::size_t& around = most[static_cast<std::size_t>(parent_[i])];
      around = std::max(around, most[i]);
    }
  }

  constexpr void find_uses(const std::vector<std::vector<int>>& blocks_of_unit, std::size_t blocks) {
    uses_.begin.assign(blocks + 1, 0);
    const auto each = [&](auto f) {
      for (std::size_t i = 0; i < size(); ++i) {
        for (const int b : blocks_of_unit[static_cast<std::size_t>(order_[i].unit)]) {
          f(static_cast<std::size_t>(b), static_cast<int>(i));
        }
      }
    };
    each([&](std::size_t block, int) { ++uses_.begin[block + 1]; });
    for (std::size_t b = 0; b < blocks; ++b) uses_.begin[b + 1] += uses_.begin[b];
    uses_.items.assign(uses_.begin[blocks], 0);
    next_ = uses_.begin;
    each([&](std::size_t block, int use) { uses_.items[next_[block]++] = use; });
    next_.assign(blocks, 0);
  }

  const std::vector<GatherUse>& order_;
  std::vector<int> parent_;          // by use
  std::vector<std::size_t> in_use_;  // by use: size of all blocks in use when it has begun
  std::vector<std::size_t> inside_;  // by use
  GatherLists brought_;              // by use
  GatherLists uses_;                 // by block, in order
  std::vector<std::size_t> next_;    // by block: place in its uses
  std::size_t needed_ = 0, total_ = 0;
};

}  // namespace smp
