// SPDX-License-Identifier: Apache-2.0
// What schedules cost, against closed forms and published numbers.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>
#include <smp/pipeline/simulate.hpp>

using namespace smp;

namespace {

constexpr ActionTimes equal = ActionTimes::split(1, 1, 1);
constexpr ActionTimes uneven = ActionTimes::split(1, 1.3, 0.7);

template <class S>
PipelineSimulation simulated(const S& schedule, int ranks, int microbatches, const ActionTimes& times) {
  return simulate(make_pipeline_plan(schedule, {ranks, microbatches}), times);
}
template <class S>
std::vector<int> in_flight(const S& schedule, int ranks, int microbatches) {
  const Table<int> peak = simulated(schedule, ranks, microbatches, {}).peak_in_flight;
  return {peak.begin(), peak.end()};
}

// The simulator is a constant expression, too.
static_assert(simulate(make_pipeline_plan(Schedule::Interleaved{}, {2, 4}), equal).makespan == 15);
static_assert(simulate(make_pipeline_plan(Schedule::Interleaved{}, {4, 8})).peak_in_flight[1] == 3);

}  // namespace

TEST_CASE("bubble of GPipe, 1F1B and looped: (S-1)/(VM+S-1), whatever the times") {
  for (const ActionTimes times : {ActionTimes::ticks(), equal, uneven, ActionTimes::split(3, 0.5, 2)})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int m = ranks; m <= 4 * ranks; m += ranks) {
        const auto bubble = [&](const RuntimeSchedule& schedule) {
          return simulated(schedule, ranks, m, times).bubble;
        };
        const auto formula = [&](int chunks) { return (ranks - 1.0) / (chunks * m + ranks - 1); };
        CHECK(bubble(RuntimeSchedule::named("simple")) == doctest::Approx(formula(1)));
        CHECK(bubble(RuntimeSchedule::named("interleaved")) == doctest::Approx(formula(1)));
        for (int chunks = 1; chunks <= 4; ++chunks) {
          CHECK(bubble(RuntimeSchedule::named("looped", chunks)) == doctest::Approx(formula(chunks)));
          CHECK(bubble(RuntimeSchedule::named("looped_breadth", chunks)) == doctest::Approx(formula(chunks)));
        }
      }
}

TEST_CASE("bubble of GPipe and 1F1B with fewer micro-batches than ranks is (S-1)/(M+S-1), too") {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (int m = 1; m <= 40; ++m) {
      CHECK(simulated(Schedule::Simple{}, ranks, m, {}).bubble == doctest::Approx((ranks - 1.0) / (m + ranks - 1)));
      CHECK(simulated(Schedule::Interleaved{}, ranks, m, {}).bubble ==
            doctest::Approx((ranks - 1.0) / (m + ranks - 1)));
    }
}

TEST_CASE("published makespans with F = I = W = 1") {
  const auto makespans = [](auto schedule) {
    std::vector<double> found;
    for (const auto& [ranks, m] : std::vector<std::pair<int, int>>{{2, 4}, {4, 8}, {4, 16}, {8, 16}, {8, 32}})
      found.push_back(simulated(schedule, ranks, m, equal).makespan);
    return found;
  };
  using Numbers = std::vector<double>;
  CHECK(makespans(Schedule::Simple{}) == Numbers{15, 33, 57, 69, 117});
  CHECK(makespans(Schedule::Interleaved{}) == Numbers{15, 33, 57, 69, 117});
  CHECK(makespans(Schedule::Looped<2>{}) == Numbers{27, 57, 105, 117, 213});
  CHECK(makespans(Schedule::ZeroBubble{}) == Numbers{13, 27, 51, 55, 103});
  CHECK(makespans(Schedule::ZeroBubbleV{}) == Numbers{25, 51, 99, 103, 199});
  CHECK(makespans(Schedule::DualPipeV{}) == Numbers{26, 54, 102, 110, 206});
}

TEST_CASE("idle time of the zero-bubble schedules") {
  for (const ActionTimes times : {equal, uneven})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int m = ranks; m <= 4 * ranks; ++m)
        CHECK(simulated(Schedule::ZeroBubble{}, ranks, m, times).idle ==
              doctest::Approx((ranks - 1) * (times.forward + times.backward_input - times.backward_params)));
  CHECK(simulated(Schedule::ZeroBubbleV{}, 4, 8, uneven).idle == doctest::Approx(3.9));
  CHECK(simulated(Schedule::ZeroBubbleV{}, 8, 16, uneven).idle == doctest::Approx(9.1));
  CHECK(simulated(Schedule::DualPipeV{}, 4, 8, uneven).idle == doctest::Approx(7.8));
  for (int ranks = 1; ranks <= 8; ++ranks) {
    CHECK(simulated(Schedule::ZeroBubbleV{}, ranks, 2 * ranks - 1, equal).idle == doctest::Approx(ranks - 1));
    CHECK(simulated(Schedule::ZeroBubbleV{}, ranks, 3 * ranks, equal).idle == doctest::Approx(ranks - 1));
    // (S-1)(F&B + B - 3W) with F&B = F + B
    CHECK(simulated(Schedule::DualPipeV{}, ranks, 3 * ranks, equal).idle == doctest::Approx(2 * (ranks - 1)));
  }
}

TEST_CASE("ZB-V: with equal times no rank idles between its first and its last action") {
  const PipelinePlan plan = make_pipeline_plan(Schedule::ZeroBubbleV{}, {6, 14});
  const PipelineTimeline timeline = simulate(plan, equal).timeline;
  for (int rank = 0; rank < 6; ++rank)
    for (int i = plan.first[rank]; i + 1 < plan.first[rank + 1]; ++i) CHECK(timeline.end[i] == timeline.start[i + 1]);
}

TEST_CASE("peak in flight: chunk activations of each rank") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int m = 1; m <= 3 * ranks; ++m) {
      const auto each = [&](auto formula) {
        std::vector<int> peak;
        for (int rank = 0; rank < ranks; ++rank) peak.push_back(formula(rank));
        return peak;
      };
      CAPTURE(ranks);
      CAPTURE(m);
      CHECK(in_flight(Schedule::Simple{}, ranks, m) == each([&](int) { return m; }));
      CHECK(in_flight(Schedule::Interleaved{}, ranks, m) == each([&](int s) { return std::min(ranks - s, m); }));
      CHECK(in_flight(Schedule::Looped<3, LoopOrder::breadth_first>{}, ranks, m) == each([&](int) { return 3 * m; }));
      CHECK(in_flight(Schedule::ForwardOnly<>{}, ranks, m) == each([&](int) { return 1; }));
      if (m >= ranks) CHECK(in_flight(Schedule::ZeroBubble{}, ranks, m) == each([&](int) { return ranks; }));
      if (m % ranks == 0)
        CHECK(in_flight(Schedule::Looped<3>{}, ranks, m) ==
              each([&](int r) { return std::min(3 * m, 2 * ranks + 2 * (ranks - 1 - r) + 1); }));
      if (m >= 2 * ranks) {
        CHECK(in_flight(Schedule::ZeroBubbleV{}, ranks, m) == each([&](int) { return 2 * ranks; }));
        if (m > 2 * ranks)
          CHECK(in_flight(Schedule::DualPipeV{}, ranks, m) == each([&](int) { return 2 * ranks + 1; }));
      }
    }
}

TEST_CASE("slots: as many as activations, none used twice at a time, any order of freeing") {
  for (const char* const name :
       {"simple", "interleaved", "looped", "zero_bubble", "zero_bubble_v", "dual_pipe_v", "forward_only"}) {
    CAPTURE(name);
    const PipelinePlan plan = make_pipeline_plan(RuntimeSchedule::named(name), {4, 8});
    const SlotAssignment slots = assign_slots(plan);
    CHECK(slots.count == count_slots(plan, check_schedule(plan).exchange).activations);
    const bool trains = std::string(name) != "forward_only";
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<std::vector<int>> holder(static_cast<std::size_t>(plan.shape.chunks), std::vector<int>(16, -1));
      int held = 0, most = 0;
      for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i) {
        const Action& a = plan.actions[i];
        if (a.kind == ActionKind::update) continue;
        CHECK(slots.slot[i] < slots.count[rank * plan.shape.chunks + a.chunk]);
        int& in_slot = holder[static_cast<std::size_t>(a.chunk)][static_cast<std::size_t>(slots.slot[i])];
        CHECK(in_slot == (a.kind == ActionKind::forward ? -1 : a.microbatch));
        if (a.kind == ActionKind::forward && trains) in_slot = a.microbatch;
        most = std::max(most, held += a.kind == ActionKind::forward);
        if (a.kind == ActionKind::backward || a.kind == ActionKind::backward_params || !trains) {
          in_slot = -1;
          --held;
        }
      }
      CHECK(most == simulate(plan).peak_in_flight[rank]);
    }
  }
  const PipelinePlan reversed = make_pipeline_plan(TableSchedule::parse({"F0 F1 F2 B1 F3 B3 B2 B0"}), {1, 4});
  const Table<int> slot = assign_slots(reversed).slot;
  CHECK(std::vector<int>(slot.begin(), slot.end()) == std::vector{0, 1, 2, 1, 1, 1, 2, 0, -1});
}

TEST_CASE("messages that a channel must buffer if senders never wait") {
  const auto depths = [](auto schedule, const std::vector<std::pair<int, int>>& shapes) {
    std::vector<int> found;
    for (const auto& [ranks, m] : shapes) {
      const PipelinePlan plan = make_pipeline_plan(schedule, {ranks, m});
      found.push_back(deepest_channel(plan, find_dependencies(plan)));
    }
    return found;
  };
  const std::vector<std::pair<int, int>> shapes{{2, 8}, {4, 8}, {4, 16}, {8, 16}};
  CHECK(depths(Schedule::Simple{}, shapes) == std::vector{8, 8, 16, 16});                               // M
  CHECK(depths(Schedule::Looped<2, LoopOrder::breadth_first>{}, shapes) == std::vector{8, 8, 16, 16});  // M
  CHECK(depths(Schedule::Interleaved{}, shapes) == std::vector{2, 4, 4, 8});                            // S
  CHECK(depths(Schedule::ZeroBubble{}, shapes) == std::vector{2, 4, 4, 8});                             // S
  CHECK(depths(Schedule::Looped<2>{}, shapes) == std::vector{4, 7, 7, 15});  // 2S - 1 from 4 on
  CHECK(depths(Schedule::ZeroBubbleV{}, shapes) == std::vector{4, 7, 7, 15});
  CHECK(depths(Schedule::DualPipeV{}, shapes) == std::vector{4, 7, 7, 15});
}

TEST_CASE("the cap: Simple in waves, Interleaved unbound from S on") {
  for (int cap = 1; cap <= 8; ++cap) {
    const PipelineSimulation simple = simulate(make_pipeline_plan(Schedule::Simple{}, {4, 8, cap}));
    CHECK(simple.peak_in_flight[0] == cap);
    CHECK(simple.makespan == 2 * (8 + (8 + cap - 1) / cap * 3));  // every wave drains
    const PipelineSimulation interleaved = simulate(make_pipeline_plan(Schedule::Interleaved{}, {4, 8, cap}));
    CHECK(interleaved.peak_microbatches[0] == std::min(cap, 4));
    if (cap >= 4) CHECK(interleaved.makespan == 22);
  }
}

TEST_CASE("hop latency c: GPipe 2(p-1)c; 1F1B grows with m; looped 2(vp-1)c; ZB-H1 4(p-1)c") {
  constexpr double c = 0.125;
  const auto added = [](auto schedule, int ranks, int m) {
    return simulated(schedule, ranks, m, ActionTimes::split(1, 1, 1, c)).makespan -
           simulated(schedule, ranks, m, equal).makespan;
  };
  for (const int ranks : {2, 4, 8})
    for (const int m : {2 * ranks, 4 * ranks}) {
      CAPTURE(ranks);
      CAPTURE(m);
      CHECK(added(Schedule::Simple{}, ranks, m) == doctest::Approx(2 * (ranks - 1) * c));
      CHECK(added(Schedule::Interleaved{}, ranks, m) ==
            doctest::Approx(c * (2.0 * m * (ranks - 1) / ranks + 2 * (ranks - 2))));
      CHECK(added(Schedule::Looped<2>{}, ranks, m) == doctest::Approx(2 * (2 * ranks - 1) * c));
      CHECK(added(Schedule::ZeroBubble{}, ranks, m) == doctest::Approx(4 * (ranks - 1) * c));
    }
}

TEST_CASE("overlapped actions start and end as one") {
  const PipelinePlan plan = make_pipeline_plan(Schedule::DualPipeV{}, {2, 4});
  const PipelineTimeline timeline = simulate(plan, equal).timeline;
  for (int i = 0; i < plan.size(); ++i)
    if (plan.actions[i].overlaps_next) {
      CHECK(timeline.end[i] == timeline.end[i + 1]);
      CHECK(timeline.start[i + 1] == timeline.start[i] + 1);
      CHECK(timeline.end[i] == timeline.start[i] + 3);
    }
}

TEST_CASE("what cannot run is refused with the defect") {
  const auto table = TableSchedule::parse({"F0 B0 F1 B1", "F1 F0 B0 B1"});
  CHECK_THROWS_WITH_AS(
      (void)simulate(make_pipeline_plan(table, {2, 2})),
      "smp: this schedule cannot run: rank 0, position 1 (B0): needs a result of rank 1, which waits in "
      "turn (a cycle of 2 ranks)",
      ConfigError);
  CHECK_THROWS_AS((void)simulate(make_pipeline_plan(TableSchedule::parse({"F0 F1 B0", "F0 F1 B0 B1"}), {2, 2})),
                  ConfigError);
}
