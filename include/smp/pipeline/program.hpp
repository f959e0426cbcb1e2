// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank does in a step: its actions, and between them exchanges of messages.
///
/// Each message has a time: the tick in which the action ends that makes it, when every action takes one tick. A rank
/// makes one exchange for all of its messages of one time, before its first action that does not start sooner. So both
/// ends of a message meet in the exchange of the same time, and each rank makes its exchanges in the order of time:
/// the earliest one that is not complete can always be completed, even on a transport where every send waits for its
/// receive, and even if an exchange is made in parts (sizes first, then contents).

#include <algorithm>

#include <smp/pipeline/simulate.hpp>

namespace smp {

/// One end of a message between two stages.
struct PipelineMessage {
  int action = -1;        ///< of this rank, in the plan: what makes it, or what it is for
  int peer = -1;          ///< the rank of the other end
  bool incoming = false;  ///< it is received
  double time = 0;        ///< when it is made
  int maker = -1;         ///< the action in the plan that makes it; on a channel, messages are in its order
};

/// An action, or an exchange of some messages.
struct PipelineInstruction {
  int action = -1;  ///< in the plan; -1: an exchange
  int first = 0;    ///< the exchange's first message
  int last = 0;     ///< behind its last message
  /// Number of the exchange; for an action, how many exchanges must be complete before it.
  int exchange = 0;
};

/// All that one rank does.
struct PipelineProgram {
  Table<PipelineInstruction> instructions;  ///< in order
  Table<PipelineMessage> messages;          ///< by exchange
  int exchanges = 0;                        ///< how many there are
};

namespace detail {

/// Both kinds of ends that are on `rank`, in the order in which they are exchanged.
[[nodiscard]] inline Table<PipelineMessage> messages_of(const PipelinePlan& plan, const ActionDependencies& d,
                                                        const PipelineTimeline& ticks, int rank) {
  Table<PipelineMessage> messages;
  for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i) {
    if (d.receiver[i] >= 0) messages.append({i, d.receiver[i], false, ticks.end[i], i});
    if (d.sender[i] >= 0) messages.append({i, d.sender[i], true, ticks.end[d.needs[i]], d.needs[i]});
  }
  std::sort(messages.begin(), messages.end(), [](const PipelineMessage& a, const PipelineMessage& b) {
    return a.time < b.time || (a.time == b.time && a.maker < b.maker);
  });
  return messages;
}

}  // namespace detail

/// What `rank` does in a step of `plan`. `ticks` is its `run_in_ticks`, without defect.
[[nodiscard]] inline PipelineProgram make_pipeline_program(const PipelinePlan& plan, const ActionDependencies& d,
                                                           const PipelineTimeline& ticks, int rank) {
  PipelineProgram program{{}, detail::messages_of(plan, d, ticks, rank), 0};
  const Table<PipelineMessage>& messages = program.messages;
  Table<int> arrives(plan.first[rank + 1] - plan.first[rank]);  // by action: exchanges up to that of its message
  int next = 0;
  const auto exchange_until = [&](double time) {
    while (next < messages.size() && messages[next].time <= time) {
      const int first = next;
      for (; next < messages.size() && messages[next].time == messages[first].time; ++next)
        if (messages[next].incoming) arrives[messages[next].action - plan.first[rank]] = program.exchanges + 1;
      program.instructions.append({-1, first, next, program.exchanges++});
    }
  };
  for (int head = plan.first[rank]; head < plan.first[rank + 1];) {
    exchange_until(ticks.start[head]);
    for (const int end = plan.unit_end(head); head < end; ++head)
      program.instructions.append({head, 0, 0, arrives[head - plan.first[rank]]});
  }
  if (!messages.empty()) exchange_until(messages[messages.size() - 1].time);
  return program;
}

}  // namespace smp
