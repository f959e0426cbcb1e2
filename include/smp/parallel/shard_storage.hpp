// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank holds of parameters that a group of ranks holds together: of each block a shard, all shards in one
/// array per type, and gradients and optimizer state for as much.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/device/memory.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_buckets.hpp>
#include <smp/random.hpp>

namespace smp {

/// The place of a block's shard, by the number of the block. All ranks of the group have shards of one size,
/// ceil(elements / ranks); the last ones end in padding, or hold nothing else.
struct ShardPlace {
  std::size_t begin = 0;  ///< first element of the shard in the arrays of its type
  std::size_t size = 0;   ///< elements of the shard, padding and all; 0: the block is not cut into shards
  std::size_t first = 0;  ///< first element of this rank's in the block
  std::size_t last = 0;   ///< behind the last one; padding is behind it
  std::size_t bytes = 0;  ///< of all shards together
  std::size_t room = 0;   ///< for them, so that what follows is aligned
};

/// Bytes of the widest element of a model.
[[nodiscard]] inline std::size_t widest_element(Layout& layout) noexcept {
  std::size_t bytes = 1;
  for (const Block& b : layout.blocks()) bytes = std::max(bytes, b.element_bytes);
  return bytes;
}

/// The shards of one rank. Blocks are in the order in which forward uses them, without gaps; frozen ones follow.
class ShardStorage {
 public:
  /// Places shards of those blocks of `layout` that are `cut(block)`.
  /// @param rank, ranks of the shard group
  /// @param states arrays that the optimizer keeps
  /// @throws ConfigError for 16-bit values
  template <class IsCut>
  ShardStorage(Layout& layout, Memory& memory, int states, int rank, int ranks, IsCut cut)
      : granule_(widest_element(layout)), places_(layout.blocks().size()), orders_(layout.blocks().size()) {
    std::size_t order = 0;
    for (Block* block : FlatStorage::in_order(layout)) {
      orders_[static_cast<std::size_t>(block->id)] = order++;
      if (!cut(*block)) continue;
      if (block->element_bytes == sizeof(float)) {
        add(floats_, *block, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
      } else if (block->element_bytes == sizeof(double)) {
        add(doubles_, *block, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks));
      } else {
        refuse_elements(*block);
      }
    }
    for_each_type([&]<class T>(FlatArrays<T>& arrays) { allocate(arrays, memory, states); });
  }

  /// Calls `f(arrays)` for the arrays of each type, float first.
  template <class F>
  void for_each_type(F&& f) {
    f(floats_);
    f(doubles_);
  }

  /// Bytes that every place for gathered shards is a multiple of.
  [[nodiscard]] std::size_t granule() const noexcept { return granule_; }
  /// True if some block is cut into shards.
  [[nodiscard]] bool any() const noexcept { return !floats_.places.empty() || !doubles_.places.empty(); }
  /// Where the shard of a block is.
  [[nodiscard]] const ShardPlace& place(int block) const noexcept { return places_[static_cast<std::size_t>(block)]; }
  /// The shard of a block, as bytes.
  [[nodiscard]] std::span<const std::byte> values(const Block& block) const noexcept {
    const ShardPlace& p = place(block.id);
    const auto bytes = [&](const auto& arrays) {
      return std::as_bytes(std::span(arrays.values.data() + p.begin, p.size));
    };
    return block.element_bytes == sizeof(float) ? bytes(floats_) : bytes(doubles_);
  }
  /// Calls `f` with the gradients of the shard of a block, as a span of their type.
  template <class F>
  void with_gradients(const Block& block, F&& f) const {
    const ShardPlace& p = place(block.id);
    if (block.element_bytes == sizeof(float)) {
      std::forward<F>(f)(std::span<float>(floats_.gradients.data() + p.begin, p.size));
    } else {
      std::forward<F>(f)(std::span<double>(doubles_.gradients.data() + p.begin, p.size));
    }
  }

  /// The gradients of the shards, in order: what the replicas sum up.
  /// @param all_summed the tensor-parallel ranks have summands of all of them; else of those whose block says so
  [[nodiscard]] std::vector<GradientRange> gradients(bool all_summed) const {
    std::vector<GradientRange> ranges;
    const auto add = [&]<class T>(const FlatArrays<T>& arrays) {
      for (const auto& [block, begin] : arrays.places) {
        if (block->frozen) continue;
        ranges.push_back({arrays.gradients.data() + begin, place(block->id).size, sizeof(T), block->id,
                          orders_[static_cast<std::size_t>(block->id)],
                          all_summed || block->summed_over_tp ? OverTp::summands : OverTp::copies});
      }
    };
    add(floats_);
    add(doubles_);
    return ranges;
  }

  /// Gives every element of this rank its initial value, a function of the seed, its parameter's name and its place.
  void initialise(std::uint64_t seed) {
    for_each_own([&](const Block::Segment& s, std::size_t first, auto values, auto) {
      const RandomStream stream{seed, stream_of(s.name)};
      const Init& init = s.declaration->init();
      for (std::size_t i = 0; i < values.size(); ++i) {
        using T = typename decltype(values)::value_type;
        values[i] = static_cast<T>(init.value(stream, s.declaration->global_index(first + i)));
      }
    });
  }

  /// Calls `f(span)` with this rank's gradients of a block, if it is cut and learnt; padding is zero.
  template <class F>
  void visit_gradient(const Block& block, F&& f) const {
    const ShardPlace& p = place(block.id);
    if (block.frozen || p.size == 0) return;
    if (block.element_bytes == sizeof(float)) {
      f(std::span<float>(floats_.gradients.data() + p.begin, p.size));
    } else {
      f(std::span<double>(doubles_.gradients.data() + p.begin, p.size));
    }
  }

  /// Calls `f(segment, first, values, gradients)` for each parameter that this rank has elements of, from `first` on; a
  /// frozen one has no gradients.
  template <class F>
  void for_each_own(F&& f) {
    for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      for (const auto& [block, begin] : arrays.places) {
        const ShardPlace& p = place(block->id);
        for (const Block::Segment& s : block->segments) {
          const std::size_t first = std::max(s.begin, p.first), last = std::min(s.end, p.last);
          if (first >= last) continue;
          const std::size_t at = begin + first - p.first, size = last - first;
          f(s, first - s.begin, std::span<T>(arrays.values.data() + at, size),
            block->frozen ? std::span<T>() : std::span<T>(arrays.gradients.data() + at, size));
        }
      }
    });
  }

 private:
  template <class T>
  void add(FlatArrays<T>& arrays, const Block& block, std::size_t rank, std::size_t ranks) {
    ShardPlace& p = places_[static_cast<std::size_t>(block.id)];
    if (!arrays.places.empty()) {
      const auto& [last, begin] = arrays.places.back();
      p.begin = begin + place(last->id).size;
    }
    p.size = (block.size + ranks - 1) / ranks;
    p.first = std::min(rank * p.size, block.size);
    p.last = std::min(p.first + p.size, block.size);
    p.bytes = p.size * ranks * sizeof(T);
    p.room = (p.bytes + granule_ - 1) / granule_ * granule_;
    arrays.places.emplace_back(&block, p.begin);
    if (block.frozen) return;
    for (const Block::Segment& s : block.segments) {
      const std::size_t first = std::max(s.begin, p.first), last = std::min(s.end, p.last);
      if (first >= last) continue;
      const std::size_t begin = p.begin + first - p.first, end = p.begin + last - p.first;
      arrays.append({begin, end, s.rule, s.declaration->cut().parts > 1, block.counted});
    }
  }

  template <class T>
  void allocate(FlatArrays<T>& arrays, Memory& memory, int states) {
    std::size_t all = 0, learnt = 0;
    for (const auto& [block, begin] : arrays.places) {
      all = begin + place(block->id).size;
      if (!block->frozen) learnt = all;
    }
    arrays.values = FlatArray<T>(memory, MemoryUse::parameter, all);
    arrays.gradients = FlatArray<T>(memory, MemoryUse::gradient, learnt);
    for (int s = 0; s < states; ++s) {
      arrays.states[static_cast<std::size_t>(s)] = FlatArray<T>(memory, MemoryUse::optimizer, learnt);
    }
  }

  std::size_t granule_;
  FlatArrays<float> floats_;
  FlatArrays<double> doubles_;
  std::vector<ShardPlace> places_;   // by block
  std::vector<std::size_t> orders_;  // of each block in forward
};

}  // namespace smp
