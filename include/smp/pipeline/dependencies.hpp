// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the actions of a plan need from one another, and the first defect of a plan that leaves a need unmet.

#include <string>

#include <smp/pipeline/schedule.hpp>

namespace smp {

/// The ways in which a schedule can be wrong.
enum class DefectKind : unsigned char {
  none,
  unknown_action,      ///< a chunk or micro-batch that does not exist
  repeated_action,     ///< the same action twice
  missing_action,      ///< a forward or backward that no list has
  wrong_order,         ///< before something of its own rank that it needs
  cyclic_dependency,   ///< ranks wait for each other's results: no transport can run this
  missing_receive,     ///< a message that nobody receives before it is used
  mismatched_receive,  ///< received in another order than sent: on a channel without tags, the wrong message
  cyclic_wait,         ///< ranks wait for each other's sends and receives: a deadlock on this transport
  activation_slots,    ///< more activations held at once than there are slots
  receive_slots        ///< more messages held at once than there are receive buffers
};

/// One defect and where it is.
struct ScheduleDefect {
  DefectKind kind = DefectKind::none;  ///< none: all is well
  int rank = -1;                       ///< on which rank
  int position = -1;                   ///< in the rank's list; its length if the list ends too early
  Action action{};                     ///< what stands there, or what is missing
  int peer = -1;                       ///< the other rank, if there is one
  int amount = 0;                      ///< slots needed, ranks in the cycle
  int allowed = 0;                     ///< slots given
  bool chunked = false;                ///< ranks hold several chunks, so the action's is printed
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return kind != DefectKind::none; }
};

/// A sentence with the rank, the position, the action and what is wrong; "no defect" if there is none.
[[nodiscard]] inline std::string to_string(const ScheduleDefect& d) {
  const auto n = [](int value) { return std::to_string(value); };
  const std::string where =
      "rank " + n(d.rank) + ", position " + n(d.position) + " (" + to_string(d.action, d.chunked) + "): ";
  const std::string peer = "rank " + n(d.peer);
  switch (d.kind) {
    case DefectKind::none:
      break;
    case DefectKind::unknown_action:
      return where + "no such chunk or micro-batch";
    case DefectKind::repeated_action:
      return where + "runs a second time";
    case DefectKind::missing_action:
      return where + "is in no list; every micro-batch needs it once";
    case DefectKind::wrong_order:
      return where + "runs before an action of its own rank that it needs";
    case DefectKind::cyclic_dependency:
      return where + "needs a result of " + peer + ", which waits in turn (a cycle of " + n(d.amount) + " ranks)";
    case DefectKind::missing_receive:
      return where + "uses a message of " + peer + " that was not received before";
    case DefectKind::mismatched_receive:
      return where + "its message is received in another order than " + peer + " sends";
    case DefectKind::cyclic_wait:
      return where + "waits for " + peer +
             (d.amount == 0 ? ", which has ended without the other call"
                            : ", which waits in turn: a deadlock of " + n(d.amount) + " ranks");
    case DefectKind::activation_slots:
      return where + "holds " + n(d.amount) + " activations; there are " + n(d.allowed) + " slots";
    case DefectKind::receive_slots:
      return where + "holds " + n(d.amount) + " received messages; there are " + n(d.allowed) + " buffers";
  }
  return "no defect";
}

/// Who needs whom. Besides what is listed here, an action needs its rank's previous one.
struct ActionDependencies {
  Table<int> needs;       ///< by action: the action on the neighbouring stage whose result it uses, or -1
  Table<int> feeds;       ///< by action: the action that uses its result (the inverse of `needs`), or -1
  Table<int> sender;      ///< by action: the rank that sends what it uses, or -1 if that is no other rank
  Table<int> receiver;    ///< by action: the rank that is sent its result, or -1 if that is no other rank
  ScheduleDefect defect;  ///< the first action whose needs cannot be met on its own rank
};

namespace detail {

[[nodiscard]] constexpr ScheduleDefect defect_at(DefectKind kind, const PipelinePlan& plan, int i, int peer = -1) {
  return {kind, plan.action_rank[i], plan.position(i), plan.actions[i], peer, 0, 0, plan.shape.chunks > 1};
}

/// Where each (stage, micro-batch) has its forward, its backward (or backward_input) and its backward_params.
class ActionIndex {
 public:
  enum Pass { forward, backward, params };
  constexpr ActionIndex(int stages, int microbatches)
      : microbatches_(microbatches), at_(3 * stages * microbatches, -1) {}

  [[nodiscard]] constexpr int at(Pass pass, int stage, int microbatch) const noexcept {
    return at_.begin()[(stage * microbatches_ + microbatch) * 3 + pass];
  }
  /// Notes action `i`; false if there was one before.
  constexpr bool note(int i, ActionKind kind, int stage, int microbatch) noexcept {
    int* const at = at_.begin() + (stage * microbatches_ + microbatch) * 3;
    const Pass pass = kind == ActionKind::forward ? forward : kind == ActionKind::backward_params ? params : backward;
    bool fresh = at[pass] < 0;
    at[pass] = i;
    if (kind == ActionKind::backward) {  // both passes in one
      fresh = fresh && at[params] < 0;
      at[params] = i;
    }
    return fresh;
  }

 private:
  int microbatches_;
  Table<int> at_;
};

/// Notes every action in `index` and its stage in `stage`; an unknown or repeated one is a defect.
[[nodiscard]] constexpr ScheduleDefect fill(ActionIndex& index, Table<int>& stage, const PipelinePlan& plan) {
  const int chunks = plan.shape.chunks, microbatches = plan.shape.microbatches, size = plan.size();
  const Action* const actions = plan.actions.begin();
  for (int i = 0; i < size; ++i) {
    const Action& a = actions[i];
    if (a.kind == ActionKind::update) {
      if (i + 1 < plan.first[plan.action_rank[i] + 1]) return defect_at(DefectKind::wrong_order, plan, i);
      continue;
    }
    if (a.chunk < 0 || a.chunk >= chunks || a.microbatch < 0 || a.microbatch >= microbatches)
      return defect_at(DefectKind::unknown_action, plan, i);
    const int at = stage[i] = plan.chunk_stage[plan.action_rank[i] * chunks + a.chunk];
    if (at < 0) return defect_at(DefectKind::unknown_action, plan, i);
    if (!index.note(i, a.kind, at, a.microbatch)) return defect_at(DefectKind::repeated_action, plan, i);
  }
  return {};
}

/// A plan without any backward trains nothing and needs none.
[[nodiscard]] constexpr bool trains(const PipelinePlan& plan) noexcept {
  for (const Action& a : plan.actions)
    if (a.kind != ActionKind::forward) return true;
  return false;
}

/// The first (stage, micro-batch) that lacks an action.
[[nodiscard]] constexpr ScheduleDefect find_missing(const ActionIndex& index, const PipelinePlan& plan) {
  const bool training = trains(plan);
  for (int stage = 0; stage < plan.stages(); ++stage)
    for (int m = 0; m < plan.shape.microbatches; ++m)
      for (const auto pass : {ActionIndex::forward, ActionIndex::backward, ActionIndex::params}) {
        if (index.at(pass, stage, m) >= 0 || (pass != ActionIndex::forward && !training)) continue;
        const ActionKind kind = pass == ActionIndex::forward    ? ActionKind::forward
                                : pass == ActionIndex::backward ? ActionKind::backward
                                                                : ActionKind::backward_params;
        const int rank = plan.stage_rank[stage];
        return {DefectKind::missing_action,
                rank,
                plan.first[rank + 1] - plan.first[rank],
                {kind, m, plan.stage_chunk[stage]},
                -1,
                0,
                0,
                plan.shape.chunks > 1};
      }
  return {};
}

/// The ranks that may have something to do. A rank runs until it must wait; whoever changes what it may wait for wakes
/// it.
class AwakeRanks {
 public:
  constexpr explicit AwakeRanks(int ranks) : awake_(ranks) {
    for (int rank = ranks - 1; rank >= 0; --rank) wake(rank);
  }
  constexpr void wake(int rank) {
    if (!awake_[rank]) stack_.append(rank);
    awake_[rank] = true;
  }
  [[nodiscard]] constexpr bool any() const noexcept { return !stack_.empty(); }
  constexpr int next() {
    const int rank = stack_.take_last();
    awake_[rank] = false;
    return rank;
  }

 private:
  Table<int> stack_;
  Table<bool> awake_;
};

/// The defect of ranks that wait in a circle. `waits_for[r]`: the rank that r waits for, -1 if it is done; `at[r]`: the
/// action that r would run next, or its end. No defect if all are done.
[[nodiscard]] constexpr ScheduleDefect find_cycle(DefectKind kind, const PipelinePlan& plan,
                                                  const Table<int>& waits_for, const Table<int>& at) {
  int rank = 0;
  while (rank < plan.ranks() && waits_for[rank] < 0) ++rank;
  if (rank == plan.ranks()) return {};
  for (int step = 0; step < plan.ranks() && waits_for[waits_for[rank]] >= 0; ++step) rank = waits_for[rank];
  // Now inside the circle, or in front of a rank that is done and will not answer.
  int length = 0;
  if (waits_for[waits_for[rank]] >= 0) {
    length = 1;
    for (int other = waits_for[rank]; other != rank; other = waits_for[other]) ++length;
  }
  const bool at_end = at[rank] == plan.first[rank + 1];
  ScheduleDefect defect = defect_at(kind, plan, at_end ? at[rank] - 1 : at[rank], waits_for[rank]);
  if (at_end) ++defect.position;
  defect.amount = length;
  return defect;
}

}  // namespace detail

/// Finds who needs whom in `plan`, or the first action that is unknown, repeated, missing, or before what it needs on
/// its own rank. Waits between ranks are for check.hpp.
[[nodiscard]] constexpr ActionDependencies find_dependencies(const PipelinePlan& plan) {
  using detail::ActionIndex;
  const int size = plan.size();
  ActionDependencies d{Table<int>(size), Table<int>(size, -1), Table<int>(size), Table<int>(size, -1), {}};
  Table<int> stages(size);
  ActionIndex index(plan.stages(), plan.shape.microbatches);
  if ((d.defect = detail::fill(index, stages, plan)) || (d.defect = detail::find_missing(index, plan))) return d;
  // Plain pointers: in a constant expression each call of operator[] counts.
  const Action* const actions = plan.actions.begin();
  const int* const rank_of = plan.action_rank.begin();
  const int last_stage = plan.stages() - 1;
  int head = 0;  // the first of the actions that overlap with action i
  for (int i = 0; i < size; ++i) {
    const Action& a = actions[i];
    if (i == 0 || !actions[i - 1].overlaps_next) head = i;
    d.needs[i] = d.sender[i] = -1;
    if (a.kind == ActionKind::update) continue;
    const int stage = stages[i], rank = rank_of[i];
    int own = -1, need = -1;  // what it needs of its own stage, and of the neighbouring one
    if (a.kind == ActionKind::forward) {
      if (stage > 0) need = index.at(ActionIndex::forward, stage - 1, a.microbatch);
    } else if (a.kind == ActionKind::backward_params) {
      own = index.at(ActionIndex::backward, stage, a.microbatch);
    } else {
      own = index.at(ActionIndex::forward, stage, a.microbatch);
      if (stage < last_stage) need = index.at(ActionIndex::backward, stage + 1, a.microbatch);
    }
    bool late = own >= head;
    if (need >= 0) {
      const int peer = rank_of[need];
      d.needs[i] = need;
      d.feeds[need] = i;
      if (peer != rank) {
        d.sender[i] = peer;
        d.receiver[need] = rank;
      } else {
        late = late || need >= head;
      }
    }
    if (late) {
      d.defect = detail::defect_at(DefectKind::wrong_order, plan, i);
      return d;
    }
  }
  return d;
}

}  // namespace smp
