// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Runs the lists of a plan with given times: when each action starts, the makespan, the bubble, and what is held.

#include <smp/pipeline/dependencies.hpp>

namespace smp {

/// How long actions take, in any unit. A message takes `hop` between two ranks and nothing within one; the sender does
/// not wait for it.
struct ActionTimes {
  double forward = 1;          ///< of a chunk and a micro-batch, as all below
  double backward = 1;         ///< whole
  double backward_input = 1;   ///< the half for the previous stage
  double backward_params = 1;  ///< the half for the optimizer
  double hop = 0;              ///< a message between two ranks

  /// Every action takes one tick.
  [[nodiscard]] static constexpr ActionTimes ticks() noexcept { return {}; }
  /// A whole backward takes as long as its two halves.
  [[nodiscard]] static constexpr ActionTimes split(double f, double i, double w, double hop = 0) noexcept {
    return {f, i + w, i, w, hop};
  }
  /// The time of one action.
  [[nodiscard]] constexpr double of(ActionKind kind) const noexcept {
    switch (kind) {
      case ActionKind::forward:
        return forward;
      case ActionKind::backward:
        return backward;
      case ActionKind::backward_input:
        return backward_input;
      case ActionKind::backward_params:
        return backward_params;
      case ActionKind::update:
        break;
    }
    return 0;
  }
};

/// When each action starts and when its result is there (for overlapped actions: at the end of all of them).
struct PipelineTimeline {
  Table<double> start;    ///< by action
  Table<double> end;      ///< by action
  ScheduleDefect defect;  ///< cyclic_dependency, if the plan cannot be run at all
};

/// Runs every rank through its list, each action as early as possible. `duration(i)` is the time of action `i`.
template <class Duration>
[[nodiscard]] constexpr PipelineTimeline run_timed(const PipelinePlan& plan, const ActionDependencies& d,
                                                   Duration duration, double hop) {
  constexpr double unknown = -1;
  PipelineTimeline t{Table<double>(plan.size()), Table<double>(plan.size(), unknown), {}};
  Table<int> next = plan.first, waits_for(plan.ranks(), -1);
  Table<double> now(plan.ranks());
  double* const ends = t.end.begin();
  for (detail::AwakeRanks awake(plan.ranks()); awake.any();) {
    const int rank = awake.next(), stop = plan.first[rank + 1];
    int head = next[rank], peer = -1;
    double clock = now[rank];
    while (head < stop) {
      const int end = plan.unit_end(head);
      for (int i = head; i < end; ++i) {
        const int need = d.needs[i];
        if (need < 0) continue;
        if (ends[need] == unknown) peer = plan.action_rank[need];
        const double there = ends[need] + (d.sender[i] < 0 ? 0 : hop);
        if (there > clock) clock = there;
      }
      if (peer >= 0) break;
      for (int i = head; i < end; ++i) {
        t.start[i] = clock;
        clock += duration(i);
      }
      for (; head < end; ++head) {
        ends[head] = clock;
        if (d.receiver[head] >= 0) awake.wake(d.receiver[head]);
      }
      now[rank] = clock;
    }
    next[rank] = head;
    waits_for[rank] = peer;
  }
  t.defect = detail::find_cycle(DefectKind::cyclic_dependency, plan, waits_for, next);
  return t;
}

/// Runs `plan` in ticks: every action, and every pair of overlapped ones, takes one.
[[nodiscard]] constexpr PipelineTimeline run_in_ticks(const PipelinePlan& plan, const ActionDependencies& d) {
  const Action* const actions = plan.actions.begin();
  return run_timed(
      plan, d, [&](int i) { return actions[i].overlaps_next ? 0.0 : 1.0; }, 0);
}

/// What running a plan costs.
struct PipelineSimulation {
  PipelineTimeline timeline;     ///< when everything happens
  double makespan = 0;           ///< until the last action of all ranks ends
  double idle = 0;               ///< time of a rank in which it does nothing, mean of all ranks
  double bubble = 0;             ///< idle / makespan
  Table<int> peak_in_flight;     ///< by rank: most chunk activations held at once
  Table<int> peak_microbatches;  ///< by rank: most micro-batches under way at once
};

/// Runs `plan` with the given times. @pre `find_dependencies(plan)` has no defect
[[nodiscard]] constexpr PipelineSimulation simulate(const PipelinePlan& plan, const ActionDependencies& d,
                                                    const ActionTimes& times) {
  PipelineSimulation s;
  s.timeline = run_timed(
      plan, d, [&](int i) { return times.of(plan.actions[i].kind); }, times.hop);
  double busy = 0;
  for (int i = 0; i < plan.size(); ++i) {
    busy += times.of(plan.actions[i].kind);
    if (s.timeline.end[i] > s.makespan) s.makespan = s.timeline.end[i];
  }
  s.idle = s.makespan - busy / plan.ranks();
  s.bubble = s.makespan > 0 ? s.idle / s.makespan : 0;
  s.peak_in_flight = s.peak_microbatches = Table<int>(plan.ranks());
  for (int rank = 0; rank < plan.ranks(); ++rank)
    walk_held(plan, rank, [&](int, const Held& held) {
      if (held.activations > s.peak_in_flight[rank]) s.peak_in_flight[rank] = held.activations;
      if (held.microbatches > s.peak_microbatches[rank]) s.peak_microbatches[rank] = held.microbatches;
    });
  return s;
}

/// The same, for a plan that is not known to be right.
/// @throws ConfigError with the defect
[[nodiscard]] constexpr PipelineSimulation simulate(const PipelinePlan& plan, const ActionTimes& times = {}) {
  const ActionDependencies d = find_dependencies(plan);
  if (d.defect) throw ConfigError("this schedule cannot run: " + to_string(d.defect));
  PipelineSimulation s = simulate(plan, d, times);
  if (s.timeline.defect) throw ConfigError("this schedule cannot run: " + to_string(s.timeline.defect));
  return s;
}

}  // namespace smp
