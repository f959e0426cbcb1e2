// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Gradients from the backward that computes them to the shards that are updated: collected in the order of backward in
/// one of two slots, and reduce-scattered over the shard group when the bucket is full.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/device/memory.hpp>
#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_reduction.hpp>
#include <smp/parallel/shard_storage.hpp>

namespace smp {

/// Room for gradients that have not been reduced: a region for each unit that has units inside of it, and so is used
/// all the while these are, and two slots for the others; one is filled while the other is reduced.
/// @tparam Stream of the computation and of the reductions
template <class Stream>
class ShardGradients {
 public:
  /// @param bucket_bytes gradients that are reduced together; a larger unit goes alone
  ShardGradients(Layout& layout, ShardStorage& shards, Memory& memory, int rank, int ranks, std::size_t bucket_bytes)
      : layout_(&layout),
        shards_(&shards),
        rank_(rank),
        ranks_(ranks),
        units_(layout.units().size()),
        open_(layout.blocks().size()) {
    find_units();
    make_room(memory, bucket_bytes);
  }

  /// Whether the unit has gradients here, or ends a pass of backward.
  [[nodiscard]] bool has(const Unit& unit) const noexcept {
    return !own(unit).blocks.empty() || (unit.parent < 0 && room_.size() > 0);
  }

  /// A unit is entered by a backward: its blocks get room, set to zero.
  template <class Comm>
  void enter(Stream& compute, Stream& reduce, Comm& group, const Unit& unit, GradientReduction& replicas) {
    std::size_t need = missing(unit);
    // What the unit is tied to goes, too: it would go while the unit is in use, if units are inside.
    if (own(unit).outer ? is_collected(unit) : filled_ + need > limit_) {
      flush(compute, reduce, group, replicas);
      need = missing(unit);
    }
    if (need > 0) {
      std::byte* place = own(unit).outer ? region(compute, unit) : slot(compute, need);
      compute.enqueue([place, need] { std::memset(place, 0, need); });
      for (const Block* b : own(unit).blocks) {
        if (open(*b).data != nullptr) continue;
        open(*b).data = std::exchange(place, place + footprint(*b));
        open(*b).unit = unit.id;
        if (!own(unit).outer) bucket_.push_back(b);
      }
    }
    for (Block* b : own(unit).blocks) {
      if (open(*b).uses++ == 0) b->grad_taken = false;
      b->grad = open(*b).data;
    }
  }

  /// A unit is left by a backward.
  /// @param completes the unit's gradients; else there is another pass to come
  /// @param replicas hears of each block when all that has been computed of its gradient is on its way
  template <class Comm>
  void leave(Stream& compute, Stream& reduce, Comm& group, const Unit& unit, bool completes,
             GradientReduction& replicas) {
    abandon(unit);
    for (const Block* b : own(unit).blocks) open(*b).passes += completes ? 1 : 0;
    if (!own(unit).outer) {
      if (filled_ >= limit_) flush(compute, reduce, group, replicas);
      return;
    }
    if (unit.parent < 0) flush(compute, reduce, group, replicas);  // a pass ends
    Slot& region = regions_[own(unit).depth];
    std::vector<const Block*>& own_blocks = scratch_;
    own_blocks.clear();
    for (const Block* b : own(unit).blocks) {
      if (open(*b).data != nullptr && open(*b).unit == unit.id) own_blocks.push_back(b);
    }
    if (own_blocks.empty()) return;
    compute.record(region.ready);
    reduce.wait(region.ready);
    for (const Block* b : own_blocks) reduce_alone(reduce, group, *b);
    reduce.record(region.free);
    for (const Block* b : own_blocks) close(*b, replicas);
  }

  /// An exception has left a unit, or it has been left.
  void abandon(const Unit& unit) {
    for (Block* b : own(unit).blocks) {
      Open& o = open(*b);
      o.taken = o.taken || std::exchange(b->grad_taken, false);
      if (--o.uses == 0) b->grad = nullptr;
    }
  }

  /// Forgets what has gone wrong in the stream that reduces.
  void settle(Stream& reduce) {
    for (Slot& slot : slots_) reduce.record(slot.free);
    for (Slot& region : regions_) reduce.record(region.free);
  }
  /// Begins the next step: what is reduced first goes straight into the shard.
  void end_step() {
    for (Open& o : open_) o = {};
    bucket_.clear();
    filled_ = 0;
  }

 private:
  struct Open {
    std::byte* data = nullptr;  // null: no gradient is being computed
    int uses = 0;               // units that are entered
    int unit = -1;              // whose place it is in
    int passes = 0;             // that have completed it
    bool taken = false;         // somebody has written it
    bool in_shard = false;      // the shard has a part of the step's gradient already
  };
  struct OfUnit {
    std::vector<Block*> blocks{};  // trained, and cut into shards
    bool outer = false;            // other units are inside of it
    std::size_t depth = 0;         // units around it
  };
  struct Slot {
    std::byte* data = nullptr;
    typename Stream::Event ready{}, free{};
  };

  [[nodiscard]] OfUnit& own(const Unit& unit) noexcept { return units_[static_cast<std::size_t>(unit.id)]; }
  [[nodiscard]] const OfUnit& own(const Unit& unit) const noexcept { return units_[static_cast<std::size_t>(unit.id)]; }
  [[nodiscard]] Open& open(const Block& b) noexcept { return open_[static_cast<std::size_t>(b.id)]; }
  [[nodiscard]] std::size_t footprint(const Block& b) const noexcept { return shards_->place(b.id).room; }

  void find_units() {
    for (Unit& u : layout_->units()) {
      OfUnit& o = own(u);
      for (Block* b : u.uses) {
        if (!b->frozen && shards_->place(b->id).size > 0) o.blocks.push_back(b);
      }
      if (u.parent < 0) continue;
      OfUnit& around = units_[static_cast<std::size_t>(u.parent)];
      around.outer = true;
      o.depth = around.depth + 1;
    }
    units_.front().outer = true;
  }

  /// Bytes of a unit's gradients that no unit around it has room for.
  [[nodiscard]] std::size_t need(const Unit& unit) const {
    std::size_t total = 0;
    for (const Block* b : own(unit).blocks) {
      bool around = false;
      for (int up = unit.parent; up >= 0; up = layout_->units()[static_cast<std::size_t>(up)].parent) {
        const auto& others = units_[static_cast<std::size_t>(up)].blocks;
        around = around || std::find(others.begin(), others.end(), b) != others.end();
      }
      total += around ? 0 : footprint(*b);
    }
    return total;
  }

  /// Bytes of a unit's gradients that have no place now.
  [[nodiscard]] std::size_t missing(const Unit& unit) noexcept {
    std::size_t total = 0;
    for (const Block* b : own(unit).blocks) total += open(*b).data == nullptr ? footprint(*b) : 0;
    return total;
  }

  /// Whether a block that the unit uses, too, is in the slot that is filled.
  [[nodiscard]] bool is_collected(const Unit& unit) noexcept {
    const auto& blocks = own(unit).blocks;
    return std::any_of(blocks.begin(), blocks.end(), [&](const Block* b) {
      return open(*b).data != nullptr && !units_[static_cast<std::size_t>(open(*b).unit)].outer;
    });
  }

  void make_room(Memory& memory, std::size_t bucket_bytes) {
    std::size_t outer = 0, unit = 0, all = 0;  // regions, the largest unit in a slot, everything that is in slots
    std::vector<std::size_t> regions;          // the largest unit with units inside, by depth
    for (const Unit& u : layout_->units()) {
      if (!own(u).outer) {
        unit = std::max(unit, need(u));
        all += need(u);
        continue;
      }
      const std::size_t depth = own(u).depth;
      regions.resize(std::max(regions.size(), depth + 1), 0);
      regions[depth] = std::max(regions[depth], need(u));
    }
    for (const std::size_t r : regions) outer += r;
    const std::size_t room = std::max(2 * std::max(std::min(bucket_bytes, all), unit), outer + unit);
    room_ = FlatArray<std::byte>(memory, MemoryUse::buffer, room);
    const std::size_t half = (room - outer) / 2 / shards_->granule() * shards_->granule();
    both_ = half >= unit;
    limit_ = std::min(bucket_bytes, both_ ? half : unit);
    std::byte* next = room_.data();
    regions_ = std::vector<Slot>(regions.size());
    for (std::size_t depth = 0; depth < regions.size(); ++depth) {
      regions_[depth].data = std::exchange(next, next + regions[depth]);
    }
    slots_[0].data = next;
    slots_[1].data = slots_[0].data + half;
  }

  std::byte* region(Stream& compute, const Unit& unit) {
    compute.wait(regions_[own(unit).depth].free);
    return regions_[own(unit).depth].data;
  }
  std::byte* slot(Stream& compute, std::size_t need) {
    if (filled_ == 0) compute.wait(slots_[slot_].free);
    return slots_[slot_].data + std::exchange(filled_, filled_ + need);
  }

  /// Reduces what has been collected.
  template <class Comm>
  void flush(Stream& compute, Stream& reduce, Comm& group, GradientReduction& replicas) {
    if (bucket_.empty()) return;
    Slot& slot = slots_[slot_];
    compute.record(slot.ready);
    reduce.wait(slot.ready);
    std::vector<const Block*>& taken = scratch_;
    taken.clear();
    std::copy_if(bucket_.begin(), bucket_.end(), std::back_inserter(taken), [&](auto* b) { return open(*b).taken; });
    const bool one_type = std::all_of(taken.begin(), taken.end(),
                                      [&](auto* b) { return b->element_bytes == taken.front()->element_bytes; });
    if (taken.size() > 1 && both_ && filled_ <= limit_ && one_type) {
      reduce_together(reduce, group, taken);
    } else {
      for (const Block* b : taken) reduce_alone(reduce, group, *b);
      reduce.record(slot.free);
      if (both_) slot_ = 1 - slot_;
    }
    for (const Block* b : bucket_) close(*b, replicas);
    bucket_.clear();
    filled_ = 0;
  }

  void close(const Block& b, GradientReduction& replicas) {
    replicas.backward(b, open(b).passes);
    open(b) = {.in_shard = open(b).in_shard || open(b).taken};
  }

  /// Straight from where it has been computed to where it is updated.
  template <class Comm>
  void reduce_alone(Stream& reduce, Comm& group, const Block& b) {
    if (!open(b).taken) return;
    shards_->with_gradients(b, [&]<class T>(std::span<T> shard) {
      const std::span<T> whole(reinterpret_cast<T*>(open(b).data), shard.size() * static_cast<std::size_t>(ranks_));
      if (!open(b).in_shard) {
        group.reduce_scatter(reduce, whole, shard, sum, Purpose::gradient);
        return;
      }
      const auto own = whole.subspan(static_cast<std::size_t>(rank_) * shard.size(), shard.size());
      group.reduce_scatter(reduce, whole, own, sum, Purpose::gradient);
      add(reduce, shard, own.data());
    });
  }

  /// Small ones in one message, which lists what each rank gets; the other slot has room for it.
  template <class Comm>
  void reduce_together(Stream& reduce, Comm& group, std::vector<const Block*>& blocks) {
    std::sort(blocks.begin(), blocks.end(),
              [&](auto* a, auto* b) { return shards_->place(a->id).begin < shards_->place(b->id).begin; });
    std::size_t piece = 0;  // elements of a rank
    for (const Block* b : blocks) piece += shards_->place(b->id).size;
    std::byte* const message = slots_[1 - slot_].data;
    std::size_t before = 0;
    for (const Block* b : blocks) {
      const std::size_t from_step = shards_->place(b->id).size * b->element_bytes, to_step = piece * b->element_bytes;
      reduce.enqueue([from = open(*b).data, to = message + before, from_step, to_step, ranks = ranks_] {
        for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
          std::memcpy(to + r * to_step, from + r * from_step, from_step);
        }
      });
      before += from_step;
    }
    reduce.record(slots_[slot_].free);
    shards_->with_gradients(*blocks.front(), [&]<class T>(std::span<T>) {
      const std::span<T> whole(reinterpret_cast<T*>(message), piece * static_cast<std::size_t>(ranks_));
      const std::span<T> own = whole.subspan(static_cast<std::size_t>(rank_) * piece, piece);
      group.reduce_scatter(reduce, whole, own, sum, Purpose::gradient);
      const T* from = own.data();
      for (const Block* b : blocks) {
        shards_->with_gradients(*b, [&]<class U>(std::span<U> shard) {
          if constexpr (std::is_same_v<T, U>) {
            if (open(*b).in_shard) {
              add(reduce, shard, from);
            } else {
              reduce.enqueue([to = shard.data(), from, size = shard.size()] { std::copy_n(from, size, to); });
            }
            from += shard.size();
          }
        });
      }
    });
    reduce.record(slots_[1 - slot_].free);
  }

  template <class T>
  static void add(Stream& stream, std::span<T> to, const T* from) {
    stream.enqueue([data = to.data(), size = to.size(), from] {
      vectorized([=](auto unit) { add_arrays(unit, static_cast<std::int64_t>(size), data, from, data); });
    });
  }

  Layout* layout_;
  ShardStorage* shards_;
  int rank_;
  int ranks_;
  std::vector<OfUnit> units_;
  std::vector<Open> open_;  // by block
  FlatArray<std::byte> room_;
  std::vector<Slot> regions_;  // by depth
  std::array<Slot, 2> slots_;
  bool both_ = false;      // there is room for two slots
  std::size_t limit_ = 0;  // bytes of a bucket
  std::size_t slot_ = 0;   // that is filled
  std::size_t filled_ = 0;
  std::vector<const Block*> bucket_;   // in the slot that is filled
  std::vector<const Block*> scratch_;  // room for a list
};

}  // namespace smp
