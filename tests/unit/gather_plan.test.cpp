// SPDX-License-Identifier: Apache-2.0
// The plan of gathers: small ones computed by hand, and a replay of many that checks every promise.
#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/plan/gather_plan.hpp>

#include "support/full.hpp"
#include "support/replay_gather_plan.hpp"
#include "support/sanitized.hpp"

namespace {

using smp::GatherOp;
using smp::GatherPlan;
using smp::GatherUse;
using smp::testing::GatherCase;
using smp::testing::plan_of;
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();
#ifdef __OPTIMIZE__
constexpr bool optimised = !smp::testing::sanitized;
#else
constexpr bool optimised = false;
#endif

std::string defect(const GatherCase& step, const GatherPlan& plan, std::size_t max_live) {
  return smp::testing::GatherReplay(step, plan, max_live).defect();
}

// Unit 0 is the root; forward and backward through `layers` units, for each micro-batch.
std::vector<GatherUse> passes(int layers, int microbatches) {
  std::vector<GatherUse> order;
  for (int m = 0; m < microbatches; ++m) {
    for (const bool forward : {true, false}) {
      const int begin = static_cast<int>(order.size());
      order.push_back({0, begin + layers + 1});
      for (int l = 0; l < layers; ++l) order.push_back({forward ? l + 1 : layers - l, begin + l + 2});
    }
  }
  return order;
}

struct Expected {
  std::vector<std::vector<int>> released;
  std::vector<std::vector<GatherOp>> gathered;
  std::size_t peak, arena, needed;
};

void check(const GatherCase& step, std::size_t max_live, const Expected& expected) {
  const GatherPlan plan = plan_of(step, max_live);
  CHECK(defect(step, plan, max_live) == "");
  REQUIRE(expected.released.size() == step.order.size());
  REQUIRE(expected.gathered.size() == step.order.size());
  for (std::size_t i = 0; i < step.order.size(); ++i) {
    CAPTURE(i);
    const auto at = [](const auto& all, const std::vector<std::size_t>& begin, std::size_t use) {
      return std::vector(all.begin() + static_cast<std::ptrdiff_t>(begin[use]),
                         all.begin() + static_cast<std::ptrdiff_t>(begin[use + 1]));
    };
    CHECK(at(plan.released, plan.released_begin, i) == expected.released[i]);
    CHECK(at(plan.gathered, plan.gathered_begin, i) == expected.gathered[i]);
  }
  CHECK(plan.peak == expected.peak);
  CHECK(plan.arena == expected.arena);
  CHECK(plan.needed == expected.needed);
}

constexpr std::size_t gathers_of_two_units(std::size_t max_live) {
  const std::vector<GatherUse> order{{0, 3}, {1, 2}, {2, 3}, {0, 6}, {2, 5}, {1, 6}};
  const std::vector<std::size_t> sizes{4, 4};
  return smp::make_gather_plan(order, {{}, {0}, {1}}, sizes, max_live).gathers();
}
static_assert(gathers_of_two_units(0) == 3 && gathers_of_two_units(7) == 3);
static_assert(gathers_of_two_units(8) == 2 && gathers_of_two_units(unlimited) == 2);

}  // namespace

TEST_CASE("two units: one at a time, and both") {
  const GatherCase step{passes(2, 1), {{}, {0}, {1}}, {4, 4}};
  check(step, 0, {{{}, {}, {0}, {}, {}, {1}}, {{{0, 0, -1}}, {}, {{1, 0, 0}}, {}, {}, {{0, 0, 1}}}, 4, 4, 4});
  check(step, 8, {{{}, {}, {}, {}, {}, {}}, {{{0, 0, -1}, {1, 4, -1}}, {}, {}, {}, {}, {}}, 8, 8, 4});
  const GatherPlan all = plan_of(step, unlimited);
  CHECK(all.gathered == plan_of(step, 8).gathered);
  CHECK(all.arena == 8);
}

TEST_CASE("the root stays, the units in it change places, and one is fetched ahead if there is room") {
  const GatherCase step{passes(3, 1), {{0}, {1}, {2}, {3}}, {2, 4, 4, 4}};
  check(step, 0,
        {{{}, {}, {1}, {2}, {}, {}, {3}, {2}},
         {{{0, 0, -1}, {1, 2, -1}}, {}, {{2, 2, 1}}, {{3, 2, 2}}, {}, {}, {{2, 2, 3}}, {{1, 2, 2}}},
         6,
         6,
         6});
  check(step, 10,
        {{{}, {}, {1}, {}, {}, {}, {3}, {}},
         {{{0, 0, -1}, {1, 2, -1}, {2, 6, -1}}, {}, {{3, 2, 1}}, {}, {}, {}, {{1, 2, 3}}, {}},
         10,
         10,
         6});
}

TEST_CASE("a tied block is there for both of its users") {
  const GatherCase step{passes(3, 1), {{}, {0}, {1}, {2, 0}}, {3, 4, 2}};
  // At 7: block 0 is kept under unit 2, so only block 2 is gathered for unit 3; and again the other way round.
  check(step, 7,
        {{{}, {}, {}, {1}, {}, {}, {2}, {}},
         {{{0, 0, -1}, {1, 3, -1}}, {}, {}, {{2, 3, 1}}, {}, {}, {{1, 3, 2}}, {}},
         7,
         7,
         5});
}

TEST_CASE("unequal sizes share one storage") {
  // Two blocks make room for a larger one; then it for them, in the order of need: 1 goes where 2 began.
  const GatherCase step{passes(3, 1), {{}, {0}, {1}, {2}}, {3, 5, 4}};
  check(step, 8,
        {{{}, {}, {}, {0, 1}, {}, {}, {2}, {}},
         {{{0, 0, -1}, {1, 3, -1}}, {}, {}, {{2, 0, 1}}, {}, {}, {{1, 0, 2}, {0, 5, 1}}, {}},
         8,
         8,
         5});
}

TEST_CASE("a block that was fetched ahead to where the rest of its unit has no place is gathered again") {
  // Unit 3 holds 7 of 8 while units inside of it need up to 1; block 1, which unit 1 left in the middle, is in the way.
  const GatherCase step{{{0, 1}, {1, 2}, {2, 4}, {3, 4}}, {{0}, {1}, {1, 2}, {3}}, {2, 3, 4, 1}};
  check(step, 8,
        {{{}, {}, {1, 0}, {}}, {{{0, 0, -1}, {1, 2, -1}}, {}, {{1, 0, 1}, {2, 3, 1}, {3, 7, -1}}, {}}, 8, 8, 8});
}

TEST_CASE("uses that do not nest are refused") {
  const std::vector<std::size_t> sizes{1};
  const auto plan = [&](std::vector<GatherUse> order) { return smp::make_gather_plan(order, {{0}}, sizes, 1); };
  CHECK_THROWS_WITH_AS(plan({{0, 2}, {0, 3}, {0, 3}}),
                       "smp: use 1 of a unit ends when 3 uses have begun; expected from 2 to 2: uses nest",
                       smp::ConfigError);
  CHECK_THROWS_WITH_AS(plan({{0, 0}}),
                       "smp: use 0 of a unit ends when 0 uses have begun; expected from 1 to 1: uses nest",
                       smp::ConfigError);
  CHECK(plan({}).gathers() == 0);
  CHECK(smp::make_gather_plan(std::vector<GatherUse>{{0, 1}}, {{}}, sizes, 0).arena == 0);
}

namespace {

// Any tree of uses, run forward and, mirrored, backward, by every micro-batch; units share blocks.
class RandomStep {
 public:
  explicit RandomStep(unsigned seed) : random_(seed) {
    const int units = below(12) + 1, blocks = below(16) + 1;
    for (int b = 0; b < blocks; ++b) step_.sizes.push_back(static_cast<std::size_t>(below(4) == 0 ? below(40) : 8));
    step_.blocks.resize(static_cast<std::size_t>(units));
    for (auto& of_unit : step_.blocks) {
      for (int n = below(4); n > 0; --n) {
        const int b = below(blocks);
        if (std::find(of_unit.begin(), of_unit.end(), b) == of_unit.end()) of_unit.push_back(b);
      }
    }
    tree_.push_back({});
    for (int nodes = below(14) + 1; nodes > 0; --nodes) {
      tree_[static_cast<std::size_t>(below(static_cast<int>(tree_.size())))].inner.push_back(tree_.size());
      tree_.push_back({below(units), {}});
    }
    for (int m = below(3); m >= 0; --m) {
      run(0, true);
      run(0, false);
    }
  }

  const GatherCase& step() const { return step_; }
  std::size_t total() const {
    std::vector<char> used(step_.sizes.size());
    std::size_t sum = 0;
    for (const GatherUse& use : step_.order) {
      for (const int b : step_.blocks[static_cast<std::size_t>(use.unit)]) {
        if (!std::exchange(used[static_cast<std::size_t>(b)], 1)) sum += step_.sizes[static_cast<std::size_t>(b)];
      }
    }
    return sum;
  }

 private:
  struct Node {
    int unit = 0;
    std::vector<std::size_t> inner{};
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  void run(std::size_t node, bool forward) {
    const std::size_t at = step_.order.size();
    step_.order.push_back({tree_[node].unit, 0});
    std::vector<std::size_t> inner = tree_[node].inner;
    if (!forward) std::reverse(inner.begin(), inner.end());
    for (const std::size_t i : inner) run(i, forward);
    step_.order[at].until = static_cast<int>(step_.order.size());
  }

  std::mt19937 random_;
  GatherCase step_;
  std::vector<Node> tree_;
};

}  // namespace

TEST_CASE("plans of random orders, sizes and budgets keep every promise") {
  const unsigned seeds = smp::testing::full() ? 20000 : 500;
  std::size_t plans = 0, more = 0, most_more = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    const RandomStep random(seed);
    const GatherCase& step = random.step();
    const std::size_t total = random.total();
    std::size_t before = unlimited;
    for (std::size_t eighths = 0; eighths <= 8; ++eighths, ++plans) {
      const std::size_t max_live = total * eighths / 8;
      CAPTURE(max_live);
      const GatherPlan plan = plan_of(step, max_live);
      REQUIRE(defect(step, plan, max_live) == "");
      if (plan.gathers() > before) {
        ++more;
        most_more = std::max(most_more, plan.gathers() - before);
      }
      before = plan.gathers();
    }
    const GatherPlan all = plan_of(step, total);
    CHECK(all.arena == total);
    CHECK(all.released.empty());
    CHECK(all.gathered == plan_of(step, unlimited).gathered);
  }
  MESSAGE(plans << " plans, " << more << " with more gathers than at the next smaller budget, at most " << most_more);
}

TEST_CASE("a plan of blocks of one size never needs more gathers for a larger budget") {
  for (const int layers : {1, 2, 5, 8}) {
    GatherCase step{passes(layers, 3), {{}}, std::vector<std::size_t>(static_cast<std::size_t>(layers), 4)};
    for (int l = 0; l < layers; ++l) step.blocks.push_back({l});
    for (std::size_t n = 1, before = unlimited; n <= static_cast<std::size_t>(layers); ++n) {
      // 6 passes; when one turns, the n last blocks are still there
      const std::size_t here = static_cast<std::size_t>(layers);
      const std::size_t gathers = plan_of(step, 4 * n).gathers();
      CHECK(gathers == here + 5 * (here - n));
      CHECK(gathers <= before);
      before = gathers;
    }
  }
}

TEST_CASE("1,000 units and 4 micro-batches are planned in 50 ms") {
  constexpr int units = 1000;
  GatherCase step{passes(units, 4), {{}}, {}};
  std::size_t total = 0;
  for (int u = 0; u < units; ++u) {
    step.blocks.push_back({u});
    step.sizes.push_back(256 * (1 + static_cast<std::size_t>(u) * 7919 % 13));
    total += step.sizes.back();
  }
  for (const std::size_t max_live : {std::size_t{0}, total / 2, total}) {
    double best = 1e9;  // the machine may have other things to do now and then
    for (int attempt = 0; attempt < (optimised ? 20 : 1) && best > 50; ++attempt) {
      const auto begin = std::chrono::steady_clock::now();
      CHECK(plan_of(step, max_live).gathers() >= units);
      best =
          std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    if (optimised) CHECK(best <= 50);
  }
}

TEST_CASE("the replay notices broken plans") {
  const GatherCase step{passes(3, 1), {{0}, {1}, {2}, {3}}, {2, 4, 4, 4}};
  const GatherPlan good = plan_of(step, 10);
  const auto found = [&](auto spoil) {
    GatherPlan plan = good;
    spoil(plan);
    return defect(step, plan, 10);
  };
  CHECK(found([](GatherPlan&) {}) == "");
  CHECK(found([](GatherPlan& p) { p.gathered[3].after = -1; }) ==
        "block 3 is gathered before the last reader of the place has left, use 2");
  CHECK(found([](GatherPlan& p) { p.gathered[3].after = 2; }) ==
        "block 3 is gathered before the last reader of the place has left, use 2");
  CHECK(found([](GatherPlan& p) { p.gathered[1].after = 0; }) == "block 1 waits for nothing, use 0");
  CHECK(found([](GatherPlan& p) { p.gathered[3].offset = 3; }) == "block 3 is gathered over another, use 2");
  CHECK(found([](GatherPlan& p) { p.released[0] = 2; }) == "block 3 is gathered over another, use 2");
  CHECK(found([](GatherPlan& p) { p.released[0] = 0; }) == "block 0 is released in use, use 2");
  CHECK(found([](GatherPlan& p) { p.released[0] = 3; }) == "block 3 is released, but is not here, use 2");
  CHECK(found([](GatherPlan& p) { p.gathered[3].block = 2; }) == "block 2 is gathered, but is here, use 2");
  CHECK(found([](GatherPlan& p) { std::fill(p.gathered_begin.begin() + 3, p.gathered_begin.end(), 3); }) ==
        "block 3 is not here, use 3");
  CHECK(found([](GatherPlan& p) { --p.peak; }) == "peak is 10, use 7");
  CHECK(found([](GatherPlan& p) { --p.arena; }) == "arena is 10, use 7");
  CHECK(found([](GatherPlan& p) { --p.needed; }) == "needed is 6, use 7");
  CHECK(found([](GatherPlan& p) { p.gathered.pop_back(); }) != "");
  CHECK(defect(step, good, 9) == "the arena is larger than the budget, use 7");
}
