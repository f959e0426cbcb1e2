// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reduces the gradients of whole models in buckets, while backward goes on.

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/groups.hpp>
#include <smp/comm/reduction.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_buckets.hpp>
#include <smp/topology.hpp>

namespace smp {

/// The order in which the gradients of one rank are reduced. A bucket goes when the last of its units has left the last
/// backward pass before the optimizer, but never before those ahead of it: so all ranks ask for the same reductions in
/// the same order, whether they have used a unit or not.
class GradientReduction {
 public:
  /// @param bucket_bytes largest bucket, unless a parameter is larger
  /// @param all_over_tp all gradients are summed over the tensor-parallel ranks, too; else those of which they have
  /// summands
  GradientReduction(Layout& layout, FlatStorage& storage, std::size_t bucket_bytes, bool all_over_tp = false)
      : all_over_tp_(all_over_tp), open_(layout.blocks().size(), 0) {
    storage.for_each_type([&](auto& arrays) { plan(arrays, storage, bucket_bytes); });
    std::stable_sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
      return a.order > b.order;  // those of two types: by what backward reaches first
    });
    ready_ = std::vector<HostEvent>(buckets_.size());
    first_bucket_.assign(layout.blocks().size(), buckets_.size());
    for (std::size_t i = buckets_.size(); i-- > 0;) {
      for (const int block : buckets_[i].blocks) first_bucket_[static_cast<std::size_t>(block)] = i;
    }
  }

  /// A unit has been entered to run forward: its gradients will be complete after one backward more.
  void forward(const Unit& unit) noexcept {
    for (const Block* b : unit.uses) ++open_[static_cast<std::size_t>(b->id)];
  }
  /// True if gradients of the unit have been reduced in this step: nothing must be added to them any more.
  [[nodiscard]] bool reduced(const Unit& unit) const noexcept {
    return std::any_of(unit.uses.begin(), unit.uses.end(),
                       [&](const Block* b) { return first_bucket_[static_cast<std::size_t>(b->id)] < next_; });
  }
  /// A unit has been left by a backward.
  void backward(const Unit& unit) noexcept {
    for (const Block* b : unit.uses) {
      int& open = open_[static_cast<std::size_t>(b->id)];
      if (open > 0) --open;
    }
  }

  /// Enqueues the reductions of all buckets that are complete, or of `all` that are left.
  /// @param compute where gradients are computed
  /// @param reduce where they are reduced; may be the same
  template <class Stream, class Groups>
  void launch(Stream& compute, Stream& reduce, Groups& groups, bool all) {
    for (; next_ < buckets_.size() && (all || complete(buckets_[next_])); ++next_) {
      if (&compute != &reduce) {
        compute.record(ready_[next_]);
        reduce.wait(ready_[next_]);
      }
      const Bucket& bucket = buckets_[next_];
      auto& group = groups.beside(comm::Lane::reduce, bucket.over_tp ? Group::dp : Group::rdp);
      if (bucket.floats != nullptr) all_reduce(reduce, group, bucket.floats, bucket.size);
      if (bucket.doubles != nullptr) all_reduce(reduce, group, bucket.doubles, bucket.size);
    }
  }

  /// Number of buckets.
  [[nodiscard]] std::size_t size() const noexcept { return buckets_.size(); }

  /// Begins the next step.
  void reset() noexcept {
    next_ = 0;
    std::fill(open_.begin(), open_.end(), 0);
  }

 private:
  struct Place {
    std::size_t begin;
    int block;
  };
  struct Bucket {
    float* floats = nullptr;  // one of the two
    double* doubles = nullptr;
    std::size_t size = 0;
    std::vector<int> blocks{};  // whose gradients are in it
    std::size_t order = 0;      // of the first of them in forward
    bool over_tp = false;       // summed over the tensor-parallel ranks, too
  };

  template <class T>
  void plan(FlatArrays<T>& arrays, const FlatStorage& storage, std::size_t bucket_bytes) {
    for (const bool over_tp : {false, true}) {
      std::vector<Place> parameters;
      std::vector<std::size_t> bytes;
      for (const auto& [block, begin] : arrays.places) {
        if (block->frozen || (all_over_tp_ || block->summed_over_tp) != over_tp) continue;
        for (const Block::Segment& s : block->segments) {
          parameters.push_back({begin + s.begin, block->id});
          bytes.push_back((s.end - s.begin) * sizeof(T));
        }
      }
      for (const ParameterRange& range : plan_buckets(bytes, bucket_bytes)) {
        Bucket bucket;
        bucket.over_tp = over_tp;
        for (std::size_t i = range.first; i < range.last; ++i) {
          bucket.size += bytes[i] / sizeof(T);
          if (bucket.blocks.empty() || bucket.blocks.back() != parameters[i].block) {
            bucket.blocks.push_back(parameters[i].block);
          }
        }
        T* data = arrays.gradients.data() + parameters[range.first].begin;
        if constexpr (std::is_same_v<T, float>) bucket.floats = data;
        if constexpr (std::is_same_v<T, double>) bucket.doubles = data;
        bucket.order = storage.order(bucket.blocks.front());
        buckets_.push_back(std::move(bucket));
      }
    }
  }

  [[nodiscard]] bool complete(const Bucket& bucket) const noexcept {
    return std::all_of(bucket.blocks.begin(), bucket.blocks.end(),
                       [&](int block) { return open_[static_cast<std::size_t>(block)] == 0; });
  }

  template <class Stream, class Comm, class T>
  static void all_reduce(Stream& stream, Comm& group, T* data, std::size_t size) {
    const std::span<T> bucket(data, size);
    group.all_reduce(stream, bucket, bucket, sum, Purpose::gradient);
  }

  bool all_over_tp_;
  std::vector<Bucket> buckets_;            // in the order in which backward completes them
  std::vector<HostEvent> ready_;           // by bucket
  std::vector<int> open_;                  // backward passes until a block is complete
  std::vector<std::size_t> first_bucket_;  // of each block
  std::size_t next_ = 0;                   // bucket to be reduced
};

}  // namespace smp
