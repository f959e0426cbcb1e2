// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Schedules that are known only at run time: one of the shipped ones by its name, or a table.

#include <charconv>
#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <smp/pipeline/schedules/dual_pipe_v.hpp>
#include <smp/pipeline/schedules/forward_only.hpp>
#include <smp/pipeline/schedules/interleaved.hpp>
#include <smp/pipeline/schedules/looped.hpp>
#include <smp/pipeline/schedules/simple.hpp>
#include <smp/pipeline/schedules/zero_bubble.hpp>
#include <smp/pipeline/schedules/zero_bubble_v.hpp>

namespace smp {

/// The inverse of to_string for all actions but the update; nothing if `word` is none.
[[nodiscard]] inline std::optional<Action> parse_action(std::string_view word) {
  constexpr std::string_view letters = "FBIW";
  const char* const end = word.data() + word.size();
  // `before` is the character before the number; returns the one behind it, or null.
  const auto read = [end](const char* before, int& value) -> const char* {
    const auto [stop, error] = std::from_chars(before + 1, end, value);
    return error == std::errc{} && value >= 0 && value < 1 << 26 ? stop : nullptr;
  };
  if (word.empty() || letters.find(word[0]) == std::string_view::npos) return {};
  Action action{.kind = static_cast<ActionKind>(letters.find(word[0]))};
  const char* at = read(word.data(), action.microbatch);
  if (at != nullptr && at != end && *at == '.') at = read(at, action.chunk);
  return at == end ? std::optional(action) : std::nullopt;
}

/// A schedule written out by hand or by another program, for one number of ranks and micro-batches.
struct TableSchedule {
  std::string name = "table";              ///< in messages
  std::vector<std::vector<Action>> lists;  ///< by rank
  std::vector<int> placement;              ///< by stage: its rank
  int chunks = 1;                          ///< most stages on one rank

  /// Reads the lists from rows like "F0.0 F0.1 B0.1 B0.0", one a rank, as printed by `to_string(Action)`; "--" is
  /// skipped, "U" may stand at the end; that actions overlap is not in the text. `placement` says which rank holds each
  /// stage; if empty, stage s is on rank s.
  /// @throws ConfigError naming the row and the word that is not an action
  [[nodiscard]] static TableSchedule parse(const std::vector<std::string>& rows, std::vector<int> placement = {});

  /// The list of the rank, as it stands.
  void order(const PipelineShape& shape, int rank, RankOrder& next) const {
    int microbatches = 0;
    for (const Action& action : lists.empty() ? std::vector<Action>{} : lists.front())
      microbatches = std::max(microbatches, action.microbatch + 1);
    if (shape.ranks != static_cast<int>(lists.size()) || shape.microbatches != microbatches)
      throw ConfigError(name + " is a table for " + std::to_string(lists.size()) + " ranks and " +
                        std::to_string(microbatches) + " micro-batches; found " + std::to_string(shape.ranks) +
                        " and " + std::to_string(shape.microbatches));
    for (const Action& action : lists[static_cast<std::size_t>(rank)]) next.add(action);
  }
  /// As many as `placement` says.
  [[nodiscard]] int stages(const PipelineShape&) const { return static_cast<int>(placement.size()); }
  /// As `placement` says.
  [[nodiscard]] int stage_rank(const PipelineShape&, int stage) const {
    return placement[static_cast<std::size_t>(stage)];
  }
};

/// Any schedule behind one type, for a trainer that learns its schedule from a command line.
class RuntimeSchedule {
 public:
  std::string name;  ///< in messages and on command lines
  int chunks = 1;    ///< of a rank

  /// Holds a copy of `schedule`.
  template <PipelineSchedule S>
  [[nodiscard]] static RuntimeSchedule of(S schedule) {
    RuntimeSchedule erased;
    erased.name = name_of(schedule);
    erased.chunks = shape_of(schedule, PipelineShape{}).chunks;
    erased.held_ = std::make_shared<const Holder<S>>(std::move(schedule));
    return erased;
  }
  /// The shipped schedule of that name; `chunks` a rank where it takes any number, else the number it has.
  /// A template, so that who names no schedule compiles none.
  /// @throws ConfigError for an unknown name (listing the known ones), or a number of chunks that it cannot have
  template <std::convertible_to<std::string_view> Name>
  [[nodiscard]] static RuntimeSchedule named(const Name& schedule, std::optional<int> chunks = {});

  /// The order of the schedule inside.
  void order(const PipelineShape& shape, int rank, RankOrder& next) const { held_->order(shape, rank, next); }
  /// What the schedule inside can run.
  [[nodiscard]] MicrobatchRule microbatches(const PipelineShape& shape) const { return held_->rule(shape); }
  /// How many stages the schedule inside has.
  [[nodiscard]] int stages(const PipelineShape& shape) const { return held_->stage_ranks(shape).size(); }
  /// Which rank holds a stage of the schedule inside.
  [[nodiscard]] int stage_rank(const PipelineShape& shape, int stage) const { return held_->stage_ranks(shape)[stage]; }

 private:
  // A class with virtual functions takes compilers a tenth of what three std::function take them.
  struct Held {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    virtual ~Held() = default;
    virtual void order(const PipelineShape& shape, int rank, RankOrder& next) const = 0;
    [[nodiscard]] virtual MicrobatchRule rule(const PipelineShape& shape) const = 0;
    [[nodiscard]] virtual Table<int> stage_ranks(const PipelineShape& shape) const = 0;
  };
  template <class S>
  struct Holder final : Held {
    explicit Holder(S s) : schedule(std::move(s)) {}
    void order(const PipelineShape& shape, int rank, RankOrder& next) const override {
      schedule.order(shape, rank, next);
    }
    [[nodiscard]] MicrobatchRule rule(const PipelineShape& shape) const override {
      return microbatch_rule(schedule, shape);
    }
    [[nodiscard]] Table<int> stage_ranks(const PipelineShape& shape) const override {
      return place_stages(schedule, shape).stage_rank;
    }
    S schedule;
  };

  RuntimeSchedule() = default;
  std::shared_ptr<const Held> held_;
};

template <std::convertible_to<std::string_view> Name>
RuntimeSchedule RuntimeSchedule::named(const Name& schedule, std::optional<int> chunks) {
  using Looped = RuntimeLoopedSchedule<LoopOrder::depth_first>;
  using LoopedBreadth = RuntimeLoopedSchedule<LoopOrder::breadth_first>;
  const std::string_view name = schedule;
  if (chunks && *chunks < 1) detail::refuse_number("the number of chunks of a rank", *chunks, 1);
  const auto fixed = [&](auto shipped) {
    RuntimeSchedule erased = of(shipped);
    if (chunks && *chunks != erased.chunks)
      throw ConfigError(std::string(name) + " holds " + std::to_string(erased.chunks) + " chunks a rank; found " +
                        std::to_string(*chunks) + " (looped and looped_breadth take any number)");
    return erased;
  };
  if (name == SimpleSchedule::name) return fixed(SimpleSchedule{});
  if (name == InterleavedSchedule::name) return fixed(InterleavedSchedule{});
  if (name == Looped::name) return of(Looped{{}, chunks.value_or(2)});
  if (name == LoopedBreadth::name) return of(LoopedBreadth{{}, chunks.value_or(2)});
  if (name == ZeroBubbleSchedule::name) return fixed(ZeroBubbleSchedule{});
  if (name == ZeroBubbleVSchedule::name) return fixed(ZeroBubbleVSchedule{});
  if (name == DualPipeVSchedule::name) return fixed(DualPipeVSchedule{});
  if (name == ForwardOnlySchedule<>::name) return of(ForwardOnlySchedule<LoopedBreadth>{{{}, chunks.value_or(1)}});
  throw ConfigError("no schedule is called '" + std::string(name) +
                    "'; there are simple, interleaved, looped, looped_breadth, zero_bubble, zero_bubble_v, dual_pipe_v "
                    "and forward_only");
}

inline TableSchedule TableSchedule::parse(const std::vector<std::string>& rows, std::vector<int> placement) {
  TableSchedule table;
  table.placement = std::move(placement);
  if (table.placement.empty())
    for (std::size_t rank = 0; rank < rows.size(); ++rank) table.placement.push_back(static_cast<int>(rank));
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    table.lists.emplace_back();
    constexpr std::string_view blanks = " \t\r\n";
    std::string_view rest = rows[rank];
    for (auto at = rest.find_first_not_of(blanks); at != rest.npos; at = rest.find_first_not_of(blanks)) {
      rest.remove_prefix(at);
      const std::string_view word = rest.substr(0, rest.find_first_of(blanks));
      rest.remove_prefix(word.size());
      if (word == "--" || word == "U") continue;
      const std::optional<Action> action = parse_action(word);
      if (!action)
        throw ConfigError("row " + std::to_string(rank) + " of a schedule: '" + std::string(word) +
                          "' is no action; expected a letter of FBIW, a micro-batch and, where a rank holds several, "
                          ".chunk");
      table.lists.back().push_back(*action);
    }
  }
  std::vector<int> held(rows.size());
  for (const int rank : table.placement)
    if (rank >= 0 && rank < static_cast<int>(rows.size()))
      table.chunks = std::max(table.chunks, ++held[static_cast<std::size_t>(rank)]);
  return table;
}

}  // namespace smp
