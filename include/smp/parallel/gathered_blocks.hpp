// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Sharded parameters on their way to the units that use them: gathered over the shard group, in a stream of their own,
/// ahead of their use.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gathered_storage.hpp>
#include <smp/parallel/shard_storage.hpp>

namespace smp {

/// How parameters are gathered; sizes in bytes.
struct GatherLimits {
  std::size_t max_live = 0;     ///< gathered at a time; what a unit needs at once always is
  std::size_t merge_below = 0;  ///< smaller gathers that follow each other become one message
  bool checked = false;         ///< released storage is NaN, a block comes back elsewhere, and every gather says which
};

/// Lets `Block::value` point at whole values while a unit that uses the block is entered.
/// @tparam Stream of the computation and of the gathers
template <class Stream>
class GatheredBlocks {
 public:
  using Storage = GatheredStorage<FlatArray<std::byte>>;  ///< where gathered values are

  /// For the blocks that have shards.
  /// @param beside the stream that gathers; null: that of the computation
  GatheredBlocks(Layout& layout, const ShardStorage& shards, Memory& memory, const GatherLimits& limits, int ranks,
                 Stream* beside)
      : shards_(&shards),
        memory_(&memory),
        limits_(limits),
        ranks_(static_cast<std::size_t>(ranks)),
        units_(static_cast<int>(layout.units().size())),
        stream_(beside),
        storage_(memory, blocks_of_units(layout), inside_units(layout), footprints(layout), largest_set(layout),
                 limits.max_live, limits.checked ? jitter_bytes : 0),
        blocks_(layout.blocks().size()) {
    // A merged message needs room beside the arena, which only a larger budget has.
    limits_.merge_below =
        std::min(limits_.merge_below, limits_.max_live - std::min(limits_.max_live, storage_.arena_bytes()));
    for (Block& b : layout.blocks()) of(b.id).block = &b;
  }

  /// Brings what a unit uses, and what the plan fetches ahead. `compute` goes on when the unit's are there.
  /// @param group the shard group, for this stream
  template <class Comm>
  void enter(Stream& compute, Comm& group, const Unit& unit, bool training) {
    bring(compute, group, unit.id, training);
  }
  /// Takes them away: what is kept for later is not seen meanwhile.
  void leave(Stream& compute, const Unit& unit, bool training) { take_away(compute, unit.id, training); }

  /// Calls `f()` while the values of one block are here.
  template <class Comm, class F>
  void with_values(Stream& compute, Comm& group, const Block& block, F&& f) {
    bring(compute, group, units_ + block.id, false);
    compute.synchronize();
    try {
      std::forward<F>(f)();
    } catch (...) {
      take_away(compute, units_ + block.id, false);
      throw;
    }
    take_away(compute, units_ + block.id, false);
  }

  /// The shards are about to be updated: `compute` goes on when nothing reads them. Says to the other ranks of the
  /// group, if all is checked, that this rank ends its step.
  template <class Comm>
  void finish(Stream& compute, Comm& group) {
    if (limits_.checked && ranks_ > 1) agree(stream(compute), group, no_block);
    for (OfBlock& b : blocks_) await(compute, b);  // fetched ahead for units that were not used
  }
  /// The values of all shards are others after what is enqueued in `compute`: the next step begins.
  /// @param complete the step has had all its passes
  void end_step(Stream& compute, bool complete) {
    compute.record(updated_);
    if (!complete) compute.record(left_);  // without what has gone wrong
    stale_ = true;
    for (OfBlock& b : blocks_) {
      b.on_its_way = false;
      if (shards_->place(b.block->id).size > 0) b.block->value = nullptr;  // where an exception has left it
    }
    if (storage_.frees_storage()) {
      compute.synchronize();
      stream(compute).synchronize();
    }
    storage_.end_step(complete);
  }
  /// The shards have been written by the host: what is gathered is stale.
  void forget() noexcept { storage_.forget(); }

  /// Where everything is.
  [[nodiscard]] const Storage& storage() const noexcept { return storage_; }

 private:
  static constexpr std::size_t jitter_bytes = 64;

  struct OfBlock {
    Block* block = nullptr;
    typename Stream::Event gathered{};  // in the stream that gathers
    typename Stream::Event last_use{};  // in the stream of the computation
    bool on_its_way = false;            // the computation has not waited for it
  };

  [[nodiscard]] OfBlock& of(int block) noexcept { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] Stream& stream(Stream& compute) noexcept { return stream_ ? *stream_ : compute; }

  // What the units use, and, behind them, each block by itself.
  std::vector<std::vector<int>> blocks_of_units(Layout& layout) const {
    std::vector<std::vector<int>> all;
    for (const Unit& u : layout.units()) {
      auto& own = all.emplace_back();
      for (const Block* b : u.uses) {
        if (shards_->place(b->id).size > 0) own.push_back(b->id);
      }
    }
    for (const Block& b : layout.blocks()) all.push_back({b.id});
    return all;
  }
  [[nodiscard]] std::size_t footprint(int block) const {
    const std::size_t slack = limits_.checked ? 8 * jitter_bytes : 0;
    return shards_->place(block).room + slack;
  }
  std::vector<std::size_t> footprints(Layout& layout) const {
    std::vector<std::size_t> all;
    for (const Block& b : layout.blocks()) all.push_back(footprint(b.id));
    return all;
  }
  /// Bytes that are in use while a unit is: of it and of those around it.
  std::vector<std::size_t> sets_in_use(Layout& layout) const {
    std::vector<std::size_t> all;
    for (const Unit& u : layout.units()) {
      std::vector<int> set;
      for (int id = u.id; id >= 0; id = layout.units()[static_cast<std::size_t>(id)].parent) {
        for (const Block* b : layout.units()[static_cast<std::size_t>(id)].uses) {
          if (shards_->place(b->id).size > 0) set.push_back(b->id);
        }
      }
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      all.push_back(0);
      for (const int b : set) all.back() += footprint(b);
    }
    return all;
  }
  std::size_t largest_set(Layout& layout) const {
    const std::vector<std::size_t> sets = sets_in_use(layout);
    return *std::max_element(sets.begin(), sets.end());
  }
  /// What units inside of each need beyond that.
  std::vector<std::size_t> inside_units(Layout& layout) const {
    const std::vector<std::size_t> sets = sets_in_use(layout);
    std::vector<std::size_t> largest = sets;
    for (std::size_t u = sets.size(); u-- > 1;) {  // units inside of another have greater numbers
      std::size_t& around = largest[static_cast<std::size_t>(layout.units()[u].parent)];
      around = std::max(around, largest[u]);
    }
    for (std::size_t u = 0; u < sets.size(); ++u) largest[u] -= sets[u];
    largest.resize(sets.size() + layout.blocks().size(), 0);
    return largest;
  }

  template <class Comm>
  void bring(Stream& compute, Comm& group, int unit, bool training) {
    const Storage::Change change = storage_.enter(unit, training);
    if (limits_.checked && !change.released.empty()) poison(compute, change.released);
    if (!change.gathered.empty()) gather(compute, group, change.gathered);
    for (const int block : storage_.blocks(unit)) {
      await(compute, of(block));
      of(block).block->value = storage_.place(block);
    }
  }
  static void await(Stream& compute, OfBlock& b) {
    if (std::exchange(b.on_its_way, false)) compute.wait(b.gathered);
  }
  void take_away(Stream& compute, int unit, bool training) {
    storage_.leave(unit, training);
    for (const int block : storage_.blocks(unit)) {
      if (storage_.in_use(block)) continue;
      of(block).block->value = nullptr;
      compute.record(of(block).last_use);
    }
    if (!storage_.blocks(unit).empty()) compute.record(left_);
  }

  /// Fills what is given up with NaN, before anything else comes there.
  void poison(Stream& compute, const std::vector<Storage::Release>& list) {
    for (const Storage::Release& r : list) {
      await(compute, of(r.block));
      compute.enqueue([place = r.place, bytes = shards_->place(r.block).bytes] { std::memset(place, 0xFF, bytes); });
    }
    compute.record(left_);
  }

  template <class Comm>
  void gather(Stream& compute, Comm& group, const std::vector<Storage::Gather>& list) {
    Stream& s = stream(compute);
    if (limits_.checked) agree(s, group, list.front().block);
    for (std::size_t begin = 0, end = 0; begin < list.size(); begin = end) {
      Range range = range_of(list[begin].block);
      wait(s, list[begin]);
      for (end = begin + 1; end < list.size() && join(range, range_of(list[end].block)); ++end) wait(s, list[end]);
      if (end == begin + 1) {
        const Block& b = *of(list[begin].block).block;
        group.all_gather(s, shards_->values(b), std::span(list[begin].place, shards_->place(b.id).bytes),
                         Purpose::parameter);
      } else {
        gather_together(s, group, range, list.data() + begin, list.data() + end);
      }
      for (std::size_t i = begin; i < end; ++i) {
        s.record(of(list[i].block).gathered);
        of(list[i].block).on_its_way = true;
      }
    }
  }

  // Consecutive shards, in bytes of a rank.
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  [[nodiscard]] Range range_of(int block) noexcept {
    const auto shard = shards_->values(*of(block).block);
    return {shard.data(), shard.data() + shard.size()};
  }
  /// Adds a neighbour to a range, if the message stays small.
  [[nodiscard]] bool join(Range& range, const Range& next) const noexcept {
    const bool behind = next.begin == range.end, before = next.end == range.begin;
    const auto bytes = static_cast<std::size_t>((range.end - range.begin) + (next.end - next.begin)) * ranks_;
    if ((!behind && !before) || bytes >= limits_.merge_below) return false;
    range = {before ? next.begin : range.begin, before ? range.end : next.end};
    return true;
  }

  void wait(Stream& s, const Storage::Gather& g) {
    if (std::exchange(stale_, false)) s.wait(updated_);
    if (g.after == Storage::everything || limits_.checked) {
      s.wait(left_);
    } else if (g.after >= 0) {
      s.wait(of(g.after).last_use);
    }
  }

  /// Small ones, from `first` up to `last`, in one message, from which every block takes its pieces.
  template <class Comm>
  void gather_together(Stream& s, Comm& group, const Range& range, const Storage::Gather* first,
                       const Storage::Gather* last) {
    const std::span<const std::byte> own(range.begin, range.end);
    if (message_.size() < own.size() * ranks_) {
      s.synchronize();
      message_ = {};  // before the larger one is there
      message_ = FlatArray<std::byte>(*memory_, MemoryUse::buffer, own.size() * ranks_);
    }
    group.all_gather(s, own, std::span(message_.data(), own.size() * ranks_), Purpose::parameter);
    for (const Storage::Gather* g = first; g != last; ++g) {
      const auto shard = shards_->values(*of(g->block).block);
      s.enqueue([from = message_.data() + (shard.data() - own.data()), to = g->place, from_step = own.size(),
                 to_step = shard.size(), ranks = ranks_] {
        for (std::size_t r = 0; r < ranks; ++r) std::memcpy(to + r * to_step, from + r * from_step, to_step);
      });
    }
  }

  /// All ranks of the group gather the same block, or end the step.
  template <class Comm>
  void agree(Stream& s, Comm& group, int block) {
    s.enqueue([number = &number_, block] { *number = block; });
    numbers_.resize(ranks_);
    group.all_gather(s, std::span<const int>(&number_, 1), numbers_, Purpose::control);
    s.enqueue([this, rank = group.rank()] {
      for (std::size_t r = 0; r < numbers_.size(); ++r) {
        if (numbers_[r] == number_) continue;
        throw CommError("rank " + std::to_string(r) + " of the SHARD group " + doing(numbers_[r]) + " while rank " +
                        std::to_string(rank) + " " + doing(number_) + ": the ranks use units in different orders");
      }
    });
  }
  [[nodiscard]] std::string doing(int block) const {
    if (block == no_block) return "ends its step";
    const Block& b = *blocks_[static_cast<std::size_t>(block)].block;
    return "gathers block " + std::to_string(block) + " (" + b.segments.front().name + ", ...)";
  }

  static constexpr int no_block = -1;

  const ShardStorage* shards_;
  Memory* memory_;
  GatherLimits limits_;
  std::size_t ranks_;
  int units_;       // of the layout
  Stream* stream_;  // that gathers; null: that of the computation
  Storage storage_;
  std::vector<OfBlock> blocks_;
  typename Stream::Event updated_;  // the values of the shards are those of this step
  typename Stream::Event left_;     // the last unit that has been left
  bool stale_ = true;               // nothing has been gathered since `updated_`
  int number_ = 0;                  // of the block that this rank gathers
  std::vector<int> numbers_;        // of all ranks
  FlatArray<std::byte> message_;
};

}  // namespace smp
