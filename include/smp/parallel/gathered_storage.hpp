// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Where gathered parameters are while they are used: one arena, and the plan of a step that says what comes when,
/// where to, and what goes for it. Decides only: it neither moves nor computes anything.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <smp/device/memory.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/plan/gather_arena.hpp>
#include <smp/plan/gather_plan.hpp>

namespace smp {

/// The values of blocks that are gathered for the units that use them.
///
/// The first step gathers a unit's blocks when it is entered, and records the order; then a plan is made, and replayed
/// in every step. A step that leaves the recorded order gathers on demand from there on, and the next one records
/// again. So does one in which the model is evaluated between two passes, without recording.
/// @tparam Arena array of bytes that are gathered into
template <class Arena>
class GatheredStorage {
 public:
  /// Said of a gather that has to wait for everything that has been computed before, not for one block's last use.
  static constexpr int everything = -2;

  /// A block that must be gathered now.
  struct Gather {
    int block;         ///< which
    std::byte* place;  ///< where to
    int after;         ///< block whose last use ends before; -1: there is none; or `everything`
  };
  /// A block whose values are no longer here.
  struct Release {
    int block;         ///< which
    std::byte* place;  ///< where it was
  };
  /// What changes when a unit is entered. Valid until the next call.
  struct Change {
    const std::vector<Release>& released;  ///< what goes for it
    const std::vector<Gather>& gathered;   ///< blocks to gather: what the unit needs, then what is fetched ahead
  };

  /// @param blocks_of_unit what each unit uses that must be gathered
  /// @param inside of each unit: bytes of the largest set that units inside of it use beyond what it uses
  /// @param bytes of each block, gathered
  /// @param needed bytes of the largest set in use at once
  /// @param max_live bytes that may be gathered, or `needed` if that is more
  /// @param jitter a block that comes again lies so many bytes further, up to seven times; counted in its `bytes`
  GatheredStorage(Memory& memory, std::vector<std::vector<int>> blocks_of_unit, std::vector<std::size_t> inside,
                  std::vector<std::size_t> bytes, std::size_t needed, std::size_t max_live, std::size_t jitter = 0)
      : memory_(&memory),
        jitter_(jitter),
        blocks_of_unit_(std::move(blocks_of_unit)),
        inside_(std::move(inside)),
        bytes_(std::move(bytes)),
        max_live_(max_live),
        arena_(memory, MemoryUse::buffer, needed),
        live_(bytes_.size()) {
    released_.reserve(bytes_.size());
    gathered_.reserve(bytes_.size());
    taken_.reserve(bytes_.size() + 1);
    gaps_.reserve(bytes_.size() + 1);
  }

  /// What a unit uses that must be gathered.
  [[nodiscard]] const std::vector<int>& blocks(int unit) const noexcept {
    return blocks_of_unit_[static_cast<std::size_t>(unit)];
  }
  /// Where a block is that a unit has been entered for.
  [[nodiscard]] std::byte* place(int block) const noexcept { return live(block).place; }
  /// Whether anybody uses a block now.
  [[nodiscard]] bool in_use(int block) const noexcept { return live(block).uses > 0; }

  /// A unit is entered.
  /// @param training the entry belongs to a pass of a step, not to an evaluation
  Change enter(int unit, bool training) {
    released_.clear();
    gathered_.clear();
    if (blocks(unit).empty()) return {released_, gathered_};
    hash_ = (hash_ ^ static_cast<std::uint64_t>(unit)) * 1099511628211U;
    if (!training) {
      if (position_ > 0) following_ = false;  // what the plan has fetched may go
    } else if (following_) {
      following_ = position_ < order_.size() && order_[position_].unit == unit;
      if (!following_) record_ = true;  // in the next step
      if (following_ && position_ == 0) release_unused();
    }
    if (training && following_) {
      follow();
      ++position_;
    } else {
      if (training && recording_) {
        entries_.push_back(order_.size());
        order_.push_back({unit, 0});
      }
      if (training) ++position_;
      demand(unit);
    }
    for (const int b : blocks(unit)) ++live(b).uses;
    return {released_, gathered_};
  }

  /// A unit is left.
  void leave(int unit, bool training) {
    if (blocks(unit).empty()) return;
    for (const int b : blocks(unit)) --live(b).uses;
    if (!recording_ || !training || entries_.empty()) return;
    order_[entries_.back()].until = static_cast<int>(order_.size());
    entries_.pop_back();
  }

  /// All values are stale, and the next step begins. If this one has been recorded, its plan is made.
  /// @param complete the step has had all its passes
  void end_step(bool complete) {
    for (Live& l : live_) l = {};
    spill_.clear();
    hash_ = no_entries;
    if (recording_) {
      if (complete && !order_.empty()) {
        make_plan();
        recording_ = false;
      } else {
        order_.clear();
      }
      entries_.clear();
    }
    if (std::exchange(record_, false)) {
      recording_ = true;
      order_.clear();
    }
    following_ = !recording_;
    position_ = 0;
  }

  /// The shards have been written: what is here is stale.
  void forget() noexcept {
    following_ = following_ && position_ == 0;  // the plan counts on what is here
    for (Live& l : live_) {
      if (l.uses == 0) l.place = nullptr;
    }
  }

  /// True if `end_step` will free storage that tasks may still use: the first step's, and after a change of the order.
  [[nodiscard]] bool frees_storage() const noexcept { return recording_ || !spill_.empty(); }
  /// The plan that is replayed, once there is one.
  [[nodiscard]] const GatherPlan* plan() const noexcept { return plan_ ? &*plan_ : nullptr; }
  /// A number for the order in which units have been used in this step.
  [[nodiscard]] std::uint64_t order_hash() const noexcept { return hash_ ^ (hash_ >> 40); }
  /// Bytes that are gathered now.
  [[nodiscard]] std::size_t live_bytes() const noexcept {
    std::size_t total = 0;
    for (std::size_t b = 0; b < live_.size(); ++b) total += live_[b].place != nullptr ? bytes_[b] : 0;
    return total;
  }
  /// Bytes of the arena.
  [[nodiscard]] std::size_t arena_bytes() const noexcept { return arena_.size(); }

 private:
  struct Live {
    std::byte* place = nullptr;  // null: not here
    std::size_t begin = 0;       // of what is taken for it in the arena; behind that, if it is not there
    int uses = 0;                // units that are entered
  };
  static constexpr std::uint64_t no_entries = 14695981039346656037U;

  [[nodiscard]] Live& live(int block) noexcept { return live_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] const Live& live(int block) const noexcept { return live_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] std::size_t bytes(int block) const noexcept { return bytes_[static_cast<std::size_t>(block)]; }

  void make_plan() {
    plan_ = make_gather_plan(order_, blocks_of_unit_, bytes_, max_live_);
    if (plan_->arena > arena_.size()) {
      arena_ = {};  // before the larger one is there
      arena_ = Arena(*memory_, MemoryUse::buffer, plan_->arena);
    }
  }

  void release(int block) { released_.push_back({block, std::exchange(live(block).place, nullptr)}); }
  void release_unused() {
    for (std::size_t b = 0; b < live_.size(); ++b) {
      if (live_[b].place != nullptr && live_[b].uses == 0) release(static_cast<int>(b));
    }
  }

  /// What the plan says.
  void follow() {
    const GatherPlan& plan = *plan_;
    for (std::size_t i = plan.released_begin[position_]; i < plan.released_begin[position_ + 1]; ++i) {
      release(plan.released[i]);
    }
    for (std::size_t i = plan.gathered_begin[position_]; i < plan.gathered_begin[position_ + 1]; ++i) {
      const GatherOp& op = plan.gathered[i];
      put(op.block, op.offset);
      // The first one of a step: an evaluation may have used the arena since the last.
      gathered_.push_back({op.block, live(op.block).place, position_ == 0 ? everything : op.after});
    }
  }

  /// What the unit needs and nothing else. What is here stays until its place is needed.
  void demand(int unit) {
    if (place_missing(unit)) return;
    for (const Gather& g : gathered_) live(g.block).place = nullptr;
    gathered_.clear();
    // Now there is nothing but what is in use, with a gap between for all that the unit and those inside of it need.
    release_unused();
    (void)place_missing(unit);
    for (const int b : blocks(unit)) {
      if (live(b).place != nullptr) continue;
      // What is in use lies where a plan has put it, and the order is another one.
      live(b) = {spill_.emplace_back(*memory_, MemoryUse::buffer, bytes(b)).data(), arena_.size(), live(b).uses};
      gathered_.push_back({b, live(b).place, everything});
    }
  }

  /// Gives what is not here the first gaps that have room.
  /// @return false if there are none, or none is left for what units inside of this one need
  bool place_missing(int unit) {
    for (const int b : blocks(unit)) {
      if (live(b).place != nullptr) continue;
      find_gaps([](const Live&) { return true; });
      const ArenaSpan* const gap = first_gap(bytes(b));
      if (gap == nullptr) return false;
      put(b, gap->begin);
      gathered_.push_back({b, live(b).place, everything});
    }
    if (inside_[static_cast<std::size_t>(unit)] == 0) return true;
    for (const int b : blocks(unit)) ++live(b).uses;
    find_gaps([](const Live& l) { return l.uses > 0; });
    for (const int b : blocks(unit)) --live(b).uses;
    return first_gap(inside_[static_cast<std::size_t>(unit)]) != nullptr;
  }
  [[nodiscard]] const ArenaSpan* first_gap(std::size_t least) const noexcept {
    for (const ArenaSpan& gap : gaps_) {
      if (gap.end - gap.begin >= least) return &gap;
    }
    return nullptr;
  }

  /// Where there is room between blocks that are here and `counts`.
  template <class F>
  void find_gaps(F counts) {
    taken_.clear();
    gaps_.clear();
    for (std::size_t b = 0; b < live_.size(); ++b) {
      if (live_[b].place == nullptr || live_[b].begin == arena_.size() || !counts(live_[b])) continue;
      taken_.push_back({live_[b].begin, live_[b].begin + bytes_[b]});
    }
    taken_.push_back({arena_.size(), arena_.size()});
    sort_by_begin(taken_);
    std::size_t behind = 0;
    for (const ArenaSpan& taken : taken_) {
      if (taken.begin > behind) gaps_.push_back({behind, taken.begin});
      behind = std::max(behind, taken.end);
    }
  }

  void put(int block, std::size_t begin) noexcept {
    live(block).begin = begin;
    live(block).place = arena_.data() + begin + next_jitter();
  }
  std::size_t next_jitter() noexcept { return jitter_ * (visits_++ % 8); }

  Memory* memory_;
  std::size_t jitter_;
  std::size_t visits_ = 0;
  std::vector<std::vector<int>> blocks_of_unit_;
  std::vector<std::size_t> inside_;  // by unit
  std::vector<std::size_t> bytes_;
  std::size_t max_live_;
  Arena arena_;
  std::vector<Arena> spill_;
  std::vector<Live> live_;
  std::vector<GatherUse> order_;      // of the plan, or of this step
  std::vector<std::size_t> entries_;  // units that are entered while a step is recorded
  std::optional<GatherPlan> plan_;
  std::size_t position_ = 0;  // entries so far in this step
  std::uint64_t hash_ = no_entries;
  bool recording_ = true;   // this step is recorded
  bool record_ = false;     // the next one will be
  bool following_ = false;  // the plan, so far in this step
  std::vector<Release> released_;
  std::vector<Gather> gathered_;
  std::vector<ArenaSpan> taken_;  // in the arena, in order
  std::vector<ArenaSpan> gaps_;
};

}  // namespace smp
