// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// When messages are received. Before each action (or pair of overlapped actions) a rank makes one *exchange*: it sends
/// what the action before has made and receives what is listed here, all in one group. A message follows from each
/// dependency between two ranks; the only choice is before which action its receive stands.

#include <smp/pipeline/simulate.hpp>

namespace smp {

/// Where receives stand.
enum class ReceivePosting : unsigned char {
  /// In the exchange of the tick in which the message is sent, when every action takes one tick. Send and receive then
  /// meet in every tick: with fused exchanges no wait can be cyclic, and a channel delivers in the order of sending.
  with_send,
  /// Just before the action that uses the message: the naive order, here as a control. It deadlocks or mismatches.
  at_use
};

/// The receives of every exchange.
struct PipelineExchange {
  Table<int> receives;  ///< the actions whose incoming message is received, exchange by exchange in posting order
  Table<int> first;     ///< before action i: receives[first[i]] up to receives[first[i + 1]]
};

/// Decides where every message of `plan` is received. `ticks` is its run_in_ticks, without defect.
[[nodiscard]] constexpr PipelineExchange make_pipeline_exchange(const PipelinePlan& plan, const ActionDependencies& d,
                                                                const PipelineTimeline& ticks,
                                                                ReceivePosting posting = ReceivePosting::with_send) {
  PipelineExchange exchange{{}, Table<int>(plan.size() + 1)};
  Table<int> before(plan.size()), filled(plan.size());
  const double* const starts = ticks.start.begin();
  int messages = 0, head = 0;
  for (int i = 0; i < plan.size(); ++i) {
    if (i == 0 || !plan.actions[i - 1].overlaps_next) head = i;
    if (d.sender[i] < 0) continue;
    int low = plan.first[plan.action_rank[i]], high = head;
    if (posting == ReceivePosting::at_use) low = head;
    const double sent = ticks.end[d.needs[i]];
    while (low < high) {  // the first action of the rank that does not start before the message is sent
      const int middle = (low + high) / 2;
      starts[middle] < sent ? low = middle + 1 : high = middle;
    }
    before[i] = low;
    ++filled[low];
    ++messages;
  }
  for (int i = 0, total = 0; i < plan.size(); ++i) {
    exchange.first[i] = total;
    total += filled[i];
    exchange.first[i + 1] = total;
    filled[i] = exchange.first[i];
  }
  exchange.receives = Table<int>(messages);
  for (int sent = 0; sent < plan.size(); ++sent)  // inside an exchange, the sender's order
    if (d.receiver[sent] >= 0) exchange.receives[filled[before[d.feeds[sent]]]++] = d.feeds[sent];
  return exchange;
}

}  // namespace smp
