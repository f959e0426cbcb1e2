// What each rank of a pipeline does: its actions in the order of the plan, every message in one exchange at both ends,
// and no wait that could not end, whatever the schedule.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/check.hpp>
#include <smp/pipeline/program.hpp>
#include <smp/pipeline/schedules.hpp>

namespace {

struct Programs {
  smp::PipelinePlan plan;
  smp::ActionDependencies dependencies;
  std::vector<smp::PipelineProgram> ranks;
};

Programs programs(const smp::Schedule::Runtime& schedule, int ranks, int microbatches) {
  Programs all{smp::make_pipeline_plan(schedule, {.ranks = ranks, .microbatches = microbatches}), {}, {}};
  all.dependencies = smp::find_dependencies(all.plan);
  const auto ticks = smp::run_in_ticks(all.plan, all.dependencies);
  for (int rank = 0; rank < ranks; ++rank)
    all.ranks.push_back(smp::make_pipeline_program(all.plan, all.dependencies, ticks, rank));
  return all;
}

/// "F0 x(>1) F1 ..."
std::string text(const Programs& all, int rank) {
  std::string line;
  const smp::PipelineProgram& program = all.ranks[static_cast<std::size_t>(rank)];
  for (const smp::PipelineInstruction& in : program.instructions) {
    if (in.action >= 0) {
      line += all.plan.cell(in.action) + " ";
      continue;
    }
    line += "x(";
    for (int m = in.first; m < in.last; ++m) {
      const smp::PipelineMessage& message = program.messages[m];
      line += (m > in.first ? " " : "") + std::string(message.incoming ? "<" : ">") + std::to_string(message.peer);
    }
    line += ") ";
  }
  return line;
}

/// Runs all programs; an exchange is complete when both ends of each of its messages have come to theirs. False if
/// ranks wait for each other for ever.
bool all_end(const Programs& all) {
  const auto count = all.ranks.size();
  std::vector<int> at(count), begun(count);  // instruction; exchanges begun
  std::vector<std::vector<int>> meets(static_cast<std::size_t>(all.plan.size()), std::vector<int>(2, -1));
  for (std::size_t r = 0; r < count; ++r)
    for (const auto& in : all.ranks[r].instructions)
      for (int m = in.first; m < in.last; ++m) {
        const smp::PipelineMessage& message = all.ranks[r].messages[m];
        meets[static_cast<std::size_t>(message.maker)][message.incoming ? 1 : 0] = in.exchange;
      }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < count; ++r) {
      const auto& program = all.ranks[r];
      while (at[r] < program.instructions.size()) {
        const auto& in = program.instructions[at[r]];
        bool complete = true;
        if (in.action < 0) {
          begun[r] = std::max(begun[r], in.exchange + 1);
          for (int m = in.first; m < in.last; ++m) {
            const smp::PipelineMessage& message = program.messages[m];
            const int other = meets[static_cast<std::size_t>(message.maker)][message.incoming ? 0 : 1];
            complete = complete && other < begun[static_cast<std::size_t>(message.peer)];
          }
        }
        if (!complete) break;
        ++at[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < count; ++r)
    if (at[r] < all.ranks[r].instructions.size()) return false;
  return true;
}

}  // namespace

TEST_CASE("1F1B on two ranks: each message in the exchange of the tick that made it") {
  const Programs all = programs(smp::Schedule::Runtime::named("interleaved"), 2, 3);
  CHECK(text(all, 0) == "F0 x(>1) F1 x(>1) x(<1) B0 F2 x(>1 <1) B1 x(<1) B2 U ");
  CHECK(text(all, 1) == "x(<0) F0 x(<0) B0 x(>0) F1 B1 x(<0 >0) F2 B2 x(>0) U ");
}

TEST_CASE("every schedule: actions in order, messages at both ends and before their use, no rank waits for ever") {
  for (const auto& [name, chunks] :
       {std::tuple("simple", 1), std::tuple("interleaved", 1), std::tuple("looped", 2), std::tuple("looped", 3),
        std::tuple("looped_breadth", 2), std::tuple("zero_bubble", 1), std::tuple("zero_bubble_v", 2),
        std::tuple("dual_pipe_v", 2), std::tuple("forward_only", 2)}) {
    const auto schedule = smp::Schedule::Runtime::named(name, chunks);
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        const smp::PipelineShape shape = smp::shape_of(schedule, {.ranks = ranks, .microbatches = microbatches});
        if (!smp::microbatch_rule(schedule, shape).allows(microbatches)) continue;
        CAPTURE(name);
        CAPTURE(ranks);
        CAPTURE(microbatches);
        const Programs all = programs(schedule, ranks, microbatches);
        std::vector<int> ends(static_cast<std::size_t>(all.plan.size()));
        bool in_order = true, in_time = true;
        for (int rank = 0; rank < ranks; ++rank) {
          const auto& program = all.ranks[static_cast<std::size_t>(rank)];
          int action = all.plan.first[rank], done = 0;
          for (const auto& in : program.instructions) {
            if (in.action < 0) {
              in_order = in_order && in.exchange == done++;
              for (int m = in.first; m < in.last; ++m) ++ends[static_cast<std::size_t>(program.messages[m].maker)];
            } else {
              in_order = in_order && in.action == action++;
              in_time =
                  in_time && in.exchange <= done && (in.exchange > 0) == (all.dependencies.sender[in.action] >= 0);
            }
          }
          in_order = in_order && action == all.plan.first[rank + 1];
        }
        CHECK(in_order);
        CHECK(in_time);
        for (int i = 0; i < all.plan.size(); ++i)
          if (ends[static_cast<std::size_t>(i)] != (all.dependencies.receiver[i] >= 0 ? 2 : 0)) in_time = false;
        CHECK(in_time);
        CHECK(all_end(all));
      }
    }
  }
}
