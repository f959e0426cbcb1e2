// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Everything that one rank of a pipeline needs to know of a step, found once.

#include <cstddef>
#include <string>
#include <vector>

#include <smp/error.hpp>
#include <smp/pipeline/program.hpp>
#include <smp/pipeline/slots.hpp>

namespace smp {

/// A step of one rank, written out for a number of micro-batches.
struct PipelineWork {
  PipelinePlan plan;         ///< of all ranks
  ActionDependencies needs;  ///< between actions
  PipelineProgram program;   ///< of this rank
  SlotAssignment slots;      ///< for what is saved
  int first = 0;             ///< the first action of this rank in the plan
  std::vector<bool> last;    ///< by action of this rank: completes the gradients of its chunk
  bool training = true;      ///< there are backwards

  /// How many actions this rank has.
  [[nodiscard]] std::size_t actions() const noexcept { return last.size(); }
  /// The number on this rank of an action of the plan.
  [[nodiscard]] std::size_t local(int action) const noexcept { return static_cast<std::size_t>(action - first); }
};

/// Writes out what `rank` does in a step of `schedule`.
/// @throws ConfigError if the schedule cannot run that many micro-batches, or is wrong
template <PipelineSchedule S>
[[nodiscard]] PipelineWork make_pipeline_work(const S& schedule, const PipelineShape& shape, int rank) {
  PipelineWork work{make_pipeline_plan(schedule, shape), {}, {}, {}, 0, {}, true};
  work.needs = find_dependencies(work.plan);
  const PipelineTimeline ticks = work.needs.defect ? PipelineTimeline{} : run_in_ticks(work.plan, work.needs);
  const ScheduleDefect& defect = work.needs.defect ? work.needs.defect : ticks.defect;
  if (defect) throw ConfigError(std::string(name_of(schedule)) + " cannot run: " + to_string(defect));
  work.program = make_pipeline_program(work.plan, work.needs, ticks, rank);
  work.slots = assign_slots(work.plan);
  work.first = work.plan.first[rank];
  work.training = detail::trains(work.plan);
  work.last.assign(static_cast<std::size_t>(work.plan.first[rank + 1] - work.first), false);
  std::vector<bool> seen(static_cast<std::size_t>(work.plan.shape.chunks), false);
  for (std::size_t i = work.last.size(); i-- > 0;) {
    const Action& a = work.plan.actions[work.first + static_cast<int>(i)];
    if (a.kind != ActionKind::backward && a.kind != ActionKind::backward_params) continue;
    const auto chunk = static_cast<std::size_t>(a.chunk);
    work.last[i] = !seen[chunk];
    seen[chunk] = true;
  }
  return work;
}

}  // namespace smp
