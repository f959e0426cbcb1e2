// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What a pipeline schedule is: for each rank, a list of actions. Everything else (messages, buffers, bubble, peak
/// memory) follows from the lists: see dependencies.hpp, exchange.hpp, simulate.hpp, check.hpp.
///
/// Words: a model is cut into *stages*; a rank holds one or more of them, its *chunks*, numbered on the rank in the
/// order of the model. A batch is cut into *micro-batches*. All functions here are constexpr and serve run time alike.

#include <concepts>
#include <string>
#include <string_view>

#include <smp/error.hpp>
#include <smp/pipeline/table.hpp>

namespace smp {

/// What a rank does with one chunk and one micro-batch.
enum class ActionKind : unsigned char {
  forward,
  backward,         ///< gradients of input and parameters in one go
  backward_input,   ///< only the gradient of the input, which the previous stage waits for
  backward_params,  ///< the gradients of the parameters, at any time after backward_input
  update            ///< the optimizer; the last action of a rank, and it takes no time in the schedule
};

/// One entry of a rank's list.
struct Action {
  ActionKind kind = ActionKind::forward;  ///< what is done
  int microbatch = 0;                     ///< with which micro-batch
  int chunk = 0;                          ///< which of the rank's own chunks
  bool overlaps_next = false;             ///< runs together with the action after it: both start and both end as one
  friend constexpr bool operator==(const Action&, const Action&) = default;
};

/// "F3" for micro-batch 3; "F3.1" for its chunk 1 where a rank holds several; "U" for the update.
[[nodiscard]] inline std::string to_string(const Action& action, bool with_chunk) {
  if (action.kind == ActionKind::update) return "U";
  std::string text = "FBIW"[static_cast<int>(action.kind)] + std::to_string(action.microbatch);
  return with_chunk ? text + "." + std::to_string(action.chunk) : text;
}

/// What a schedule is asked to fill.
struct PipelineShape {
  int ranks = 1;         ///< of the pipeline
  int microbatches = 1;  ///< of a step
  int active = 0;        ///< at most this many micro-batches under way on a rank; 0: no limit
  int chunks = 1;        ///< per rank; set by the schedule
};

/// Which numbers of micro-batches a schedule can run.
struct MicrobatchRule {
  int at_least = 1;     ///< the smallest legal number
  int multiple_of = 1;  ///< every legal number is a multiple of it
  /// Whether that many can be run.
  [[nodiscard]] constexpr bool allows(int microbatches) const noexcept {
    return microbatches >= at_least && microbatches % multiple_of == 0;
  }
};

/// Writes one rank's list. Each call appends the *next* micro-batch of a chunk, so a schedule states only the order.
class RankOrder {
 public:
  /// An empty list for a rank with that many chunks.
  constexpr explicit RankOrder(int chunks) : forwards_(chunks), backwards_(chunks), params_(chunks) {}

  /// Computes the chunk's output and keeps what its backward needs.
  constexpr RankOrder& forward(int chunk = 0) { return next(ActionKind::forward, chunk, forwards_); }
  /// The whole backward: gradients of the input and of the parameters.
  constexpr RankOrder& backward(int chunk = 0) {
    if (known(chunk)) ++params_[chunk];
    return next(ActionKind::backward, chunk, backwards_);
  }
  /// The half of a backward that the previous stage waits for.
  constexpr RankOrder& backward_input(int chunk = 0) { return next(ActionKind::backward_input, chunk, backwards_); }
  /// The other half, at any time after backward_input.
  constexpr RankOrder& backward_params(int chunk = 0) { return next(ActionKind::backward_params, chunk, params_); }

  /// backward_params of whichever chunk and micro-batch has waited longest since its backward_input.
  constexpr RankOrder& oldest_backward_params() {
    while (oldest_ < actions_.size() && !waits_for_params(actions_[oldest_])) ++oldest_;
    return backward_params(oldest_ < actions_.size() ? actions_[oldest_].chunk : 0);
  }
  /// A forward of one chunk and a backward of another, run as one action so that each hides the other's communication.
  constexpr RankOrder& forward_with_backward(int forward_chunk, int backward_chunk) {
    forward(forward_chunk);
    actions_[actions_.size() - 1].overlaps_next = true;
    return backward(backward_chunk);
  }
  /// Any action, out of turn.
  constexpr RankOrder& add(const Action& action) {
    actions_.append(action);
    return *this;
  }

  /// From here on, counting starts at this micro-batch.
  constexpr void start_at(int microbatch) {
    for (int chunk = 0; chunk < forwards_.size(); ++chunk)
      forwards_[chunk] = backwards_[chunk] = params_[chunk] = microbatch;
  }
  /// Closes the list: the optimizer's update if anything was learnt.
  constexpr void finish() {
    const int size = actions_.size();
    if (size == 0 || actions_[size - 1].kind == ActionKind::update) return;
    for (const Action& a : actions_) {
      if (a.kind == ActionKind::forward) continue;
      actions_.append({.kind = ActionKind::update});
      return;
    }
  }
  /// The list; nothing is left here.
  [[nodiscard]] constexpr Table<Action> take() { return std::move(actions_); }

 private:
  [[nodiscard]] constexpr bool known(int chunk) const noexcept { return chunk >= 0 && chunk < forwards_.size(); }
  [[nodiscard]] constexpr bool waits_for_params(const Action& a) const noexcept {
    return a.kind == ActionKind::backward_input && known(a.chunk) && a.microbatch >= params_[a.chunk];
  }
  constexpr RankOrder& next(ActionKind kind, int chunk, Table<int>& count) {
    actions_.append({kind, known(chunk) ? count[chunk]++ : 0, chunk});
    return *this;
  }

  Table<Action> actions_;
  Table<int> forwards_, backwards_, params_;  // by chunk: the micro-batch whose turn is next
  int oldest_ = 0;
};

/// A schedule: any type whose objects write the order of each rank. It may also have, static or not,
///   `name`                       a word for messages
///   `chunks`                     how many chunks a rank holds (default 1)
///   `stage_rank(shape, stage)`   which rank holds a stage (default `stage % ranks`)
///   `stages(shape)`              the number of stages (default `ranks * chunks`)
///   `microbatches(shape)`        a MicrobatchRule (default: any number)
/// Where it would have more than `shape.active` micro-batches under way, it is run in waves of that many.
template <class S>
concept PipelineSchedule =
    requires(const S& schedule, const PipelineShape& shape, RankOrder& order) { schedule.order(shape, 0, order); };

/// The name a schedule gives itself.
template <PipelineSchedule S>
[[nodiscard]] constexpr std::string_view name_of(const S& schedule) {
  if constexpr (requires { std::string_view(schedule.name); })
    return schedule.name;
  else
    return "schedule";
}

/// The shape with the chunks that `schedule` gives a rank.
template <PipelineSchedule S>
[[nodiscard]] constexpr PipelineShape shape_of(const S& schedule, PipelineShape shape) {
  if constexpr (requires { int{schedule.chunks}; }) shape.chunks = schedule.chunks;
  return shape;
}

/// Which numbers of micro-batches `schedule` can run on these ranks.
template <PipelineSchedule S>
[[nodiscard]] constexpr MicrobatchRule microbatch_rule(const S& schedule, const PipelineShape& shape) {
  if constexpr (requires { schedule.microbatches(shape); })
    return schedule.microbatches(shape);
  else
    return {};
}

/// A schedule written out for one shape: the lists of all ranks, and where the stages are.
struct PipelinePlan {
  PipelineShape shape;     ///< for which it was written
  Table<int> stage_rank;   ///< by stage
  Table<int> stage_chunk;  ///< by stage: its number among the chunks of its rank
  Table<int> chunk_stage;  ///< by rank * shape.chunks + chunk; -1 where a rank has fewer chunks
  Table<Action> actions;   ///< all lists, rank 0 first
  Table<int> first;        ///< rank r's list is actions[first[r]] up to actions[first[r + 1]]
  Table<int> action_rank;  ///< by action

  /// Ranks of the pipeline.
  [[nodiscard]] constexpr int ranks() const noexcept { return shape.ranks; }
  /// Stages of the model, on all ranks together.
  [[nodiscard]] constexpr int stages() const noexcept { return stage_rank.size(); }
  /// Actions of all ranks.
  [[nodiscard]] constexpr int size() const noexcept { return actions.size(); }
  /// The stage that action `i` works on.
  [[nodiscard]] constexpr int stage(int i) const noexcept {
    return chunk_stage[action_rank[i] * shape.chunks + actions[i].chunk];
  }
  /// One past the last action that runs as one with action `i` (itself, unless it overlaps the next).
  [[nodiscard]] constexpr int unit_end(int i) const noexcept {
    while (actions[i].overlaps_next && i + 1 < first[action_rank[i] + 1]) ++i;
    return i + 1;
  }
  /// The place of action `i` in the list of its rank.
  [[nodiscard]] constexpr int position(int i) const noexcept { return i - first[action_rank[i]]; }
  /// Action `i` as text: "F3", or "F3.1" where ranks hold several chunks.
  [[nodiscard]] std::string cell(int i) const { return to_string(actions[i], shape.chunks > 1); }
};

namespace detail {

/// @throws ConfigError that names the nearest number of micro-batches that `rule` allows.
[[noreturn]] inline void refuse_microbatches(std::string_view name, int ranks, int found, MicrobatchRule rule,
                                             std::string_view what) {
  const auto say = [](int n) { return std::to_string(n); };
  const int below = found / rule.multiple_of * rule.multiple_of;
  const int above = (rule.at_least + rule.multiple_of - 1) / rule.multiple_of * rule.multiple_of;
  const std::string nearest = below >= rule.at_least && below > 0 ? "the nearest legal numbers are " + say(below) +
                                                                        " and " + say(below + rule.multiple_of)
                                                                  : "the nearest legal number is " + say(above);
  std::string need = rule.multiple_of > 1 ? "a multiple of " + say(rule.multiple_of) : "at least " + say(rule.at_least);
  throw ConfigError(std::string(name) + " on " + say(ranks) + (ranks == 1 ? " rank" : " ranks") + " needs " + need +
                    " " + std::string(what) + "; found " + say(found) + ", " + nearest);
}

/// @throws ConfigError naming a number that must be positive and is not.
[[noreturn]] inline void refuse_number(std::string_view what, int found, int least) {
  throw ConfigError(std::string(what) + " must be at least " + std::to_string(least) + "; found " +
                    std::to_string(found));
}

/// @throws ConfigError for more actions or ranks than a plan can count.
[[noreturn]] inline void refuse_size(const PipelineShape& shape) {
  throw ConfigError("a schedule of " + std::to_string(shape.ranks) + " ranks, " + std::to_string(shape.chunks) +
                    " chunks each and " + std::to_string(shape.microbatches) +
                    " micro-batches is too large; expected at most 8192 ranks and 67108864 forwards");
}

}  // namespace detail

/// Where the stages of `schedule` are: a plan without actions.
template <PipelineSchedule S>
[[nodiscard]] constexpr PipelinePlan place_stages(const S& schedule, const PipelineShape& shape) {
  PipelinePlan plan;
  plan.shape = shape;
  int stages = shape.ranks * shape.chunks;
  if constexpr (requires { schedule.stages(shape); }) stages = schedule.stages(shape);
  plan.stage_rank = Table<int>(stages);
  plan.stage_chunk = Table<int>(stages);
  plan.chunk_stage = Table<int>(shape.ranks * shape.chunks, -1);
  Table<int> held(shape.ranks);
  for (int stage = 0; stage < stages; ++stage) {
    int rank = stage % shape.ranks;
    if constexpr (requires { schedule.stage_rank(shape, stage); }) rank = schedule.stage_rank(shape, stage);
    if (rank < 0 || rank >= shape.ranks)
      throw ConfigError("a schedule puts stage " + std::to_string(stage) + " on rank " + std::to_string(rank) +
                        "; expected a rank from 0 to " + std::to_string(shape.ranks - 1));
    plan.stage_rank[stage] = rank;
    plan.stage_chunk[stage] = held[rank]++;
    if (held[rank] > shape.chunks) detail::refuse_number("the number of chunks of a rank", shape.chunks, held[rank]);
    plan.chunk_stage[rank * shape.chunks + plan.stage_chunk[stage]] = stage;
  }
  return plan;
}

/// What a rank holds while it runs a forward. A chunk activation is held from its forward to the last backward of the
/// same chunk and micro-batch; in a list without any backward, only while the forward runs.
struct Held {
  int activations = 0;   ///< of all chunks
  int of_chunk = 0;      ///< of the chunk at hand
  int microbatches = 0;  ///< to which the activations belong
};

/// Calls `visit(position, held)` for each forward of one rank's list.
template <class Visit>
constexpr void walk_held(const Action* list, int size, const PipelineShape& shape, Visit visit) {
  const auto frees = [](ActionKind kind) {
    return kind == ActionKind::backward || kind == ActionKind::backward_params;
  };
  bool frees_at_once = true;
  for (int i = size - 1; i >= 0 && frees_at_once; --i) frees_at_once = !frees(list[i].kind);
  Table<int> of_microbatch(shape.microbatches), of_chunk(shape.chunks);
  Held held;
  for (int i = 0; i < size; ++i) {
    const Action& a = list[i];
    if (a.microbatch < 0 || a.microbatch >= shape.microbatches || a.chunk < 0 || a.chunk >= shape.chunks) continue;
    if (a.kind == ActionKind::forward) {
      if (++of_microbatch[a.microbatch] == 1) ++held.microbatches;
      ++held.activations;
      held.of_chunk = ++of_chunk[a.chunk];
      visit(i, held);
    }
    if (frees_at_once || frees(a.kind)) {
      if (--of_microbatch[a.microbatch] == 0) --held.microbatches;
      --held.activations;
      --of_chunk[a.chunk];
    }
  }
}

/// The same for one rank of a plan; `visit` is given the number of the action in the plan.
template <class Visit>
constexpr void walk_held(const PipelinePlan& plan, int rank, Visit visit) {
  const int from = plan.first[rank];
  walk_held(plan.actions.begin() + from, plan.first[rank + 1] - from, plan.shape,
            [&](int position, const Held& held) { visit(from + position, held); });
}

namespace detail {

/// All lists of `schedule`, the micro-batches taken in waves of `wave`; each list ends with an update if it trains.
template <PipelineSchedule S>
[[nodiscard]] constexpr Table<Table<Action>> write_lists(const S& schedule, const PipelineShape& shape, int wave) {
  Table<Table<Action>> lists(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.chunks);
    for (int from = 0; from < shape.microbatches; from += wave) {
      PipelineShape part = shape;
      part.microbatches = wave < shape.microbatches - from ? wave : shape.microbatches - from;
      order.start_at(from);
      schedule.order(part, rank, order);
    }
    order.finish();
    lists[rank] = order.take();
  }
  return lists;
}

/// Puts the lists one after the other into `plan`, which has its stages placed.
[[nodiscard]] constexpr PipelinePlan with_lists(PipelinePlan plan, const Table<Table<Action>>& lists) {
  int size = 0;
  for (const Table<Action>& list : lists) size += list.size();
  plan.actions = Table<Action>(size);
  plan.action_rank = Table<int>(size);
  plan.first = Table<int>(lists.size() + 1);
  Action* action = plan.actions.begin();
  int* action_rank = plan.action_rank.begin();
  for (int rank = 0; rank < lists.size(); ++rank) {
    for (const Action& a : lists[rank]) {
      *action++ = a;
      *action_rank++ = rank;
    }
    plan.first[rank + 1] = plan.first[rank] + lists[rank].size();
  }
  return plan;
}

/// Throws ConfigError for a shape that `schedule` cannot run.
template <PipelineSchedule S>
constexpr void require_legal(const S& schedule, const PipelineShape& shape) {
  if (shape.ranks < 1) refuse_number("the number of pipeline ranks", shape.ranks, 1);
  if (shape.microbatches < 1) refuse_number("the number of micro-batches", shape.microbatches, 1);
  if (shape.chunks < 1) refuse_number("the number of chunks of a rank", shape.chunks, 1);
  if (shape.active < 0) refuse_number("active_microbatches", shape.active, 0);
  constexpr long long most = 1 << 26;  // of actions of a kind and of channels, so that `int` counts them
  if (1LL * shape.ranks * shape.ranks > most || 1LL * shape.ranks * shape.chunks > most / shape.microbatches)
    refuse_size(shape);
  const MicrobatchRule rule = microbatch_rule(schedule, shape);
  if (!rule.allows(shape.microbatches))
    refuse_microbatches(name_of(schedule), shape.ranks, shape.microbatches, rule, "micro-batches");
}

}  // namespace detail

/// Writes `schedule` out for `shape`.
/// @throws ConfigError for a shape that it cannot run, naming the nearest one that it can.
template <PipelineSchedule S>
[[nodiscard]] constexpr PipelinePlan make_pipeline_plan(const S& schedule, PipelineShape shape) {
  shape = shape_of(schedule, shape);
  detail::require_legal(schedule, shape);
  Table<Table<Action>> lists = detail::write_lists(schedule, shape, shape.microbatches);
  int peak = 0;
  if (shape.active > 0)
    for (const Table<Action>& list : lists)
      walk_held(list.begin(), list.size(), shape,
                [&](int, const Held& held) { peak = held.microbatches > peak ? held.microbatches : peak; });
  if (peak > shape.active && shape.active > 0) {
    const MicrobatchRule rule = microbatch_rule(schedule, shape);
    const int last_wave = (shape.microbatches - 1) % shape.active + 1;
    if (!rule.allows(shape.active))
      detail::refuse_microbatches(name_of(schedule), shape.ranks, shape.active, rule, "active_microbatches");
    if (!rule.allows(last_wave))
      detail::refuse_microbatches(name_of(schedule), shape.ranks, last_wave, rule, "micro-batches in its last wave");
    lists = detail::write_lists(schedule, shape, shape.active);
  }
  return detail::with_lists(place_stages(schedule, shape), lists);
}

}  // namespace smp
