// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Data parallelism whose optimizer keeps no state twice: each rank sums and updates its part of every bucket, and
/// gathers the others' parts while the next forward begins. Rajbhandari, Rasley, Ruwase, He: ZeRO: Memory Optimizations
/// Toward Training Trillion Parameter Models, 2020, stage 1.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/config.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/module.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/flat_engine.hpp>
#include <smp/parallel/optimizer_pieces.hpp>
#include <smp/parallel/parameter_update.hpp>
#include <smp/parallel/strategy.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What ShardedOptimizer can be told.
struct ShardedOptimizerOptions {
  double clip = 0;                              ///< largest L2 norm of the gradient; 0: any
  std::vector<ParameterGroup> groups{};         ///< what is updated in other ways
  std::size_t bucket_bytes = 25 * 1024 * 1024;  ///< largest bucket of gradients, unless a parameter is larger
  bool overlap = true;  ///< reduce under backward, gather under forward; an MPI without threads cannot. Same bits
  bool checked = check_level >= 2;                 ///< find modules that keep pointers to parameters (they compute NaN)
  bool compare_initial_values = check_level >= 2;  ///< between the ranks; they are equal if the models are
};

/// What ShardedOptimizer does, whatever the type of the model.
class ShardedOptimizerEngine : public FlatEngine {
 public:
  /// For the model that `layout`, which keeps cut parameters apart, was made of.
  /// @param plain the model knows nothing of tensor-parallel ranks: each of them has samples of its own
  template <class Ctx>
  ShardedOptimizerEngine(Ctx& ctx, Layout& layout, int states, bool plain, const ShardedOptimizerOptions& options)
      : FlatEngine(ctx, layout, 0, plain, options),
        pieces_(storage(), reduction().buckets(), rank_of(ctx, Group::dp), rank_of(ctx, Group::rdp),
                rank_of(ctx, Group::tp), ctx.memory(), states),
        updated_(pieces_.size()),
        gathered_(pieces_.size()) {
    prepare(ctx,
            {{comm::Lane::gather, Group::rdp}, {comm::Lane::gather, Group::dp}, {comm::Lane::replicate, Group::tp}});
    for (const Unit& unit : layout.units()) {
      if (unit.shard_degree == 1) continue;
      throw ConfigError("ShardedOptimizer: " + (unit.id == 0 ? "the model" : "the unit \"" + unit.path + "\"") +
                        " is Sharded, which cuts the optimizer state already, and which only Sharded around the model "
                        "can do");
    }
  }
  ~ShardedOptimizerEngine() { end_streams(); }

  /// Brings the parameters of a unit: waits for what is still being gathered.
  /// @throws Error for a backward after the last one of a step
  template <class Hooks>
  void enter(Hooks& hooks, Unit& unit, Phase phase) {
    for (const Block* block : unit.uses) await(hooks.compute, *block);
    begin_unit(hooks, unit, phase);
  }
  /// Takes them away, and reduces what is complete.
  template <class Hooks>
  void leave(Hooks& hooks, Unit& unit, Phase phase, bool last_microbatch) {
    end_unit(hooks, unit, phase, last_microbatch, reduce_scatter(hooks.groups));
  }
  /// Calls `f(block)` when the values are here.
  template <class Ctx, class F>
  void with_values(Ctx& ctx, Block& block, F&& f) {
    await(ctx.stream(), block);
    ctx.stream().synchronize();
    f(block);
  }
  /// Blocks the calling thread until all values are here.
  void wait_for_values() const {
    if (!gathered_.empty()) gathered_.front().wait();
  }

  /// Reduces what is left, enqueues the update of this rank's part, and begins to gather the others'.
  template <class Ctx, class Opt>
  void update(Ctx& ctx, const Opt& optimizer, double learning_rate) {
    auto& compute = ctx.stream();
    sum_over_stages(ctx);
    finish_reduction(compute, reduce_scatter(ctx.groups()));
    square(compute);
    if (ranks() > 1) {
      const std::span<double> squares(&scale().squares, 1);
      ctx.groups()[Group::dp].all_reduce(compute, squares, squares, sum, Purpose::norm);
    }
    const optim::StepNumbers numbers = finish_scale(ctx, learning_rate);
    for (std::size_t bucket = pieces_.size(); bucket-- > 0;) {  // in the order of forward
      pieces_.visit(bucket, [&](const auto& piece) {
        for (const auto& run : piece.runs) {
          update_range(compute, optimizer, run.range, numbers.under(run.rule), &scale());
        }
      });
      if (ranks() > 1) gather(compute, ctx.groups(), bucket);
    }
    begin_step();
  }

  /// Forgets the gradients since the last update; all ranks do, after the same backward passes.
  template <class Ctx>
  void discard(Ctx& ctx) {
    FlatEngine::discard(ctx);
    here_ = 0;  // all of them: what gathers has been waited for
  }

  /// What this rank updates.
  [[nodiscard]] const OptimizerPieces& pieces() const noexcept { return pieces_; }

 private:
  template <class Ctx>
  static RankOf rank_of(Ctx& ctx, Group kind) {
    return {ctx.groups()[kind].rank(), ctx.groups()[kind].size()};
  }
  /// The ranks that sum a bucket.
  [[nodiscard]] Group summing(std::size_t bucket) const noexcept {
    return reduction().buckets()[bucket].over_tp == OverTp::summands ? Group::dp : Group::rdp;
  }

  /// What reduces a bucket, and sets to zero what others update.
  template <class Groups>
  auto reduce_scatter(Groups& groups) {
    return [this, &groups]<class T>(HostStream& stream, std::span<T> gradients, std::size_t bucket) {
      pieces_.visit(bucket, [&](const auto& piece) {
        if (piece.reduced.shared()) {
          groups.beside(comm::Lane::reduce, summing(bucket))
              .reduce_scatter_v(stream, gradients, piece.reduced.own(gradients), piece.reduced.counts, sum,
                                Purpose::gradient);
        }
        stream.enqueue([gradients, before = piece.begin(), behind = piece.begin() + piece.size()] {
          std::fill(gradients.begin(), gradients.begin() + static_cast<std::ptrdiff_t>(before), T(0));
          std::fill(gradients.begin() + static_cast<std::ptrdiff_t>(behind), gradients.end(), T(0));
        });
      });
    };
  }

  /// The squares of what this rank updates.
  template <class Stream>
  void square(Stream& compute) {
    compute.enqueue([scale = &scale()] { scale->squares = 0; });
    for (std::size_t bucket = 0; bucket < pieces_.size(); ++bucket) {
      pieces_.visit(bucket, [&](const auto& piece) {
        for (const auto& run : piece.runs) {
          if (!run.counted) continue;
          compute.enqueue([scale = &scale(), range = run.range] {
            scale->squares += sum_of_squares(range.gradients, static_cast<std::size_t>(range.size));
          });
        }
      });
    }
  }

  /// Gathers the values of a bucket, when this rank has updated its part.
  template <class Groups>
  void gather(HostStream& compute, Groups& groups, std::size_t bucket) {
    HostStream& stream = beside(compute);
    if (&stream != &compute) {
      compute.record(updated_[bucket]);
      stream.wait(updated_[bucket]);
    }
    pieces_.visit(bucket, [&](const auto& piece) {
      const auto reduced = piece.reduced.own(piece.values);
      if (piece.updated.shared()) {
        groups.beside(comm::Lane::replicate, Group::tp)
            .all_gather_v(stream, piece.updated.own(reduced), reduced, piece.updated.counts, Purpose::parameter);
      }
      if (piece.reduced.shared()) {
        groups.beside(comm::Lane::gather, summing(bucket))
            .all_gather_v(stream, reduced, piece.values, piece.reduced.counts, Purpose::parameter);
      }
    });
    if (&stream != &compute) {
      stream.record(gathered_[bucket]);
      here_ = pieces_.size();
    }
  }

  /// Lets the compute stream wait until the values of a block are here. Buckets come in the order of forward, the last
  /// one first: with one all behind it have come.
  void await(HostStream& compute, const Block& block) {
    const std::size_t bucket = reduction().first_bucket(block.id);
    if (bucket >= here_) return;
    compute.wait(gathered_[bucket]);
    here_ = bucket;
  }

  OptimizerPieces pieces_;
  std::vector<HostEvent> updated_;   // by bucket
  std::vector<HostEvent> gathered_;  // by bucket
  std::size_t here_ = 0;             // first bucket that the compute stream has waited for
};

/// A model on every rank of the RDP group, whose optimizer has its state once between all ranks that hold a parameter:
/// the ranks of the DP group, or of the RDP group for a part of a parameter that is cut over tensor-parallel ranks. The
/// numbers are those of `DataParallel`, and so is the use.
///
///     smp::ShardedOptimizer trainer(ctx, Net{}, smp::optim::AdamW{}, {.clip = 1});
template <class M, class Opt = optim::AdamW>
class ShardedOptimizer : public Strategy<M, Opt, ShardedOptimizerEngine> {
  static_assert(
      !requires { M::shard_degree; },
      "smp::ShardedOptimizer: Sharded cuts the optimizer state already; write smp::Sharded alone");

 public:
  static constexpr bool cuts_optimizer_state = true;  ///< so `Sharded` around it is refused

  /// As `Strategy`.
  template <class Ctx>
  ShardedOptimizer(Ctx& ctx, M model, Opt optimizer = {}, ShardedOptimizerOptions options = {})
      : Strategy<M, Opt, ShardedOptimizerEngine>(ctx, std::move(model), std::move(optimizer), options,
                                                 {.cuts_apart = true, .groups = options.groups}) {}

  /// Calls `f(name, shape, values, gradients)` for each parameter, with spans of its type; a frozen one has no
  /// gradients. Tied parameters are one. The values may be changed.
  template <class F>
  void for_each_parameter(F&& f) {
    this->engine().wait_for_values();
    this->engine().storage().for_each_segment([&](const Block::Segment& s, auto values, auto gradients) {
      f(std::string_view(s.name), s.declaration->local_shape(), values, gradients);
    });
  }
  /// Number of reduce-scatters, and of all-gathers, that one update needs.
  [[nodiscard]] std::size_t buckets() { return this->engine().reduction().buckets().size(); }
};

}  // namespace smp
