// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// When the blocks of sharded parameters are gathered and given up in a step, and where they are: known before the
/// step, as the order in which units are used is.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <smp/plan/gather_arena.hpp>
#include <smp/plan/gather_uses.hpp>

namespace smp {

/// One block is gathered into storage that nothing else has.
struct GatherOp {
  int block = -1;          ///< which
  std::size_t offset = 0;  ///< where it begins
  int after = -1;  ///< the block whose last reader must have ended: the one that was left last among those that had
                   ///< any of this storage earlier in the step; -1: there was none
  friend bool operator==(const GatherOp&, const GatherOp&) = default;
};

/// What is done in a step before each use of a unit, after what was in use before has been left: first blocks are
/// given up, then others are gathered.
struct GatherPlan {
  std::vector<int> released;       ///< blocks, of all uses
  std::vector<GatherOp> gathered;  ///< of all uses; of one: what it needs, then what is fetched ahead, in order of use
  std::vector<std::size_t> released_begin;  ///< in `released`, by use; one more than uses
  std::vector<std::size_t> gathered_begin;  ///< in `gathered`, by use; one more than uses
  std::size_t peak = 0;                     ///< the most that is gathered at a time, in the unit of the sizes
  std::size_t arena = 0;                    ///< size of the storage
  std::size_t needed = 0;                   ///< the most that is in use at once

  /// Number of gathers in a step.
  [[nodiscard]] constexpr std::size_t gathers() const noexcept { return gathered.size(); }
};

/// Makes a plan, use by use. What must go is what is needed last (Belady, "A study of replacement algorithms for a
/// virtual-storage computer", 1966), among places of the right size: the worth of a place is the next use of the first
/// of its blocks that is needed again.
///
/// Why everything fits: while a use lasts there is a gap between the blocks in use that holds whatever uses inside of
/// it bring. A block that is brought is put where such a gap stays. Only a block that was fetched ahead or kept may be
/// in the way when it comes into use; then it is gathered again elsewhere.
/// @tparam Size of the blocks
template <std::unsigned_integral Size>
class GatherPlanner {
 public:
  /// See make_gather_plan.
  constexpr GatherPlanner(const std::vector<GatherUse>& order, const std::vector<std::vector<int>>& blocks_of_unit,
                          std::span<const Size> sizes, Size max_live)
      : uses_(order, blocks_of_unit, sizes),
        sizes_(sizes),
        blocks_(sizes.size(), State()),
        arena_(static_cast<Size>(std::max<std::size_t>(max_live, uses_.needed()))),
        all_fit_(uses_.total() <= arena_.capacity()) {}

  /// The plan.
  [[nodiscard]] constexpr GatherPlan make() {
    plan_.needed = uses_.needed();
    for (now_ = 0; now_ < uses_.size(); ++now_) {
      plan_.released_begin.push_back(plan_.released.size());
      plan_.gathered_begin.push_back(plan_.gathered.size());
      leave();
      enter();
      fetch_ahead();
      plan_.peak = std::max(plan_.peak, live_);
    }
    plan_.released_begin.push_back(plan_.released.size());
    plan_.gathered_begin.push_back(plan_.gathered.size());
    plan_.arena = arena_.most();
    return plan_;
  }

 private:
  struct State {
    bool here = false;
    std::size_t offset = 0;
    std::size_t until = 0;           // in use until this use begins
    std::size_t left = 0;            // moment when its last reader leaves
    std::size_t left_on_gather = 0;  // the same when it was gathered
  };

  [[nodiscard]] constexpr State& state(int block) { return blocks_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] constexpr std::size_t size(int block) const { return sizes_[static_cast<std::size_t>(block)]; }
  [[nodiscard]] constexpr ArenaSpan span(int block) {
    const State& s = state(block);
    return {s.offset, s.offset + size(block), block, s.left > s.left_on_gather ? s.left : 0};
  }

  /// What of the blocks that `use` brings is not here.
  [[nodiscard]] constexpr std::size_t missing(std::size_t use) {
    std::size_t total = 0;
    for (const int b : uses_.brought(use)) total += state(b).here ? 0 : size(b);
    return total;
  }
  /// What will have to fit beside the blocks of `use` while it lasts.
  [[nodiscard]] constexpr std::size_t inside(std::size_t use) const { return all_fit_ ? 0 : uses_.inside(use); }

  /// The blocks that are here and in use while `use` lasts, by address.
  [[nodiscard]] constexpr std::vector<ArenaSpan> pinned(std::size_t use) {
    std::vector<ArenaSpan> spans;
    for (int u = static_cast<int>(use); u >= 0; u = uses_.parent(static_cast<std::size_t>(u))) {
      for (const int b : uses_.brought(static_cast<std::size_t>(u))) {
        if (state(b).here) spans.push_back(span(b));
      }
    }
    sort_by_begin(spans);
    return spans;
  }

  /// What has been left since the last use may make room for what had none.
  constexpr void leave() {
    if (now_ == 0) return;
    for (int u = static_cast<int>(now_) - 1; u >= 0; u = uses_.parent(static_cast<std::size_t>(u))) {
      const auto use = static_cast<std::size_t>(u);
      if (uses_.until(use) > now_) break;
      for (const int b : uses_.brought(use)) full_ = full_ && uses_.next(b, now_ - 1) <= ahead_;
    }
  }

  /// Brings what the use that begins now needs.
  constexpr void enter() {
    const std::span<const int> own = uses_.brought(now_);
    make_them_fit(own);
    for (const int b : own) state(b).until = uses_.until(now_);
    gather_missing(now_, 0);
    for (const int b : own) state(b).left = uses_.end(now_);
  }

  /// Blocks of the use that begins now may be where the rest of them, or what uses inside of it bring, has no place.
  constexpr void make_them_fit(std::span<const int> own) {
    std::size_t rest = missing(now_) + inside(now_);
    if (rest == 0) return;
    std::vector<int> in_the_way;
    for (const int b : own) {
      if (state(b).here) in_the_way.push_back(b);
    }
    std::sort(in_the_way.begin(), in_the_way.end(),
              [&](int a, int b) { return size(a) != size(b) ? size(a) < size(b) : a < b; });
    for (const int b : in_the_way) {
      if (largest_gap(pinned(now_), arena_.capacity()) >= rest) return;
      release(b);
      rest += size(b);
    }
  }

  /// Gathers the blocks of uses to come as far as there is room, without giving up what is needed sooner.
  constexpr void fetch_ahead() {
    if (ahead_ <= now_) {
      ahead_ = now_ + 1;
      full_ = false;
    }
    while (!full_ && ahead_ < uses_.size()) {
      if (gather_missing(ahead_, ahead_)) {
        ++ahead_;
      } else {
        full_ = true;
      }
    }
  }

  /// Gathers the blocks of `use` that are not here, while there are places worth more than `least`.
  /// @return if there were
  constexpr bool gather_missing(std::size_t use, std::size_t least) {
    std::size_t left = missing(use);
    for (const int b : uses_.brought(use)) {
      if (state(b).here) continue;
      left -= size(b);
      if (!gather(b, use, left + inside(use), least)) return false;
    }
    return true;
  }

  /// Gathers `block` for `use`, to a place that leaves a gap of `rest` between the blocks that `use` will pin.
  constexpr bool gather(int block, std::size_t use, std::size_t rest, std::size_t least) {
    std::vector<ArenaSpan> pins;
    if (rest > 0) pins = pinned(use);
    const auto worth = [&](int b) { return state(b).until > now_ ? 0 : uses_.next(b, now_); };
    const auto leaves_gap = [&](std::size_t begin) {
      if (rest == 0) return true;
      std::vector<ArenaSpan> with(pins);
      with.push_back({begin, begin + size(block)});
      sort_by_begin(with);
      return largest_gap(with, arena_.capacity()) >= rest;
    };
    const std::size_t begin = arena_.find(size(block), least, worth, leaves_gap);
    if (begin == GatherArena<Size>::nowhere) return false;
    const std::size_t end = begin + size(block);
    for (auto taken = arena_.overlapping(begin, end); !taken.empty(); taken = arena_.overlapping(begin, end)) {
      release(taken.front().block);
    }
    plan_.gathered.push_back({block, begin, arena_.last_reader(begin, end).block});
    State& s = state(block);
    s.here = true;
    s.offset = begin;
    s.left_on_gather = s.left;
    arena_.put(span(block));
    live_ += size(block);
    return true;
  }

  constexpr void release(int block) {
    arena_.remove(span(block));
    state(block).here = false;
    live_ -= size(block);
    plan_.released.push_back(block);
    ahead_ = std::min(ahead_, uses_.next(block, now_));
    full_ = false;
  }

  GatherUses<Size> uses_;
  std::span<const Size> sizes_;
  std::vector<State> blocks_;
  GatherArena<Size> arena_;
  bool all_fit_;           // nothing is ever given up
  std::size_t now_ = 0;    // the use that begins
  std::size_t ahead_ = 0;  // everything before this use is here
  std::size_t live_ = 0;   // gathered now
  bool full_ = false;      // there is no room for use `ahead_`, and none has become free
  GatherPlan plan_;
};

/// The plan of a step that uses units in `order`, nested. A step begins with nothing: what was gathered in the last one
/// is stale. It depends on nothing but its arguments, and peak <= arena <= max(max_live, needed). If everything fits
/// into `max_live`, each block is gathered once. What is in use is never given up.
/// @param blocks_of_unit what each unit uses; without blocks that need no gathering
/// @param sizes of the blocks, as gathered; multiples of the alignment that places need
/// @param max_live the most that is gathered at a time, unless more is in use at once
/// @throws ConfigError if uses do not nest
template <std::unsigned_integral Size = std::size_t>
[[nodiscard]] constexpr GatherPlan make_gather_plan(const std::vector<GatherUse>& order,
                                                    const std::vector<std::vector<int>>& blocks_of_unit,
                                                    std::type_identity_t<std::span<const Size>> sizes,
                                                    std::type_identity_t<Size> max_live) {
  return GatherPlanner<Size>(order, blocks_of_unit, sizes, max_live).make();
}

}  // namespace smp
