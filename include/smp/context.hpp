// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What surrounds a module while it runs: stream, memory, communicators, random numbers, and the strategy that brings
/// its parameters. It is an argument, so that several trainers can live in one process.

#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

#include <smp/device/memory.hpp>
#include <smp/device/side_stream.hpp>
#include <smp/module.hpp>
#include <smp/random.hpp>

namespace smp {

/// No strategy: parameters are always there.
struct NoHooks {};

/// A time in which a context says what it said when something ran for the first time, for running it again.
template <class Ctx>
class RunAgain {
 public:
  /// It begins.
  RunAgain(Ctx& ctx, RandomPosition position, bool training)
      : ctx_(ctx), position_(ctx.position), training_(ctx.training) {
    ctx.position = position;
    ctx.training = training;
  }
  RunAgain(const RunAgain&) = delete;
  RunAgain& operator=(const RunAgain&) = delete;
  ~RunAgain() {
    ctx_.position = position_;
    ctx_.training = training_;
  }

 private:
  Ctx& ctx_;
  RandomPosition position_;
  bool training_;
};

/// The surroundings of a module on one rank.
/// @tparam Stream what kernels are enqueued in
/// @tparam Groups has `operator[](Group)`: a communicator for each kind of group
/// @tparam Hooks has `enter(Unit&, Phase)` and `leave(Unit&, Phase)`, and `last_microbatch`-aware reductions; or
/// NoHooks
template <class Stream, class Groups, class Hooks = NoHooks>
class Context {
 public:
  static constexpr bool has_hooks = !std::is_same_v<Hooks, NoHooks>;  ///< a strategy brings parameters

  /// @param seed of the run's random numbers
  Context(Stream& stream, Memory& memory, Groups& groups, std::uint64_t seed, Hooks* hooks = nullptr)
      : stream_(&stream), memory_(&memory), groups_(&groups), seed_(seed), hooks_(hooks) {}

  /// What kernels are enqueued in.
  [[nodiscard]] Stream& stream() const noexcept { return *stream_; }
  /// Where tensors come from.
  [[nodiscard]] Memory& memory() const noexcept { return *memory_; }
  /// The communicators, by kind of group.
  [[nodiscard]] Groups& groups() const noexcept { return *groups_; }
  /// The random numbers of one place in the model at one step. A value that belongs to an element of a sample is drawn
  /// at `at.first_sample` times the elements of a sample plus its place in the micro-batch.
  [[nodiscard]] RandomStream random(const RandomSite& site, const RandomPosition& at) const noexcept {
    return {seed_, site.stream + at.step * 0x9E3779B97F4A7C15u};
  }
  /// The seed of the run.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

  /// The step and the samples that run now. A module whose backward draws again keeps a copy in its `Saved`.
  RandomPosition position{};
  /// False while a model is evaluated: nothing is dropped.
  bool training = true;
  /// The micro-batch that runs is the last one before the optimizer: gradients may be reduced as they are completed.
  bool last_microbatch = true;
  /// For communication beside the computation; null: it waits its turn. The results are the same.
  SideStream<Stream>* beside = nullptr;

  /// Runs a child that is a unit: the strategy brings its parameters before `f()` and takes them away after it. Without
  /// strategy, or for a child that is no unit, just `f()`. Called by containers.
  template <class F>
  decltype(auto) unit(Unit* unit, Phase phase, F&& f) {
    if constexpr (!has_hooks) {
      return std::forward<F>(f)();
    } else {
      if (unit == nullptr || hooks_ == nullptr) return std::forward<F>(f)();
      hooks_->enter(*unit, phase);
      struct Leave {
        Hooks& hooks;
        Unit& used;
        Phase phase;
        bool last_microbatch;
        int unwinding = std::uncaught_exceptions();
        ~Leave() noexcept(false) {
          if (std::uncaught_exceptions() > unwinding) {
            hooks.abandon(used, phase);
          } else {
            hooks.leave(used, phase, last_microbatch);
          }
        }
      } leave{*hooks_, *unit, phase, last_microbatch};
      return std::forward<F>(f)();
    }
  }

  /// The same surroundings with another strategy.
  template <class H>
  [[nodiscard]] Context<Stream, Groups, H> with(H& hooks) const {
    Context<Stream, Groups, H> inner(*stream_, *memory_, *groups_, seed_, &hooks);
    inner.position = position;
    inner.training = training;
    inner.last_microbatch = last_microbatch;
    inner.beside = beside;
    return inner;
  }

 private:
  Stream* stream_;
  Memory* memory_;
  Groups* groups_;
  std::uint64_t seed_;
  Hooks* hooks_;
};

}  // namespace smp
