// SPDX-License-Identifier: Apache-2.0
// A schedule of one's own: eager 1F1B. One forward more than 1F1B before the first backward, on every rank that has
// room, hides the hop latency for one activation more. Nothing else is needed: messages, slots and the proof follow.
#include <iostream>

#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>

struct EagerSchedule {
  static constexpr std::string_view name = "eager";

  static constexpr void order(const smp::PipelineShape& shape, int rank, smp::RankOrder& next) {
    const int ahead = std::min(2 * (shape.ranks - 1 - rank), shape.microbatches);
    for (int m = 0; m < ahead; ++m) next.forward();
    for (int m = ahead; m < shape.microbatches; ++m) next.forward().backward();
    for (int m = 0; m < ahead; ++m) next.backward();
  }
};

// Proved by the compiler: no deadlock under rendezvous sends, no message out of order.
using Verified = smp::VerifiedSchedule<EagerSchedule, 4, 8>;
static_assert(Verified::facts.max_in_flight[0] == 7);

int main() {
  const auto times = smp::ActionTimes::split(1, 1, 1, 0.5);  // forward, two halves of backward, hop
  const smp::PipelineShape shape{4, 32};
  std::cout << "eager\t" << simulate(make_pipeline_plan(EagerSchedule{}, shape), times).makespan << '\n';
  std::cout << "1F1B\t" << simulate(make_pipeline_plan(smp::Schedule::Interleaved{}, shape), times).makespan << '\n';
}
