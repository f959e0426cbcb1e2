// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Replays a gather plan step by step, knowing nothing of how it was made, and says what is wrong with it.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <smp/plan/gather_plan.hpp>

namespace smp::testing {

/// A step for which blocks are gathered.
struct GatherCase {
  std::vector<GatherUse> order;
  std::vector<std::vector<int>> blocks;  ///< by unit
  std::vector<std::size_t> sizes;        ///< by block
};

inline GatherPlan plan_of(const GatherCase& c, std::size_t max_live) {
  return make_gather_plan(c.order, c.blocks, c.sizes, max_live);
}

/// Replays one plan.
class GatherReplay {
 public:
  GatherReplay(const GatherCase& step, const GatherPlan& plan, std::size_t max_live)
      : step_(step), plan_(plan), max_live_(max_live), blocks_(step.sizes.size()) {}

  /// The first defect, or nothing.
  [[nodiscard]] std::string defect() {
    const std::size_t uses = step_.order.size();
    if (plan_.released_begin.size() != uses + 1 || plan_.gathered_begin.size() != uses + 1) return "wrong lengths";
    for (std::size_t i = 0; i < uses && defect_.empty(); ++i) {
      leave(static_cast<int>(i));
      for (std::size_t k = plan_.released_begin[i]; k < plan_.released_begin[i + 1]; ++k) release(plan_.released[k]);
      for (std::size_t k = plan_.gathered_begin[i]; k < plan_.gathered_begin[i + 1]; ++k) gather(plan_.gathered[k]);
      enter(i);
    }
    if (plan_.released_begin.back() != plan_.released.size()) complain("releases behind the last use");
    if (plan_.gathered_begin.back() != plan_.gathered.size()) complain("gathers behind the last use");
    if (plan_.peak != peak_) complain("peak is " + std::to_string(peak_));
    if (plan_.arena != arena_) complain("arena is " + std::to_string(arena_));
    if (plan_.needed != needed_) complain("needed is " + std::to_string(needed_));
    if (arena_ > std::max(max_live_, needed_)) complain("the arena is larger than the budget");
    return defect_;
  }

 private:
  struct Occupant {
    int block;
    std::size_t begin, end, left;
  };
  struct State {
    bool here = false;
    int users = 0;
    std::size_t begin = 0, end = 0;
    std::size_t left = 0;         // when its last user left: what an event of this block stands for
    std::size_t left_before = 0;  // the same when it was gathered
  };

  State& state(int block) { return blocks_.at(static_cast<std::size_t>(block)); }
  void complain(const std::string& text) {
    if (defect_.empty()) defect_ = text + ", use " + std::to_string(now_);
  }

  void leave(int now) {
    now_ = now;
    while (!open_.empty() && step_.order[open_.back()].until <= now) {
      ++clock_;
      for (const int b : blocks_of(open_.back())) {
        --state(b).users;
        state(b).left = clock_;
      }
      open_.pop_back();
    }
  }

  void release(int block) {
    State& s = state(block);
    if (!s.here) complain("block " + std::to_string(block) + " is released, but is not here");
    if (s.users > 0) complain("block " + std::to_string(block) + " is released in use");
    s.here = false;
    past_.push_back({block, s.begin, s.end, s.left > s.left_before ? s.left : 0});
  }

  void gather(const GatherOp& op) {
    State& s = state(op.block);
    const std::size_t end = op.offset + step_.sizes[static_cast<std::size_t>(op.block)];
    const std::string name = "block " + std::to_string(op.block);
    if (s.here) complain(name + " is gathered, but is here");
    for (const State& other : blocks_) {
      if (other.here && other.begin < end && op.offset < other.end) complain(name + " is gathered over another");
    }
    std::size_t last = 0, last_of_after = 0;
    for (const Occupant& o : past_) {
      if (o.begin >= end || op.offset >= o.end) continue;
      last = std::max(last, o.left);
      if (o.block == op.after) last_of_after = std::max(last_of_after, o.left);
    }
    if (last != last_of_after) complain(name + " is gathered before the last reader of the place has left");
    if (last == 0 && op.after != -1) complain(name + " waits for nothing");
    if (op.after >= 0 && state(op.after).left < last) complain(name + " waits for an event of the past");
    s.here = true;
    s.begin = op.offset;
    s.end = end;
    s.left_before = s.left;
    arena_ = std::max(arena_, end);
  }

  void enter(std::size_t i) {
    open_.push_back(i);
    for (const int b : blocks_of(i)) ++state(b).users;
    std::size_t live = 0, in_use = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].users > 0 && !blocks_[b].here) complain("block " + std::to_string(b) + " is not here");
      if (blocks_[b].here) live += step_.sizes[b];
      if (blocks_[b].users > 0) in_use += step_.sizes[b];
    }
    peak_ = std::max(peak_, live);
    needed_ = std::max(needed_, in_use);
  }

  const std::vector<int>& blocks_of(std::size_t use) const {
    return step_.blocks[static_cast<std::size_t>(step_.order[use].unit)];
  }

  const GatherCase& step_;
  const GatherPlan& plan_;
  std::size_t max_live_;
  std::vector<State> blocks_;
  std::vector<Occupant> past_;
  std::vector<std::size_t> open_;
  std::size_t clock_ = 0, peak_ = 0, arena_ = 0, needed_ = 0;
  int now_ = 0;
  std::string defect_;
};

}  // namespace smp::testing
