// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Memory that follows from a plan: how many activations and messages each rank holds, and which slot an activation
/// takes.

#include <smp/pipeline/exchange.hpp>

namespace smp {

/// Memory that each rank sets aside before it starts. A chunk has slots of its own: what it keeps is of its own type.
struct PipelineSlots {
  Table<int> activations;  ///< by rank * shape.chunks + chunk
  Table<int> receives;     ///< by rank: messages received and not yet used up, of all channels together
  Table<int> in_flight;    ///< by rank: activations of all its chunks held at once; no more than its slots together
};

/// Calls `visit(i, held)` for each action of `rank` before which messages are received, with those held while it runs.
template <class Visit>
constexpr void walk_received(const PipelinePlan& plan, const PipelineExchange& exchange, int rank, Visit visit) {
  const int from = plan.first[rank], to = plan.first[rank + 1];
  Table<bool> waiting(to - from);
  int held = 0, k = exchange.first[from];
  for (int i = from; i < to; ++i) {
    const int end = exchange.first[i + 1];
    if (k < end) visit(i, held += end - k);
    for (; k < end; ++k) waiting[exchange.receives[k] - from] = true;
    if (waiting[i - from]) --held;
  }
}

/// What `plan` needs: the least that passes find_overflow.
[[nodiscard]] constexpr PipelineSlots count_slots(const PipelinePlan& plan, const PipelineExchange& exchange) {
  const int ranks = plan.ranks(), chunks = plan.shape.chunks;
  PipelineSlots slots{Table<int>(ranks * chunks), Table<int>(ranks), Table<int>(ranks)};
  const auto raise = [](int& most, int held) { most = held > most ? held : most; };
  for (int rank = 0; rank < ranks; ++rank) {
    walk_held(plan, rank, [&](int i, const Held& held) {
      raise(slots.activations[rank * chunks + plan.actions[i].chunk], held.of_chunk);
      raise(slots.in_flight[rank], held.activations);
    });
    walk_received(plan, exchange, rank, [&](int, int held) { raise(slots.receives[rank], held); });
  }
  return slots;
}

/// The first action for which there is no slot left.
[[nodiscard]] constexpr ScheduleDefect find_overflow(const PipelinePlan& plan, const PipelineExchange& exchange,
                                                     const PipelineSlots& slots) {
  ScheduleDefect first;
  const auto compare = [&](DefectKind kind, int i, int held, int allowed) {
    if (first || held <= allowed) return;
    first = detail::defect_at(kind, plan, i);
    first.amount = held;
    first.allowed = allowed;
  };
  for (int rank = 0; rank < plan.ranks() && !first; ++rank) {
    walk_held(plan, rank, [&](int i, const Held& held) {
      compare(DefectKind::activation_slots, i, held.of_chunk,
              slots.activations[rank * plan.shape.chunks + plan.actions[i].chunk]);
    });
    walk_received(plan, exchange, rank,
                  [&](int i, int held) { compare(DefectKind::receive_slots, i, held, slots.receives[rank]); });
  }
  return first;
}

/// A slot for each activation: its number among the slots of its chunk.
struct SlotAssignment {
  Table<int> slot;   ///< by action: the slot that it fills or uses; -1 for updates
  Table<int> count;  ///< by rank * chunks + chunk: how many slots there are, the least possible
};

/// Hands out slots: a forward takes a free one, the last backward of its chunk and micro-batch gives it back.
/// @pre `find_dependencies(plan)` has no defect
[[nodiscard]] constexpr SlotAssignment assign_slots(const PipelinePlan& plan) {
  const int chunks = plan.shape.chunks, microbatches = plan.shape.microbatches;
  SlotAssignment assigned{Table<int>(plan.size(), -1), Table<int>(plan.ranks() * chunks)};
  Table<Table<int>> free(plan.ranks() * chunks);
  Table<int> held(plan.stages() * microbatches);  // by stage and micro-batch: its slot
  const bool frees_at_once = !detail::trains(plan);
  for (int i = 0; i < plan.size(); ++i) {
    const Action& a = plan.actions[i];
    if (a.kind == ActionKind::update) continue;
    const int chunk = plan.action_rank[i] * chunks + a.chunk;
    int& slot = held[plan.stage(i) * microbatches + a.microbatch];
    if (a.kind == ActionKind::forward) slot = free[chunk].empty() ? assigned.count[chunk]++ : free[chunk].take_last();
    if (frees_at_once || a.kind == ActionKind::backward || a.kind == ActionKind::backward_params)
      free[chunk].append(slot);
    assigned.slot[i] = slot;
  }
  return assigned;
}

/// The most messages that a channel holds if no send waits and the receiver is slower than everybody else: what a
/// transport must buffer that takes every message at once and receives it when it is used.
/// @pre the plan can be run
[[nodiscard]] constexpr int deepest_channel(const PipelinePlan& plan, const ActionDependencies& d) {
  int deepest = 0;
  for (int slow = 0; slow < plan.ranks(); ++slow) {
    Table<int> next = plan.first, unused(plan.ranks());  // by sender: messages for `slow`
    const auto advance = [&](int rank) {
      if (next[rank] == plan.first[rank + 1]) return false;
      const int end = plan.unit_end(next[rank]);
      for (int i = next[rank]; i < end; ++i)
        if (d.sender[i] >= 0 && next[d.sender[i]] <= d.needs[i]) return false;
      for (int& i = next[rank]; i < end; ++i) {
        if (rank == slow && d.sender[i] >= 0) --unused[d.sender[i]];
        if (d.receiver[i] == slow && ++unused[rank] > deepest) deepest = unused[rank];
      }
      return true;
    };
    do {
      for (detail::AwakeRanks awake(plan.ranks()); awake.any();) {
        const int rank = awake.next();
        if (rank == slow) continue;
        const int before = next[rank];
        while (advance(rank)) continue;
        for (int i = before; i < next[rank]; ++i)
          if (d.receiver[i] >= 0) awake.wake(d.receiver[i]);
      }
    } while (advance(slow));
  }
  return deepest;
}

}  // namespace smp
