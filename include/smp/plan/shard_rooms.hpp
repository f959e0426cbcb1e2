// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How blocks are cut into shards, and how gradients come from the units that compute them to the shards: what has room
/// at once, and how often it is reduced.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <smp/plan/model_sizes.hpp>

namespace smp {

/// Shards of all blocks, in the order in which they follow each other.
struct ShardSizes {
  std::size_t ranks = 1;             ///< that share a block
  std::size_t widest = 1;            ///< bytes of the widest element
  std::vector<std::size_t> size{};   ///< by block: elements of a shard, 0 if it is whole on every rank
  std::vector<std::size_t> begin{};  ///< by block: bytes before its shard, among those of its type
  std::vector<std::size_t> bytes{};  ///< by block: of its shard
  std::vector<std::size_t> type{};   ///< by block: bytes of an element
  std::vector<int> order{};          ///< blocks, by type and then as forward uses them; frozen ones last

  /// Elements of the shard of a block.
  [[nodiscard]] constexpr std::size_t of(int block) const { return size[static_cast<std::size_t>(block)]; }
  /// Whether the shard of `b` follows that of `a`.
  [[nodiscard]] constexpr bool neighbours(int a, int b) const {
    const auto i = static_cast<std::size_t>(a), j = static_cast<std::size_t>(b);
    return type[i] == type[j] && begin[i] + bytes[i] == begin[j];
  }
  /// Bytes of a block of all shards, `element_bytes` each, as it is stored.
  [[nodiscard]] constexpr std::size_t footprint(int block, std::size_t element_bytes) const {
    return (of(block) * ranks * element_bytes + widest - 1) / widest * widest;
  }
};

/// Cuts all blocks that are not persistent, if there is more than one rank.
[[nodiscard]] constexpr ShardSizes cut_into_shards(const ModelSizes& model, std::size_t ranks) {
  ShardSizes shards;
  shards.ranks = ranks;
  for (const BlockSizes& b : model.blocks) {
    shards.widest = std::max(shards.widest, b.element_bytes);
    shards.size.push_back(b.persistent || ranks == 1 ? 0 : (b.elements() + ranks - 1) / ranks);
    shards.bytes.push_back(shards.size.back() * b.element_bytes);
    shards.type.push_back(b.element_bytes);
  }
  shards.begin.assign(model.blocks.size(), 0);
  for (const std::size_t type : {2U, 4U, 8U}) {
    std::size_t at = 0;
    for (const int block : blocks_in_order(model)) {
      const auto b = static_cast<std::size_t>(block);
      if (shards.type[b] != type) continue;
      shards.order.push_back(block);
      shards.begin[b] = at;
      at += shards.bytes[b];
    }
  }
  return shards;
}

/// Room for gradients that have not been reduced: a region for each depth of units that have units inside of them, and
/// two slots for the others, one of which is filled while the other is reduced.
class ShardRooms {
 public:
  /// @param bucket_bytes gradients that are reduced together; a larger unit goes alone
  constexpr ShardRooms(const ModelSizes& model, const ShardSizes& shards, std::size_t bucket_bytes)
      : model_(model), shards_(shards), owner_(model.blocks.size(), -1) {
    find_units();
    make_room(bucket_bytes);
  }

  /// Goes through the passes of a step, and counts.
  constexpr void run(const std::vector<UnitPass>& order) {
    std::vector<const UnitPass*> open;
    for (std::size_t i = 0; i <= order.size(); ++i) {
      while (!open.empty() && open.back()->use.until <= static_cast<int>(i)) {
        leave(open.back()->use.unit);
        open.pop_back();
      }
      if (i == order.size() || !order[i].backward) continue;
      open.push_back(&order[i]);
      enter(order[i].use.unit);
    }
  }

  /// Bytes of the room.
  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return room_; }
  /// Reduce-scatters.
  [[nodiscard]] constexpr std::size_t calls() const noexcept { return calls_; }
  /// Blocks that were reduced, each time.
  [[nodiscard]] constexpr std::size_t reductions() const noexcept { return reductions_; }
  /// Bytes of their shards.
  [[nodiscard]] constexpr std::size_t sent() const noexcept { return sent_; }

 private:
  [[nodiscard]] constexpr const std::vector<int>& trained(int unit) const {
    return trained_[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] constexpr const BlockSizes& block(int b) const { return model_.blocks[static_cast<std::size_t>(b)]; }
  [[nodiscard]] constexpr std::size_t footprint(int b) const { return shards_.footprint(b, block(b).gradient_bytes()); }
  [[nodiscard]] constexpr bool outer(int unit) const { return outer_[static_cast<std::size_t>(unit)] != 0; }
  [[nodiscard]] constexpr int parent(int unit) const { return model_.units[static_cast<std::size_t>(unit)].parent; }

  constexpr void find_units() {
    for (const UnitSizes& unit : model_.units) {
      trained_.emplace_back();
      for (const int b : unit.blocks) {
        if (!block(b).frozen && shards_.of(b) > 0) trained_.back().push_back(b);
      }
    }
    outer_.assign(model_.units.size(), 0);
    outer_.front() = 1;
    for (const UnitSizes& unit : model_.units) {
      if (unit.parent >= 0) outer_[static_cast<std::size_t>(unit.parent)] = 1;
    }
  }

  /// Bytes of a unit's gradients that no unit around it has room for.
  [[nodiscard]] constexpr std::size_t need(int unit) const {
    std::size_t total = 0;
    for (const int b : trained(unit)) {
      bool around = false;
      for (int up = parent(unit); up >= 0; up = parent(up)) {
        around = around || std::find(trained(up).begin(), trained(up).end(), b) != trained(up).end();
      }
      total += around ? 0 : footprint(b);
    }
    return total;
  }

  constexpr void make_room(std::size_t bucket_bytes) {
    std::size_t largest = 0, all = 0;  // the largest unit in a slot, everything that is in slots
    std::vector<std::size_t> regions;  // the largest unit with units inside, by depth
    for (int u = 0; u < static_cast<int>(model_.units.size()); ++u) {
      if (!outer(u)) {
        largest = std::max(largest, need(u));
        all += need(u);
        continue;
      }
      std::size_t depth = 0;
      for (int up = parent(u); up >= 0; up = parent(up)) ++depth;
      if (regions.size() <= depth) regions.resize(depth + 1, 0);
      regions[depth] = std::max(regions[depth], need(u));
    }
    std::size_t outer_bytes = 0;
    for (const std::size_t r : regions) outer_bytes += r;
    room_ = std::max(2 * std::max(std::min(bucket_bytes, all), largest), outer_bytes + largest);
    const std::size_t half = (room_ - outer_bytes) / 2 / shards_.widest * shards_.widest;
    two_slots_ = half >= largest;
    limit_ = std::min(bucket_bytes, two_slots_ ? half : largest);
  }

  [[nodiscard]] constexpr std::size_t missing(int unit) {
    std::size_t total = 0;
    for (const int b : trained(unit)) total += owner(b) < 0 ? footprint(b) : 0;
    return total;
  }

  /// Whether a block that `unit` uses, too, is in the slot that is filled.
  [[nodiscard]] constexpr bool is_collected(int unit) {
    const std::vector<int>& blocks = trained(unit);
    return std::any_of(blocks.begin(), blocks.end(), [&](int b) { return owner(b) >= 0 && !outer(owner(b)); });
  }

  constexpr void enter(int unit) {
    if (outer(unit) ? is_collected(unit) : filled_ + missing(unit) > limit_) flush();  // what it is tied to, too
    if (!outer(unit)) filled_ += missing(unit);
    for (const int b : trained(unit)) {
      if (owner(b) >= 0) continue;
      owner(b) = unit;
      if (!outer(unit)) bucket_.push_back(b);
    }
  }

  constexpr void leave(int unit) {
    if (!outer(unit)) {
      if (filled_ >= limit_) flush();
      return;
    }
    if (parent(unit) < 0) flush();  // a pass ends
    for (const int b : trained(unit)) {
      if (owner(b) != unit) continue;
      count(b);
      ++calls_;
      owner(b) = -1;
    }
  }

  /// What has been collected goes in one message, if there is room for it and it is of one type.
  constexpr void flush() {
    bool one_type = true;
    for (const int b : bucket_) {
      one_type = one_type && block(b).element_bytes == block(bucket_.front()).element_bytes;
      count(b);
      owner(b) = -1;
    }
    const bool together = bucket_.size() > 1 && two_slots_ && filled_ <= limit_ && one_type;
    calls_ += together ? 1 : bucket_.size();
    bucket_.clear();
    filled_ = 0;
  }

  constexpr int& owner(int b) { return owner_[static_cast<std::size_t>(b)]; }
  constexpr void count(int b) {
    ++reductions_;
    sent_ += shards_.of(b) * block(b).gradient_bytes();
  }

  const ModelSizes& model_;
  const ShardSizes& shards_;
  std::vector<std::vector<int>> trained_;  // by unit: blocks that are trained, and cut into shards
  std::vector<char> outer_;                // by unit: other units are inside of it
  std::vector<int> owner_;                 // by block: whose room it is in, while its gradient is computed; else -1
  std::vector<int> bucket_;                // in the slot that is filled
  std::size_t room_ = 0, limit_ = 0, filled_ = 0;
  bool two_slots_ = false;
  std::size_t calls_ = 0, reductions_ = 0, sent_ = 0;
};

}  // namespace smp
