// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Proves a schedule right, or names its first defect: every action once, in an order that its rank can run, without
/// cyclic waits on any transport, each channel received in the order sent, and enough slots. Serves `static_assert` and
/// run time alike; the work is proportional to the number of actions.

#include <array>

#include <smp/pipeline/slots.hpp>

namespace smp {

/// How many messages a channel (an ordered pair of ranks) takes before its sender waits for a receive.
struct Transport {
  int capacity = 0;  ///< messages
  /// No send ends before its receive is called: ncclSend, a large MPI_Send.
  [[nodiscard]] static constexpr Transport rendezvous() noexcept { return {0}; }
  /// Room for that many.
  [[nodiscard]] static constexpr Transport slots(int messages) noexcept { return {messages}; }
  /// No send waits.
  [[nodiscard]] static constexpr Transport unbounded() noexcept { return {1 << 28}; }
};

/// How a rank communicates between two actions.
enum class Grouping : unsigned char {
  fused,    ///< all sends and receives of an exchange at once (ncclGroup, MPI_Sendrecv): what smp does
  blocking  ///< one after the other, each waited for: the naive way, here as a control
};

namespace detail {

/// The calls that ranks have made on a transport, and how many calls of each rank are still waiting.
class ChannelState {
 public:
  constexpr ChannelState(int ranks, Transport transport)
      : ranks_(ranks), capacity_(transport.capacity), sent_(ranks * ranks), received_(ranks * ranks), waiting_(ranks) {}

  constexpr void send(int from, int to) {
    const int channel = from * ranks_ + to;
    const int number = sent_[channel]++;
    if (number < received_[channel]) --waiting_[to];
    if (number >= received_[channel] + capacity_) ++waiting_[from];
  }
  constexpr void receive(int from, int to) {
    const int channel = from * ranks_ + to;
    const int number = received_[channel]++;
    if (number >= sent_[channel]) ++waiting_[to];
    if (number + capacity_ < sent_[channel]) --waiting_[from];
  }
  /// Calls that `rank` has made and that are not complete.
  [[nodiscard]] constexpr int waiting(int rank) const noexcept { return waiting_[rank]; }
  [[nodiscard]] constexpr bool send_waits(int from, int to) const noexcept {
    return sent_[from * ranks_ + to] > received_[from * ranks_ + to] + capacity_;
  }
  [[nodiscard]] constexpr bool receive_waits(int from, int to) const noexcept {
    return received_[from * ranks_ + to] > sent_[from * ranks_ + to];
  }

 private:
  int ranks_, capacity_;
  Table<int> sent_, received_;  // calls made, by channel
  Table<int> waiting_;          // by rank
};

/// A peer that `rank` waits for, or -1.
[[nodiscard]] constexpr int waits_for(const ChannelState& channels, int ranks, int rank) {
  if (channels.waiting(rank) > 0)
    for (int peer = 0; peer < ranks; ++peer)
      if (channels.send_waits(rank, peer) || channels.receive_waits(peer, rank)) return peer;
  return -1;
}

}  // namespace detail

/// Runs the communication of `plan` on a transport; no defect, or the ranks that wait for each other for ever.
/// Time plays no part: each rank has a fixed order of calls and names its peer, so that either all runs end or none
/// does.
[[nodiscard]] constexpr ScheduleDefect find_deadlock(const PipelinePlan& plan, const ActionDependencies& d,
                                                     const PipelineExchange& exchange, Transport transport,
                                                     Grouping grouping = Grouping::fused) {
  const int ranks = plan.ranks();
  detail::ChannelState channels(ranks, transport);
  Table<int> next_send = plan.first, next = plan.first, next_receive(ranks);
  for (int rank = 0; rank < ranks; ++rank) next_receive[rank] = exchange.first[plan.first[rank]];
  for (detail::AwakeRanks awake(ranks); awake.any();) {
    const int rank = awake.next(), stop = plan.first[rank + 1];
    int send = next_send[rank], receive = next_receive[rank], i = next[rank];
    while (true) {  // the exchange before action i, then the action
      const int last_receive = i < stop ? exchange.first[i + 1] : receive;
      while ((send < i || receive < last_receive) && (grouping == Grouping::fused || channels.waiting(rank) == 0)) {
        int peer = 0;
        if (send < i) {
          peer = d.receiver[send++];
          if (peer < 0) continue;
          channels.send(rank, peer);
        } else {
          peer = d.sender[exchange.receives[receive++]];
          channels.receive(peer, rank);
        }
        if (channels.waiting(peer) == 0) awake.wake(peer);
      }
      if (channels.waiting(rank) > 0 || i == stop) break;
      i = plan.unit_end(i);
    }
    next_send[rank] = send;
    next_receive[rank] = receive;
    next[rank] = i;
  }
  Table<int> waits_for(ranks);
  for (int rank = 0; rank < ranks; ++rank) waits_for[rank] = detail::waits_for(channels, ranks, rank);
  return detail::find_cycle(DefectKind::cyclic_wait, plan, waits_for, next);
}

/// The receives that would take the wrong message from a channel without tags: those for which an older message of the
/// channel is still to be received.
struct Mismatches {
  int count = 0;         ///< how many
  ScheduleDefect first;  ///< in the order of ranks and lists
};

/// Counts them, and names the first. @pre every message is received once
[[nodiscard]] constexpr Mismatches find_mismatches(const PipelinePlan& plan, const ActionDependencies& d,
                                                   const PipelineExchange& exchange) {
  Mismatches found;
  for (int rank = plan.ranks() - 1; rank >= 0; --rank) {
    Table<int> oldest_later(plan.ranks(), plan.size());  // by sender: the oldest message received later than here
    for (int k = exchange.first[plan.first[rank + 1]] - 1; k >= exchange.first[plan.first[rank]]; --k) {
      const int use = exchange.receives[k], message = d.needs[use];
      int& oldest = oldest_later[d.sender[use]];
      if (oldest < message) {
        ++found.count;
        found.first = detail::defect_at(DefectKind::mismatched_receive, plan, use, d.sender[use]);
      }
      if (message < oldest) oldest = message;
    }
  }
  return found;
}

/// The first message that is used without having been received by then.
[[nodiscard]] constexpr ScheduleDefect find_missing_receive(const PipelinePlan& plan, const ActionDependencies& d,
                                                            const PipelineExchange& exchange) {
  Table<bool> received(plan.size());
  int k = 0;
  for (int i = 0, end = 0; i < plan.size(); i = end) {
    end = plan.unit_end(i);
    for (const int last = exchange.first[i + 1]; k < last; ++k) received[exchange.receives[k]] = true;
    for (int j = i; j < end; ++j)
      if (d.sender[j] >= 0 && !received[j]) return detail::defect_at(DefectKind::missing_receive, plan, j, d.sender[j]);
    k = exchange.first[end];
  }
  return {};
}

/// A plan with its messages, and what is wrong with it.
struct CheckedPlan {
  ActionDependencies dependencies;  ///< who needs whom
  PipelineExchange exchange;        ///< which receives stand before which action
  ScheduleDefect defect;            ///< the first one; none if the plan is proved
};

/// The first defect of `plan` with the given receives. A proof for rendezvous is one for every transport: a channel
/// that takes more messages only removes waits.
[[nodiscard]] constexpr ScheduleDefect check_schedule(const PipelinePlan& plan, const ActionDependencies& d,
                                                      const PipelineExchange& exchange) {
  ScheduleDefect defect = find_missing_receive(plan, d, exchange);
  if (!defect) defect = find_mismatches(plan, d, exchange).first;
  if (!defect) defect = find_deadlock(plan, d, exchange, Transport::rendezvous());
  return defect;
}

/// Works out the messages of `plan` and checks it.
[[nodiscard]] constexpr CheckedPlan check_schedule(const PipelinePlan& plan,
                                                   ReceivePosting posting = ReceivePosting::with_send) {
  CheckedPlan checked{find_dependencies(plan), {}, {}};
  const ActionDependencies& d = checked.dependencies;
  if ((checked.defect = d.defect)) return checked;
  const PipelineTimeline ticks = run_in_ticks(plan, d);
  if ((checked.defect = ticks.defect)) return checked;
  checked.exchange = make_pipeline_exchange(plan, d, ticks, posting);
  checked.defect = check_schedule(plan, d, checked.exchange);
  return checked;
}

/// What the compiler prints about a defect: its name holds the kind, the rank, the position in the rank's list, and the
/// action with micro-batch and chunk.
template <DefectKind Kind, int Rank, int Position, ActionKind Action, int Microbatch, int Chunk>
struct ScheduleProof {
  static_assert(
      Kind != DefectKind::unknown_action,
      "smp::VerifiedSchedule: an action has a chunk or micro-batch that does not exist; ScheduleProof<...> names "
      "it: kind, rank, position, action, micro-batch, chunk");
  static_assert(
      Kind != DefectKind::repeated_action,
      "smp::VerifiedSchedule: an action runs a second time; ScheduleProof<...> names it: kind, rank, position, "
      "action, micro-batch, chunk");
  static_assert(
      Kind != DefectKind::missing_action,
      "smp::VerifiedSchedule: an action is in no list; every micro-batch needs it once; ScheduleProof<...> names "
      "it: kind, rank, position, action, micro-batch, chunk");
  static_assert(
      Kind != DefectKind::wrong_order,
      "smp::VerifiedSchedule: an action runs before one of its own rank that it needs; ScheduleProof<...> names "
      "it: kind, rank, position, action, micro-batch, chunk");
  static_assert(
      Kind != DefectKind::cyclic_dependency,
      "smp::VerifiedSchedule: ranks wait for each other's results; ScheduleProof<...> names the first action: "
      "kind, rank, position, action, micro-batch, chunk");
  static_assert(Kind != DefectKind::missing_receive && Kind != DefectKind::mismatched_receive &&
                    Kind != DefectKind::cyclic_wait,
                "smp::VerifiedSchedule: the messages of this schedule can deadlock or be mistaken; ScheduleProof<...> "
                "names the first action: kind, rank, position, action, micro-batch, chunk");
  static constexpr bool holds = true;  ///< to be asked for, so that the asserts are looked at
};

/// A schedule that the compiler has proved for this many ranks and micro-batches, with what a program needs to know of
/// it. A wrong schedule, or a shape that it cannot run, does not compile.
template <class S, int Ranks, int Microbatches>
struct VerifiedSchedule {
  static_assert(PipelineSchedule<S>,
                "smp::VerifiedSchedule: this is no schedule; write a struct with "
                "`static constexpr void order(const smp::PipelineShape&, int rank, smp::RankOrder& next)`");
  static_assert(Ranks >= 1 && Microbatches >= 1,
                "smp::VerifiedSchedule: a pipeline has at least one rank and one micro-batch");

  /// How many chunks a rank holds.
  static constexpr int chunks = [] {
    if constexpr (PipelineSchedule<S>)
      return shape_of(S{}, PipelineShape{}).chunks;
    else
      return 1;
  }();

  /// What is known once the schedule is checked.
  struct Facts {
    bool legal = true;                                    ///< the shape
    ScheduleDefect defect;                                ///< none, or this does not compile
    std::array<int, std::size_t{Ranks}> max_in_flight{};  ///< by rank: chunk activations held at once
    std::array<int, std::size_t{Ranks * chunks}>
        activation_slots{};                               ///< by rank * chunks + chunk: the same of one chunk
    std::array<int, std::size_t{Ranks}> receive_slots{};  ///< by rank: received messages held at once
  };
  /// Found by running the schedule in the compiler.
  static constexpr Facts facts = [] {
    Facts found;
    if constexpr (PipelineSchedule<S> && Ranks >= 1 && Microbatches >= 1) {
      const PipelineShape shape = shape_of(S{}, PipelineShape{Ranks, Microbatches});
      found.legal = microbatch_rule(S{}, shape).allows(Microbatches);
      if (!found.legal) return found;
      const PipelinePlan plan = make_pipeline_plan(S{}, shape);
      const CheckedPlan checked = check_schedule(plan);
      if ((found.defect = checked.defect)) return found;
      const PipelineSlots slots = count_slots(plan, checked.exchange);
      const auto copy = [](auto& to, const Table<int>& from) {
        for (int i = 0; i < from.size(); ++i) to[static_cast<std::size_t>(i)] = from[i];
      };
      copy(found.max_in_flight, slots.in_flight);
      copy(found.activation_slots, slots.activations);
      copy(found.receive_slots, slots.receives);
    }
    return found;
  }();
  static_assert(
      facts.legal,
      "smp::VerifiedSchedule: this schedule cannot run this number of micro-batches on these ranks; its "
      "microbatches(shape) has the rule, and smp::make_pipeline_plan at run time names the nearest legal number");
  static_assert(ScheduleProof<facts.defect.kind, facts.defect.rank, facts.defect.position, facts.defect.action.kind,
                              facts.defect.action.microbatch, facts.defect.action.chunk>::holds);
};

}  // namespace smp
