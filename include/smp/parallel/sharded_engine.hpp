// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What Sharded does, whatever the type of the model: who waits for what, in which stream.
///
///     gather:    wait for the last use of the storage, and for the update      -> all-gather      -> gathered
///     compute:   wait for gathered, and for the room for gradients             -> forward, backward
///     reduce:    wait for the gradients                                        -> reduce-scatter  -> room is free
///     replicate: wait for the shards, in the last micro-batch                  -> all-reduce over the replicas
///     compute:   wait for all of it, norm, clip, update of what is owned here  -> updated
///
/// Release is immediate on the host. No host waits inside of a step, but the first, whose order is recorded.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/communicator.hpp>
#include <smp/comm/gathering.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/config.hpp>
#include <smp/degrees.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_engine.hpp>
#include <smp/parallel/gathered_blocks.hpp>
#include <smp/parallel/gradient_reduction.hpp>
#include <smp/parallel/parameter_update.hpp>
#include <smp/parallel/shard_gradients.hpp>
#include <smp/parallel/shard_storage.hpp>
#include <smp/topology.hpp>

namespace smp {

/// A unit that uses a parameter of another one without declaring it.
struct ExternalParameter {
  std::string unit;       ///< path of the unit
  std::string parameter;  ///< path of the parameter
};

/// What sharded data parallelism can be told; sizes count elements.
struct ShardedOptions {
  double clip = 1.0;                                ///< largest L2 norm of the gradient; 0: any
  std::vector<ParameterGroup> groups{};             ///< what is updated in other ways
  std::size_t reduce_bucket_size = 500'000'000;     ///< gradients that are reduced together; a larger unit goes alone
  std::size_t persistence_threshold = 1'000'000;    ///< a parameter with fewer elements stays whole on every rank
  std::size_t max_live_parameters = 1'000'000'000;  ///< gathered at a time; what a unit needs at once always is
  std::size_t merge_gathers_below = 16'384;         ///< smaller gathers that follow each other become one message
  comm::GatherOptions gather{};                     ///< which way between nodes
  std::vector<ExternalParameter> external_parameters{};  ///< what units use beyond what they declare
  bool overlap = true;  ///< communicate while the model computes; an MPI without threads cannot. The bits are the same
  bool checked = check_level >= 2;                 ///< what is released is NaN, and every gather says its block
  bool compare_initial_values = check_level >= 2;  ///< between the replicas; they are equal if the models are
};

/// The engine of `Sharded`: parameters that stay whole are held as DataParallel holds them, the others as shards.
class ShardedEngine : public FlatEngine {
 public:
  /// For the model that `layout` was made of.
  /// @param plain the model knows nothing of tensor-parallel ranks: each of them has samples of its own
  /// @throws ConfigError if options or degrees cannot work
  template <class Ctx>
  ShardedEngine(Ctx& ctx, Layout& layout, int states, bool plain, const ShardedOptions& options)
      : ShardedEngine(ctx, with_external(layout, options), states, plain, options,
                      find_cut(layout, ctx.groups()[Group::shard].size())) {}
  ~ShardedEngine() { end_streams({replicate_, gathers_}); }

  /// Brings the parameters of a unit.
  template <class Hooks>
  void enter(Hooks& hooks, Unit& unit, Phase phase) {
    begin_unit(hooks, unit, phase);
    if (phase == Phase::forward && hooks.training && !hooks.in_backward) replicas_.forward(unit);
    values_.enter(hooks.compute, gather_, unit, hooks.training);
    if (phase == Phase::forward || !gradients_.has(unit)) return;
    replicas_.expect_open(unit);
    gradients_.enter(hooks.compute, beside(hooks.compute), hooks.groups.beside(comm::Lane::reduce, Group::shard), unit,
                     replicas_);
  }
  /// Takes them away, and reduces what is complete.
  template <class Hooks>
  void leave(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch) {
    values_.leave(hooks.compute, unit, hooks.training);
    if (phase != Phase::forward && gradients_.has(unit)) {
      gradients_.leave(hooks.compute, beside(hooks.compute), hooks.groups.beside(comm::Lane::reduce, Group::shard),
                       unit, completes_gradients(phase), replicas_);
      if (last_microbatch && replicate_) sum_over_replicas(hooks.compute, hooks.groups, false);
    }
    end_unit(hooks, unit, phase, last_microbatch, all_reduce(hooks.groups));
  }
  /// An exception has left the unit.
  template <class Hooks>
  void abandon(Hooks& hooks, Unit& unit, Phase phase) {
    FlatEngine::abandon(hooks, unit, phase);
    values_.leave(hooks.compute, unit, hooks.training);
    if (phase != Phase::forward && gradients_.has(unit)) gradients_.abandon(unit);
  }

  /// Calls `f(block)` while the values of the block are here. All ranks of the shard group call it.
  template <class Ctx, class F>
  void with_values(Ctx& ctx, Block& block, F&& f) {
    if (shards_.place(block.id).size == 0) {
      ctx.stream().synchronize();
      f(block);
    } else {
      values_.with_values(ctx.stream(), gather_, block, [&] { f(block); });
    }
  }

  /// Reduces what is left, and enqueues the update.
  template <class Ctx, class Opt>
  void update(Ctx& ctx, const Opt& optimizer, double learning_rate) {
    auto& compute = ctx.stream();
    auto& groups = ctx.groups();
    values_.finish(compute, gather_);
    sum_over_replicas(compute, groups, true);
    sum_over_stages(ctx);
    finish_reduction(compute, all_reduce(groups));
    ties().sum(ctx, [&](const Block& block, auto&& f) { shards_.visit_gradient(block, f); });
    square(compute, groups);
    const optim::StepNumbers numbers = finish_scale(ctx, learning_rate);
    const auto update = [&](auto& arrays) { update_runs(compute, optimizer, arrays, numbers, &scale()); };
    storage().for_each_type(update);
    shards_.for_each_type(update);
    end_step(compute, true);
  }

  /// Forgets the gradients since the last update; all ranks do.
  template <class Ctx>
  void discard(Ctx& ctx) {
    for (HostStream* stream : {gathers_, replicate_}) {
      if (stream != nullptr) forget(*stream);
    }
    FlatEngine::discard(ctx);
    gradients_.settle(beside(ctx.stream()));
    shards_.for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      ctx.stream().enqueue(
          [data = arrays.gradients.data(), size = arrays.gradients.size()] { std::fill_n(data, size, T(0)); });
    });
    end_step(ctx.stream(), false);
  }

  /// True if there are shards, which the ranks of a group gather together.
  [[nodiscard]] bool runs_together() const noexcept { return shards_.any(); }
  /// The shards. Who writes to their values says so with `shards_written`.
  [[nodiscard]] ShardStorage& shards() noexcept { return shards_; }
  /// What has been gathered of them is stale.
  void shards_written() noexcept { values_.forget(); }
  /// What is gathered.
  [[nodiscard]] const GatheredBlocks<HostStream>& values() const noexcept { return values_; }
  /// Which way gathers took, and why.
  [[nodiscard]] const comm::GroupGather& gather() const noexcept { return gather_; }

 private:
  template <class Ctx>
  ShardedEngine(Ctx& ctx, Layout& layout, int states, bool plain, const ShardedOptions& o, const std::vector<bool>& cut)
      : FlatEngine(ctx, layout, states, plain, o, bytes(layout, o.reduce_bucket_size),
                   [&](const Block& b) { return !cut[static_cast<std::size_t>(b.id)]; }),
        ranks_(ctx.groups()[Group::shard].size()),
        tp_(ctx.groups()[Group::tp].size()),
        parts_(plain ? 1 : tp_),
        gathers_(stream_beside(ctx, o, comm::Lane::gather)),
        replicate_(stream_beside(ctx, o, comm::Lane::replicate)),
        gather_(ctx.groups().beside(comm::Lane::gather, Group::shard), o.gather),
        shards_(layout, ctx.memory(), states, ctx.groups()[Group::shard].rank(), ranks_,
                [&](const Block& b) { return cut[static_cast<std::size_t>(b.id)]; }),
        values_(layout, shards_, ctx.memory(),
                {bytes(layout, o.max_live_parameters), bytes(layout, o.merge_gathers_below), o.checked}, ranks_,
                gathers_),
        gradients_(layout, shards_, ctx.memory(), ctx.groups()[Group::shard].rank(), ranks_,
                   bytes(layout, o.reduce_bucket_size)),
        replicas_(layout.blocks().size(), shards_.gradients(plain), bytes(layout, o.reduce_bucket_size)) {
    if (std::none_of(cut.begin(), cut.end(), [](bool c) { return c; })) check_visibility(ctx.memory(), o.checked);
    shards_.initialise(ctx.seed());
    if (ranks_ > 1) {
      prepare(ctx, {{comm::Lane::reduce, Group::shard},
                    {comm::Lane::replicate, Group::replica},
                    {comm::Lane::replicate, Group::tp}});
    }
    if (o.compare_initial_values) compare_shards(ctx);
  }

  /// What communicates beside the computation; null: nothing does.
  template <class Ctx>
  static HostStream* stream_beside(Ctx& ctx, const ShardedOptions& options, comm::Lane lane) {
    auto& shard = ctx.groups()[Group::shard];
    const bool beside = shard.size() > 1 && options.overlap && comm::works_in_any_thread(shard);
    return beside ? &ctx.groups().stream(lane) : nullptr;
  }
  static Layout& with_external(Layout& layout, const ShardedOptions& options) {
    if (options.reduce_bucket_size == 0) {
      throw ConfigError("reduce_bucket_size is 0: a bucket of gradients must have room for something");
    }
    for (const auto& [unit, parameter] : options.external_parameters) layout.register_parameter(unit, parameter);
    return layout;
  }
  /// Which blocks are cut into shards: those of units that say so, but for what is persistent.
  static std::vector<bool> find_cut(Layout& layout, int ranks) {
    std::vector<bool> cut(layout.blocks().size(), ranks > 1);
    for (const Block& b : layout.blocks()) {
      if (b.persistent) cut[static_cast<std::size_t>(b.id)] = false;
    }
    for (const Unit& u : layout.units()) {
      if (u.shard_degree == ranks || u.shard_degree == dynamic) continue;
      if (u.shard_degree != 1) {
        throw ConfigError("Sharded: " + (u.id == 0 ? "the model" : "the unit \"" + u.path + "\"") +
                          " is to be held by " + std::to_string(u.shard_degree) +
                          " ranks together, but the shard groups of the topology have sdp = " + std::to_string(ranks));
      }
      for (const Block* b : u.uses) cut[static_cast<std::size_t>(b->id)] = false;
    }
    return cut;
  }
  /// Bytes of so many elements, or as many as can be counted.
  static std::size_t bytes(Layout& layout, std::size_t elements) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
    const std::size_t each = widest_element(layout);
    return elements < most / each ? elements * each : most;
  }

  /// Sums shards over the replicas, those that are complete or `all`; then, of whole parameters that the
  /// tensor-parallel ranks have summands of, over these. `compute` goes on after all.
  template <class Groups>
  void sum_over_replicas(HostStream& compute, Groups& groups, bool all) {
    if (!shards_.any()) return;
    HostStream& replicate = replicate_ ? *replicate_ : compute;
    auto& replica = groups.beside(comm::Lane::replicate, Group::replica);
    replicas_.launch(beside(compute), replicate, all, [&](auto gradients, std::size_t) {
      if (replica.size() > 1) replica.all_reduce(replicate, gradients, gradients, sum, Purpose::gradient);
    });
    if (!all) return;
    auto& tp = groups.beside(comm::Lane::replicate, Group::tp);
    for (const GradientBucket& bucket : replicas_.buckets()) {
      if (tp_ == 1 || bucket.over_tp != OverTp::summands) continue;
      bucket.visit([&](auto gradients) { tp.all_reduce(replicate, gradients, gradients, sum, Purpose::gradient); });
    }
    if (!replicate_) return;
    replicate_->record(replicated_);
    compute.wait(replicated_);
  }

  /// The squares of all gradients, each element once: of shards over the shard group, of what is whole here as it is,
  /// of parts over the tensor-parallel ranks, whose first one speaks for what all of them have whole.
  template <class Groups>
  void square(HostStream& compute, Groups& groups) {
    compute.enqueue([s = &scale()] { s->squares = s->squares_of_parts = 0; });
    shards_.for_each_type([&](auto& arrays) { add_squares(compute, arrays, parts_ > 1, &scale()); });
    if (ranks_ > 1) {
      // The same message says whether all ranks have used their units in one order.
      const auto order = static_cast<double>(values_.storage().order_hash() & 0xFFFF);
      compute.enqueue([s = &scale(), m = message_.data(), order] {
        m[0] = s->squares, m[1] = s->squares_of_parts, m[2] = order, m[3] = order * order;
      });
      groups[Group::shard].all_reduce(compute, message_, message_, sum, Purpose::norm);
      compute.enqueue([s = &scale(), m = message_.data(), n = ranks_] {
        if (m[3] * n != m[2] * m[2]) {
          throw CommError(
              "the ranks of the SHARD group have used their units in different orders in this step: all of them must "
              "run the same modules, whatever their samples are");
        }
        s->squares = m[0], s->squares_of_parts = m[1];
      });
    }
    storage().for_each_type([&](auto& arrays) { add_squares(compute, arrays, parts_ > 1, &scale()); });
    if (parts_ == 1) return;
    auto& tp = groups[Group::tp];
    compute.enqueue([s = &scale(), m = message_.data(), first = tp.rank() == 0] {
      m[0] = first ? s->squares : 0, m[1] = s->squares_of_parts;
    });
    const std::span<double> both(message_.data(), 2);
    tp.all_reduce(compute, both, both, sum, Purpose::norm);
    compute.enqueue([s = &scale(), m = message_.data()] { s->squares = m[0], s->squares_of_parts = m[1]; });
  }

  template <class Stream>
  void end_step(Stream& compute, bool complete) {
    values_.end_step(compute, complete);
    gradients_.end_step();
    replicas_.reset();
    begin_step();
  }

  /// Compares the layout and the shards of the replicas.
  /// @throws ConfigError on all ranks if they differ
  template <class Ctx>
  void compare_shards(Ctx& ctx) {
    std::uint64_t hash = 0;
    const auto add = [&](std::string_view bytes) { hash = hash * 1099511628211U ^ stream_of(bytes); };
    shards_.for_each_own([&](const Block::Segment& s, std::size_t, auto values, auto) {
      add(s.name);
      add({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
    });
    compare_over(ctx, Group::replica, hash);
    hash = 0;
    for (const Block& b : layout().blocks()) {
      for (const Block::Segment& s : b.segments) add(s.name + to_string(s.declaration->shape()));
    }
    compare_over(ctx, Group::shard, hash);
  }

  int ranks_;  // of the shard group
  int tp_;
  int parts_;              // over which parameters are cut
  HostStream* gathers_;    // beside the computation; null: in its stream
  HostStream* replicate_;  // likewise
  comm::GroupGather gather_;
  ShardStorage shards_;
  GatheredBlocks<HostStream> values_;
  ShardGradients<HostStream> gradients_;
  GradientReduction replicas_;
  HostEvent replicated_;
  std::array<double, 4> message_{};
};

}  // namespace smp
