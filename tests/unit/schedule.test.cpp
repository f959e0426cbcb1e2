// SPDX-License-Identifier: Apache-2.0
// The orders of the shipped schedules, what a schedule may say of itself, and schedules that are known at run time.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/schedules.hpp>

using namespace smp;

namespace {

/// The lists of a plan as text, without idle time and update.
std::vector<std::string> rows(const PipelinePlan& plan) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    std::string line;
    for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i)
      if (plan.actions[i].kind != ActionKind::update) line += (line.empty() ? "" : " ") + plan.cell(i);
    lines.push_back(line);
  }
  return lines;
}
template <class S>
std::vector<std::string> rows(const S& schedule, PipelineShape shape) {
  return rows(make_pipeline_plan(schedule, shape));
}
using Rows = std::vector<std::string>;

template <class S>
std::string refusal(const S& schedule, PipelineShape shape) {
  try {
    (void)make_pipeline_plan(schedule, shape);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

struct FirstAndLast {  // three stages on two ranks; rank 0 holds the first and the last
  static constexpr int chunks = 2;
  static constexpr int stages(const PipelineShape&) { return 3; }
  static constexpr int stage_rank(const PipelineShape&, int stage) { return stage % 2; }
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    for (int m = 0; m < shape.microbatches; ++m)
      rank == 0 ? next.forward(0).forward(1).backward(1).backward(0) : next.forward(0).backward(0);
  }
};

}  // namespace

namespace near_misses {  // of the concept
struct NoOrder {};
struct OrderWithoutRank {
  void order(const PipelineShape&, RankOrder&) const {}
};
struct OrderNotConst {
  void order(const PipelineShape&, int, RankOrder&) {}
};
}  // namespace near_misses

namespace {

using namespace near_misses;
static_assert(PipelineSchedule<Schedule::Simple> && PipelineSchedule<Schedule::Looped<3>> &&
              PipelineSchedule<Schedule::Runtime> && PipelineSchedule<TableSchedule> && PipelineSchedule<FirstAndLast>);
static_assert(!PipelineSchedule<NoOrder> && !PipelineSchedule<OrderWithoutRank> && !PipelineSchedule<OrderNotConst> &&
              !PipelineSchedule<int>);

// A plan is a value that the compiler can look into.
static_assert(make_pipeline_plan(Schedule::Interleaved{}, {2, 4}).actions[2].kind ==
              ActionKind::backward);  // B0 before F2
static_assert(make_pipeline_plan(Schedule::Interleaved{}, {2, 4}).size() == 2 * (4 + 4 + 1));
static_assert(make_pipeline_plan(Schedule::Looped<4>{}, {2, 4}).stages() == 8);

}  // namespace

TEST_CASE("the orders of the shipped schedules") {
  CHECK(rows(Schedule::Simple{}, {2, 3}) == Rows{"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"});
  CHECK(rows(Schedule::Interleaved{}, {2, 4}) == Rows{"F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"});
  CHECK(rows(Schedule::Interleaved{}, {4, 1}) == Rows{"F0 B0", "F0 B0", "F0 B0", "F0 B0"});
  CHECK(rows(Schedule::Looped<2>{}, {2, 2}) ==
        Rows{"F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0", "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"});
  CHECK(rows(Schedule::Looped<2, LoopOrder::breadth_first>{}, {2, 3})[1] ==
        "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1 B2.1 B0.0 B1.0 B2.0");
  CHECK(rows(Schedule::ZeroBubble{}, {3, 4}) == Rows{"F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",  //
                                                     "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
                                                     "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"});
  CHECK(rows(Schedule::ZeroBubbleV{}, {2, 3}) ==
        Rows{"F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 I2.0 W2.0",
             "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 I1.0 I2.1 I2.0 W1.0 W2.1 W2.0"});
  CHECK(rows(Schedule::DualPipeV{}, {2, 4}) ==
        Rows{"F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 F3.0 B1.1 F2.1 B0.0 B2.1 F3.1 B1.0 B3.1 I2.0 W2.0 I3.0 W3.0",
             "F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 F2.1 B0.0 F3.0 B1.1 F3.1 B1.0 B2.1 B2.0 I3.1 I3.0 W3.1 W3.0"});
  CHECK(rows(Schedule::ForwardOnly<>{}, {2, 3}) == Rows{"F0 F1 F2", "F0 F1 F2"});
  CHECK(rows(Schedule::ForwardOnly<Schedule::ZeroBubbleV>{}, {2, 2})[0] == "F0.0 F1.0 F0.1 F1.1");
}

TEST_CASE("DualPipeV overlaps forwards with backwards, but not at the fold's first pair") {
  const PipelinePlan plan = make_pipeline_plan(Schedule::DualPipeV{}, {2, 4});
  const auto overlapped = [&](int rank) {
    std::string cells;
    for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i)
      if (plan.actions[i].overlaps_next) cells += plan.cell(i) + "&" + plan.cell(i + 1) + " ";
    return cells;
  };
  CHECK(overlapped(0) == "F3.0&B1.1 F2.1&B0.0 F3.1&B1.0 ");
  CHECK(overlapped(1) == "F2.1&B0.0 F3.0&B1.1 F3.1&B1.0 ");
}

TEST_CASE("a list that trains ends with one update, an evaluation has none") {
  const PipelinePlan plan = make_pipeline_plan(Schedule::ZeroBubble{}, {3, 2});
  for (int rank = 0; rank < 3; ++rank) CHECK(plan.cell(plan.first[rank + 1] - 1) == "U");
  for (const Action& action : make_pipeline_plan(Schedule::ForwardOnly<>{}, {3, 2}).actions)
    CHECK(action.kind == ActionKind::forward);
}

TEST_CASE("where stages are") {
  const PipelinePlan looped = make_pipeline_plan(Schedule::Looped<2>{}, {2, 2});
  const auto list = [](const Table<int>& table) { return std::vector<int>(table.begin(), table.end()); };
  CHECK(list(looped.stage_rank) == std::vector{0, 1, 0, 1});
  CHECK(list(make_pipeline_plan(Schedule::ZeroBubbleV{}, {3, 5}).stage_rank) == std::vector{0, 1, 2, 2, 1, 0});
  const PipelinePlan folded = make_pipeline_plan(FirstAndLast{}, {2, 1});
  CHECK(list(folded.stage_rank) == std::vector{0, 1, 0});
  CHECK(list(folded.chunk_stage) == std::vector{0, 2, 1, -1});
  CHECK(list(make_pipeline_plan(Schedule::ForwardOnly<Schedule::ZeroBubbleV>{}, {2, 1}).stage_rank) ==
        std::vector{0, 1, 1, 0});
}

TEST_CASE("a cap on active micro-batches makes waves, and none where it does not bind") {
  CHECK(rows(Schedule::Simple{}, {2, 5, 2})[0] == "F0 F1 B0 B1 F2 F3 B2 B3 F4 B4");
  CHECK(rows(Schedule::Simple{}, {2, 5, 5}) == rows(Schedule::Simple{}, {2, 5}));
  CHECK(rows(Schedule::Interleaved{}, {4, 8, 4}) == rows(Schedule::Interleaved{}, {4, 8}));
  CHECK(rows(Schedule::Interleaved{}, {4, 8, 9}) == rows(Schedule::Interleaved{}, {4, 8}));
  CHECK(rows(Schedule::Interleaved{}, {4, 4, 3})[0] == "F0 F1 F2 B0 B1 B2 F3 B3");
  CHECK(rows(Schedule::Looped<2>{}, {2, 8, 2})[0].starts_with("F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0 F2.0"));
  CHECK(refusal(Schedule::Looped<2>{}, {4, 16, 6}) ==
        "smp: looped on 4 ranks needs a multiple of 4 active_microbatches; found 6, the nearest legal numbers are 4 "
        "and 8");
  CHECK(refusal(Schedule::ZeroBubbleV{}, {2, 8, 3}) ==
        "smp: zero_bubble_v on 2 ranks needs at least 3 micro-batches in its last wave; found 2, the nearest legal "
        "number "
        "is 3");
  CHECK(rows(Schedule::ForwardOnly<>{}, {2, 5, 1}) == rows(Schedule::ForwardOnly<>{}, {2, 5}));
}

TEST_CASE("shapes that a schedule cannot run are refused with the nearest legal one") {
  CHECK(refusal(Schedule::Looped<2>{}, {4, 6}) ==
        "smp: looped on 4 ranks needs a multiple of 4 micro-batches; found 6, the nearest legal numbers are 4 and 8");
  CHECK(refusal(Schedule::Looped<2>{}, {4, 3}) ==
        "smp: looped on 4 ranks needs a multiple of 4 micro-batches; found 3, the nearest legal number is 4");
  CHECK(refusal(Schedule::Looped<2, LoopOrder::breadth_first>{}, {4, 3}) == "accepted");
  CHECK(refusal(Schedule::ZeroBubbleV{}, {4, 6}) ==
        "smp: zero_bubble_v on 4 ranks needs at least 7 micro-batches; found 6, the nearest legal number is 7");
  CHECK(refusal(Schedule::ZeroBubbleV{}, {4, 7}) == "accepted");
  CHECK(refusal(Schedule::DualPipeV{}, {1, 1}) ==
        "smp: dual_pipe_v on 1 rank needs at least 2 micro-batches; found 1, the nearest legal number is 2");
  CHECK(refusal(Schedule::Simple{}, {0, 4}) == "smp: the number of pipeline ranks must be at least 1; found 0");
  CHECK(refusal(Schedule::Simple{}, {2, 0}) == "smp: the number of micro-batches must be at least 1; found 0");
  CHECK(refusal(Schedule::Simple{}, {2, 2, -1}) == "smp: active_microbatches must be at least 0; found -1");
  CHECK(refusal(Schedule::Simple{}, {2, 1 << 30}) ==
        "smp: a schedule of 2 ranks, 1 chunks each and 1073741824 micro-batches is too large; expected at most 8192 "
        "ranks "
        "and 67108864 forwards");
  CHECK(refusal(FirstAndLast{}, {1, 4}) == "smp: a schedule puts stage 1 on rank 1; expected a rank from 0 to 0");
}

TEST_CASE("a schedule named at run time is the one named by its type") {
  const auto same = [](auto schedule, std::optional<int> chunks = {}) {
    const auto erased = RuntimeSchedule::named(name_of(schedule), chunks);
    CHECK(erased.name == name_of(schedule));
    for (const PipelineShape shape : {PipelineShape{1, 4}, PipelineShape{2, 4}, PipelineShape{4, 8, 8}}) {
      const PipelinePlan expected = make_pipeline_plan(schedule, shape), found = make_pipeline_plan(erased, shape);
      CHECK(found.actions == expected.actions);
      CHECK(found.first == expected.first);
      CHECK(found.stage_rank == expected.stage_rank);
    }
    CHECK(refusal(erased, {4, 6}) == refusal(schedule, {4, 6}));
  };
  same(Schedule::Simple{});
  same(Schedule::Interleaved{});
  same(Schedule::Looped<3>{}, 3);
  same(Schedule::Looped<2, LoopOrder::breadth_first>{});
  same(Schedule::ZeroBubble{}, 1);
  same(Schedule::ZeroBubbleV{}, 2);
  same(Schedule::DualPipeV{});
  same(Schedule::ForwardOnly<>{});
  same(Schedule::ForwardOnly<Schedule::Looped<2>>{}, 2);
  CHECK_THROWS_WITH_AS((void)RuntimeSchedule::named("gpipe"),
                       "smp: no schedule is called 'gpipe'; there are simple, interleaved, looped, looped_breadth, "
                       "zero_bubble, zero_bubble_v, dual_pipe_v and forward_only",
                       ConfigError);
  CHECK_THROWS_WITH_AS((void)RuntimeSchedule::named("simple", 2),
                       "smp: simple holds 1 chunks a rank; found 2 (looped and looped_breadth take any number)",
                       ConfigError);
  CHECK_THROWS_AS((void)RuntimeSchedule::named("looped", 0), ConfigError);
}

TEST_CASE("a table reads what is printed") {
  for (const char* const name : {"interleaved", "zero_bubble", "looped", "zero_bubble_v"}) {
    const PipelinePlan plan = make_pipeline_plan(RuntimeSchedule::named(name), {3, 6});
    const auto table =
        TableSchedule::parse(rows(plan), std::vector<int>(plan.stage_rank.begin(), plan.stage_rank.end()));
    CHECK(make_pipeline_plan(table, {3, 6}).actions == plan.actions);
    CHECK(make_pipeline_plan(RuntimeSchedule::of(table), {3, 6}).actions == plan.actions);
  }
  const auto table = TableSchedule::parse({"F0 --  B0 U", "-- F0 B0 --"});
  CHECK(rows(table, {2, 1}) == Rows{"F0 B0", "F0 B0"});
  CHECK(refusal(table, {2, 2}) == "smp: table is a table for 2 ranks and 1 micro-batches; found 2 and 2");
  for (const char* const word : {"X0", "F", "F-1", "F0.", "F0.-1", "F0x", "F2147483647", "F99999999999", "0"}) {
    CAPTURE(word);
    CHECK_THROWS_AS((void)TableSchedule::parse({std::string("F0 ") + word}), ConfigError);
  }
  CHECK_THROWS_WITH_AS(
      (void)TableSchedule::parse({"F0 B0", "F0 Q0"}),
      "smp: row 1 of a schedule: 'Q0' is no action; expected a letter of FBIW, a micro-batch and, where a "
      "rank holds several, .chunk",
      ConfigError);
}
