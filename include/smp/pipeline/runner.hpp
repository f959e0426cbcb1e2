// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Runs what one rank of a pipeline does in a step: its actions on the calling thread, its messages beside them.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/pipeline/crossing.hpp>
#include <smp/pipeline/layers.hpp>
#include <smp/pipeline/parcels.hpp>
#include <smp/pipeline/stage.hpp>
#include <smp/pipeline/work.hpp>
#include <smp/timeline.hpp>
#include <smp/topology.hpp>

namespace smp {

/// A step of one rank of a pipeline.
/// @tparam Strategy whose module is a `Pipeline`
/// @tparam Ends what is at the ends of the model: `input(microbatch)`, `output(microbatch, slot, y)`,
///   `gradient(microbatch, slot)` of the output, and `place(ctx, microbatch)`, which says what is run
template <class Ctx, class Strategy, class Ends>
class PipelineRun {
  using Pipe = std::remove_cvref_t<decltype(std::declval<Strategy&>().module())>;
  using Rows = typename Pipe::Rows;
  using Value = typename Rows::Value;
  using Gradient = typename Rows::Gradient;

 public:
  using Mail = PipelineMail<Rows>;  ///< its messages

  /// @param completes the step is the last one before the update: gradients are reduced as they are completed
  PipelineRun(Ctx& ctx, Strategy& strategy, const PipelineWork& work, Mail& mail, Ends& ends, bool completes,
              Timeline* timeline = nullptr)
      : ctx_(ctx),
        strategy_(strategy),
        pipe_(strategy.module()),
        rows_(pipe_.rows()),
        work_(work),
        mail_(mail),
        ends_(ends),
        completes_(completes),
        timeline_(timeline),
        step_(strategy.steps()) {}

  /// All actions and exchanges. An exception of one rank is thrown on all ranks that wait for what it would have sent;
  /// all of them make their exchanges first, so that nobody waits for ever.
  void operator()() {
    auto& groups = ctx_.groups();
    const auto& tp = groups[Group::tp];
    // Ranks that are in no exchange with this one may wait for it within an action.
    const bool answers = groups[Group::world].size() > groups[Group::pp].size();
    mail_.begin(work_.actions(), static_cast<std::size_t>(work_.program.exchanges),
                static_cast<std::size_t>(work_.program.messages.size()),
                {static_cast<std::size_t>(tp.rank()), static_cast<std::size_t>(tp.size())}, answers);
    for (const PipelineInstruction& in : work_.program.instructions) {
      if (in.action < 0) {
        exchange(in);
      } else if (!failure_) {
        run_or_note(in);
      }
    }
    mail_.finish();
    if (!failure_ && mail_.failed()) failure_ = std::make_exception_ptr(CommError(mail_.failure()));
    if (!failure_) return;
    pipe_.clear();
    std::rethrow_exception(failure_);
  }

 private:
  void run_or_note(const PipelineInstruction& in) {
    try {
      if (in.exchange > 0) mail_.wait(in.exchange - 1);
      // At the first word of it: an action that needs nothing of what has failed may need ranks that will not come.
      if (mail_.failed()) throw CommError(mail_.failure());
      run(in.action);
    } catch (const std::exception& e) {
      note(e.what());
    } catch (...) {
      note("something that is no std::exception");
    }
  }
  void note(const char* why) {
    failure_ = std::current_exception();
    reason_ = "rank " + std::to_string(ctx_.groups()[Group::world].rank()) + " has thrown: " + why;
  }

  void exchange(const PipelineInstruction& in) {
    for (int m = in.first; m < in.last; ++m) {
      const PipelineMessage& message = work_.program.messages[m];
      const std::size_t here = work_.local(message.action);
      const Action& made = work_.plan.actions[message.maker];
      const bool forward = made.kind == ActionKind::forward;
      Envelope<Rows>& envelope = mail_.envelope(m);
      envelope = {};
      envelope.peer = message.peer;
      envelope.incoming = message.incoming;
      envelope.header.step = step_;
      envelope.header.stage = work_.plan.stage(message.maker);
      envelope.header.microbatch = made.microbatch;
      envelope.header.gradient = forward ? 0 : 1;
      envelope.parcel = message.incoming ? &mail_.incoming(here) : &mail_.outgoing(here);
      if (message.incoming) {
        const LayerRange range = range_of(message.action);
        *envelope.parcel = {};
        if (forward) envelope.parcel->value = rows_.value_before(range.first);
        if (!forward) envelope.parcel->gradient = rows_.gradient_before(range.last);
      }
    }
    if (ctx_.stream().mode() == HostStream::Mode::worker) ctx_.stream().synchronize();
    mail_.exchange(ctx_.groups()[Group::pp], ctx_.memory(), failure_ ? &reason_ : nullptr, in.exchange, in.first,
                   in.last);
  }

  [[nodiscard]] Stage<Rows> stage_of(int action) { return {rows_, pipe_.groups(work_.plan.actions[action].chunk)}; }
  [[nodiscard]] LayerRange range_of(int action) const { return pipe_.range(work_.plan.actions[action].chunk); }

  /// What an action was given, if it is not at an end of the model; whole. A rank that has failed joins no slices any
  /// more, as it takes part in none of its layers' communication: those that wait for it end with the job.
  [[nodiscard]] Parcel<Rows> take(int action) {
    Parcel<Rows> parcel = std::exchange(mail_.incoming(work_.local(action)), Parcel<Rows>{});
    if (work_.needs.sender[action] >= 0) {  // not from a stage on this rank
      join_slices(
          ctx_, [&](auto& join) { parcel.for_each(join); }, mail_.slice_sizes(work_.local(action)));
    }
    return parcel;
  }
  /// Hands on what an action has made: to another rank, or to the next stage on this one.
  void give(int action, Parcel<Rows> parcel) {
    const int next = work_.needs.feeds[action];
    if (next < 0) return;
    (work_.needs.receiver[action] < 0 ? mail_.incoming(work_.local(next)) : mail_.outgoing(work_.local(action))) =
        std::move(parcel);
  }

  void run(int action) {
    const Action& a = work_.plan.actions[action];
    if (a.kind == ActionKind::update) return;
    constexpr const char* kinds[] = {"forward", "backward", "backward_input", "backward_params"};
    const Timeline::Scope scope(timeline_, "compute", work_.plan.cell(action), kinds[static_cast<int>(a.kind)]);
    ends_.place(ctx_, a.microbatch);
    ctx_.last_microbatch = completes_ && work_.last[work_.local(action)];
    const int slot = work_.slots.slot[action];
    const int count = work_.slots.count[work_.plan.action_rank[action] * work_.plan.shape.chunks + a.chunk];
    auto& saved = pipe_.slots(a.chunk, count)[static_cast<std::size_t>(slot)];
    if (a.kind == ActionKind::forward) return forward(action, saved);
    if constexpr (requires { ends_.gradient(0, 0); }) {
      if (a.kind == ActionKind::backward) return backward(action, saved, Phase::backward);
      if (a.kind == ActionKind::backward_input) return backward(action, saved, Phase::backward_input);
      strategy_.run(ctx_, Phase::backward_params,
                    [&](auto& inner) { rows_.backward_params(inner, range_of(action), saved.layers); });
      saved.clear();
    }
  }

  template <class Saved>
  void forward(int action, Saved& saved) {
    const Action& a = work_.plan.actions[action];
    const int stage = work_.plan.stage(action);
    Value x = stage == 0 ? Value(std::in_place_type<typename Pipe::Input>, ends_.input(a.microbatch))
                         : std::move(take(action).value);
    Value y = strategy_.run(ctx_, Phase::forward,
                            [&](auto& inner) { return stage_of(action).forward(inner, std::move(x), saved); });
    if (!work_.training) saved.clear();
    if (stage + 1 < work_.plan.stages()) return give(action, {std::move(y), {}});
    ends_.output(a.microbatch, work_.slots.slot[action], std::move(*std::get_if<typename Pipe::Output>(&y)));
  }

  template <class Saved>
  void backward(int action, Saved& saved, Phase phase) {
    const Action& a = work_.plan.actions[action];
    const bool last = work_.plan.stage(action) + 1 == work_.plan.stages();
    Gradient dy = last ? Gradient(std::in_place_type<GradOf<typename Pipe::Output>>,
                                  ends_.gradient(a.microbatch, work_.slots.slot[action]))
                       : std::move(take(action).gradient);
    Gradient dx = strategy_.run(
        ctx_, phase, [&](auto& inner) { return stage_of(action).backward(inner, std::move(dy), saved, phase); });
    if (phase == Phase::backward) saved.clear();
    give(action, {{}, std::move(dx)});
  }

  Ctx& ctx_;
  Strategy& strategy_;
  Pipe& pipe_;
  Rows rows_;
  const PipelineWork& work_;
  Mail& mail_;
  Ends& ends_;
  bool completes_;
  Timeline* timeline_;
  std::int64_t step_;
  std::exception_ptr failure_;
  std::string reason_;
};

}  // namespace smp
