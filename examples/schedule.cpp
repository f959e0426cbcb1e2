// SPDX-License-Identifier: Apache-2.0
// Prints the timeline of a pipeline schedule, what it costs, and whether it is safe to run:
//   schedule --schedule zero_bubble_v --stages 4 --microbatches 8 --times 1,1.3,0.7,0 --svg zero_bubble_v.svg
// A row for each rank: F forward, B backward, I and W its two halves (input, parameters), U update; F3.1 is micro-batch
// 3 of the rank's chunk 1; -- a tick without work. A shape that the schedule cannot run: exit code 2 and one sentence.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>
#include <smp/pipeline/timeline_svg.hpp>

#include "command_line.hpp"

namespace {

struct Options {
  std::string schedule = "interleaved", svg;
  int stages = 0, microbatches = 0, active = 0;
  std::optional<int> chunks;
  std::vector<double> times;  // F, I, W, P2P
};

std::string number(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.10g", value);
  return digits;
}

void print_rows(const smp::PipelinePlan& plan, const smp::PipelineTimeline& timeline, int ticks, bool with_idle) {
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    std::string cells;
    int tick = 0;
    const auto idle_until = [&](double start) {
      for (; with_idle && tick < start; ++tick) cells += " --";
    };
    for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i) {
      const bool update = plan.actions[i].kind == smp::ActionKind::update;
      idle_until(update ? ticks : timeline.start[i]);
      cells += " " + plan.cell(i);
      if (!update) ++tick;
    }
    idle_until(ticks);
    std::cout << rank << '\t' << cells.substr(cells.empty() ? 0 : 1) << '\n';
  }
}

bool runs_on(const smp::PipelinePlan& plan, const smp::CheckedPlan& checked, smp::Transport transport) {
  return !smp::find_deadlock(plan, checked.dependencies, checked.exchange, transport);
}

void report(const Options& options) {
  const auto schedule = smp::RuntimeSchedule::named(options.schedule, options.chunks);
  const smp::PipelinePlan plan = make_pipeline_plan(schedule, {options.stages, options.microbatches, options.active});
  const bool in_ticks = options.times.empty();
  for (const double time : options.times)
    if (!(time < 1e12)) throw smp::ConfigError("--times: expected numbers from 0 to 1e12");
  const auto times =
      in_ticks ? smp::ActionTimes::ticks()
               : smp::ActionTimes::split(options.times[0], options.times[1], options.times[2], options.times[3]);
  const smp::PipelineSimulation simulation = simulate(plan, times);
  const smp::CheckedPlan checked = check_schedule(plan);
  if (!options.svg.empty()) {
    std::ofstream file(options.svg);
    file << timeline_svg(plan, simulation, times,
                         schedule.name + ", " + std::to_string(options.stages) + " ranks, " +
                             std::to_string(options.microbatches) + " micro-batches");
    if (!file.flush()) throw smp::ConfigError("cannot write '" + options.svg + "'");
  }

  print_rows(plan, simulation.timeline, static_cast<int>(simulation.makespan), in_ticks);
  std::cout << "bubble\t" << number(simulation.bubble) << "\nmakespan\t" << number(simulation.makespan)
            << "\npeak_in_flight\t";
  for (int rank = 0; rank < plan.ranks(); ++rank) std::cout << (rank > 0 ? "," : "") << simulation.peak_in_flight[rank];
  const bool deadlock_free = runs_on(plan, checked, smp::Transport::rendezvous()) &&
                             runs_on(plan, checked, smp::Transport::slots(1)) &&
                             runs_on(plan, checked, smp::Transport::unbounded());
  const bool fifo_safe = find_mismatches(plan, checked.dependencies, checked.exchange).count == 0;
  std::cout << "\ndeadlock_free\t" << (deadlock_free ? "yes" : "no") << "\nfifo_safe\t" << (fifo_safe ? "yes" : "no")
            << '\n';
  if (checked.defect) throw smp::ConfigError(schedule.name + ": " + to_string(checked.defect));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints and checks a pipeline schedule");
  app.add_option("--schedule", options.schedule,
                 "simple, interleaved, looped, looped_breadth, zero_bubble, zero_bubble_v, dual_pipe_v or forward_only")
      ->required();
  app.add_option("--stages", options.stages, "ranks of the pipeline")->required()->transform(decimal());
  app.add_option("--microbatches", options.microbatches, "micro-batches of a step")->required()->transform(decimal());
  app.add_option("--chunks", options.chunks, "stages that each rank holds")->transform(decimal());
  app.add_option("--active", options.active, "most micro-batches under way on a rank; 0: no limit")
      ->transform(decimal());
  app.add_option("--times", options.times, "forward, backward of input, of parameters, hop: 1,1.3,0.7,0")
      ->delimiter(',')
      ->expected(4)
      ->check(CLI::NonNegativeNumber);
  app.add_option("--svg", options.svg, "file for a picture of the timeline");
  return run(app, argc, argv, [&] { report(options); });
}
