// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// When gradients are reduced: in buckets, while backward goes on.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/parallel/gradient_buckets.hpp>

namespace smp {

/// The order in which the gradients of one rank are reduced. A bucket goes when the last of its units has left the last
/// backward pass before the optimizer, but never before those ahead of it: so all ranks ask for the same reductions in
/// the same order, whether they have used a unit or not.
class GradientReduction {
 public:
  /// @param blocks of the layout
  /// @param ranges all gradients, in the order of forward
  /// @param bucket_bytes largest bucket, unless a parameter is larger
  /// @throws ConfigError if `bucket_bytes` is 0
  GradientReduction(std::size_t blocks, const std::vector<GradientRange>& ranges, std::size_t bucket_bytes)
      : buckets_(plan_buckets(ranges, bucket_bytes)), open_(blocks, 0) {
    for (std::size_t i = 1; i < buckets_.size(); ++i) {  // those of two types: by what backward reaches first
      for (std::size_t j = i; j > 0 && buckets_[j - 1].order < buckets_[j].order; --j) {
        std::swap(buckets_[j - 1], buckets_[j]);
      }
    }
    ready_ = std::vector<HostEvent>(buckets_.size());
    first_bucket_.assign(blocks, buckets_.size());
    for (std::size_t i = buckets_.size(); i-- > 0;) {
      for (const int block : buckets_[i].blocks) first_bucket_[static_cast<std::size_t>(block)] = i;
    }
  }

  /// The gradients of a block are not complete before all backward passes are done, here and elsewhere.
  void hold(const Block& block) { held_.push_back(block.id); }
  /// A unit has been entered to run forward: its gradients will be complete after one backward more.
  void forward(const Unit& unit) noexcept {
    for (const Block* b : unit.uses) ++open_[static_cast<std::size_t>(b->id)];
  }
  /// True if gradients of the unit have been reduced in this step: nothing must be added to them any more.
  [[nodiscard]] bool reduced(const Unit& unit) const noexcept {
    return std::any_of(unit.uses.begin(), unit.uses.end(), [&](const Block* b) { return first_bucket(b->id) < next_; });
  }
  /// Refuses a backward that would add to what has been reduced.
  /// @throws Error
  void expect_open(const Unit& unit) const {
    if (!reduced(unit)) return;
    throw Error(
        "a backward pass adds to gradients of \"" + unit.uses.front()->segments.front().name +
        "\" that have been reduced over the ranks already: ctx.last_microbatch must be false in all passes of a "
        "step but the last");
  }
  /// A unit has been left by a backward.
  void backward(const Unit& unit) noexcept {
    for (const Block* b : unit.uses) backward(*b, 1);
  }
  /// Units that use a block have been left by so many backward passes.
  void backward(const Block& block, int passes) noexcept {
    int& open = open_[static_cast<std::size_t>(block.id)];
    open = std::max(0, open - passes);
  }

  /// Calls `f(gradients, place)` for all buckets that are complete, or for `all` that are left, in order: it enqueues
  /// the reduction of a span of floats or doubles, of `buckets()[place]`.
  /// @param compute where gradients are computed
  /// @param reduce where they are reduced; may be the same
  template <class Stream, class F>
  void launch(Stream& compute, Stream& reduce, bool all, F&& f) {
    for (; next_ < buckets_.size() && (all || complete(buckets_[next_])); ++next_) {
      if (&compute != &reduce) {
        compute.record(ready_[next_]);
        reduce.wait(ready_[next_]);
      }
      buckets_[next_].visit([&](auto gradients) { f(gradients, next_); });
    }
  }

  /// The buckets, in the order in which backward completes them.
  [[nodiscard]] const std::vector<GradientBucket>& buckets() const noexcept { return buckets_; }
  /// The first of them that has gradients of a block; their number, if none has.
  [[nodiscard]] std::size_t first_bucket(int block) const noexcept {
    return first_bucket_[static_cast<std::size_t>(block)];
  }

  /// Begins the next step.
  void reset() noexcept {
    next_ = 0;
    std::fill(open_.begin(), open_.end(), 0);
  }

 private:
  [[nodiscard]] bool complete(const GradientBucket& bucket) const noexcept {
    return std::all_of(bucket.blocks.begin(), bucket.blocks.end(), [&](int block) {
      return open_[static_cast<std::size_t>(block)] == 0 && std::find(held_.begin(), held_.end(), block) == held_.end();
    });
  }

  std::vector<GradientBucket> buckets_;
  std::vector<HostEvent> ready_;           // by bucket
  std::vector<int> open_;                  // backward passes until a block is complete
  std::vector<std::size_t> first_bucket_;  // of each block
  std::vector<int> held_;                  // blocks that are complete at the end only
  std::size_t next_ = 0;                   // bucket to be reduced
};

}  // namespace smp
