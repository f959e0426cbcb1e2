// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// All parameters of a model in one array per type, their gradients in another: what is reduced, clipped and updated is
/// a range, whatever the modules look like.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/device/memory.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/optim/range.hpp>
#include <smp/parallel/gradient_buckets.hpp>
#include <smp/random.hpp>

namespace smp {

/// An array of zeros that is counted as what it is for.
template <class T>
class FlatArray {
 public:
  FlatArray() = default;
  /// `size` zeros. Counts in `memory`, which outlives the array.
  FlatArray(Memory& memory, MemoryUse use, std::size_t size) : memory_(&memory), use_(use), size_(size) {
    if (size == 0) return;
    data_ = static_cast<T*>(::operator new(bytes(), std::align_val_t{Memory::alignment}));
    std::memset(static_cast<void*>(data_), 0, bytes());
    memory.count(use, bytes());
  }
  FlatArray(FlatArray&& other) noexcept
      : memory_(other.memory_),
        use_(other.use_),
        size_(std::exchange(other.size_, 0)),
        data_(std::exchange(other.data_, nullptr)) {}
  FlatArray& operator=(FlatArray&& other) noexcept {
    FlatArray taken(std::move(other));
    std::swap(memory_, taken.memory_);
    std::swap(use_, taken.use_);
    std::swap(size_, taken.size_);
    std::swap(data_, taken.data_);
    return *this;
  }
  ~FlatArray() {
    if (data_ == nullptr) return;
    memory_->uncount(use_, bytes());
    ::operator delete(static_cast<void*>(data_), std::align_val_t{Memory::alignment});
  }

  /// The first element.
  [[nodiscard]] T* data() const noexcept { return data_; }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }

  Memory* memory_ = nullptr;
  MemoryUse use_ = MemoryUse::buffer;
  std::size_t size_ = 0;
  T* data_ = nullptr;
};

/// Consecutive elements that an optimizer treats alike.
struct FlatRun {
  std::size_t begin = 0;  ///< first element
  std::size_t end = 0;    ///< behind the last element
  UpdateRule rule{};      ///< how they are updated
  bool cut = false;       ///< the tensor-parallel ranks have other parts of the same parameters
  bool counted = true;    ///< in the norm; else another stage of the pipeline does
};

/// The arrays of one type of values. What is learnt comes first, so that a place in the gradients is a place in the
/// values; frozen parameters follow.
template <class T>
struct FlatArrays {
  using value_type = T;                                      ///< of the elements
  FlatArray<T> values;                                       ///< of all parameters
  FlatArray<T> gradients;                                    ///< of those that are learnt
  std::array<FlatArray<T>, optim::max_states> states;        ///< of the optimizer, for those that are learnt
  std::vector<FlatRun> runs;                                 ///< of those that are learnt, in order
  std::vector<std::pair<const Block*, std::size_t>> places;  ///< blocks in order, and where they begin

  /// Adds a run, to the last one if it follows that and is treated alike.
  void append(const FlatRun& run) {
    FlatRun* const last = runs.empty() ? nullptr : &runs.back();
    if (last != nullptr && last->end == run.begin && last->rule == run.rule && last->cut == run.cut &&
        last->counted == run.counted) {
      last->end = run.end;
    } else {
      runs.push_back(run);
    }
  }
  /// What an optimizer gets of a run.
  [[nodiscard]] optim::Range<T> range(const FlatRun& run) const noexcept {
    optim::Range<T> r{values.data() + run.begin, gradients.data() + run.begin, {}, 0};
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (states[s].size() > 0) r.state[s] = states[s].data() + run.begin;
    }
    r.size = static_cast<std::int64_t>(run.end - run.begin);
    return r;
  }
};

/// @throws ConfigError for a block of 16-bit values
[[noreturn]] inline void refuse_elements(const Block& block) {
  throw ConfigError("values of " + std::to_string(block.element_bytes) +
                    " bytes need masters in single precision, which this strategy does not keep: \"" +
                    block.segments.front().name + "\"");
}

/// The storage of a model's parameters when every rank has all of them, or its part. Blocks are in the order in which
/// forward uses them, without gaps: those of the root, which backward completes last, come first, and a tied one is
/// where it is used first. What is summed over the tensor-parallel ranks, too, comes behind the rest; parts of cut
/// parameters come first, if the layout keeps them apart.
class FlatStorage {
 public:
  /// Places those blocks of `layout` that are `here(block)` whole.
  /// @param states arrays that the optimizer keeps
  /// @throws ConfigError for 16-bit values
  template <class Here>
  FlatStorage(Layout& layout, Memory& memory, int states, Here here) {
    begins_.resize(layout.blocks().size(), elsewhere);
    orders_.resize(layout.blocks().size());
    std::size_t order = 0;
    std::vector<Block*> blocks = in_order(layout);
    for (const Block* block : blocks) orders_[static_cast<std::size_t>(block->id)] = order++;
    std::sort(blocks.begin(), blocks.end(), [&](const Block* a, const Block* b) {
      const auto key = [&](const Block* x) {
        return std::tuple(x->frozen, over_tp(*x), orders_[static_cast<std::size_t>(x->id)]);
      };
      return key(a) < key(b);
    });
    for (Block* block : blocks) {
      if (!here(*block)) continue;
      if (block->element_bytes == sizeof(float)) {
        add(floats_, *block);
      } else if (block->element_bytes == sizeof(double)) {
        add(doubles_, *block);
      } else {
        refuse_elements(*block);
      }
    }
    for_each_type([&](auto& arrays) { allocate(arrays, memory, states); });
    show(layout);
  }

  /// Calls `f(arrays)` for the arrays of each type, float first.
  template <class F>
  void for_each_type(F&& f) {
    f(floats_);
    f(doubles_);
  }
  /// The arrays of one type.
  template <class T>
  [[nodiscard]] FlatArrays<T>& arrays() noexcept {
    if constexpr (std::is_same_v<T, float>) {
      return floats_;
    } else {
      return doubles_;
    }
  }

  /// Lets all blocks that are here point at their places.
  void show(Layout& layout) noexcept {
    for (Block& block : layout.blocks()) {
      if (begins_[static_cast<std::size_t>(block.id)] == elsewhere) continue;
      block.value = value(block);
      block.grad = gradient(block);
    }
  }

  /// Where the values of a block are.
  [[nodiscard]] void* value(const Block& block) const noexcept {
    const std::size_t begin = begins_[static_cast<std::size_t>(block.id)];
    return block.element_bytes == sizeof(float) ? static_cast<void*>(floats_.values.data() + begin)
                                                : doubles_.values.data() + begin;
  }
  /// Where the gradients of a block are; null if it is frozen.
  [[nodiscard]] void* gradient(const Block& block) const noexcept {
    if (block.frozen) return nullptr;
    const std::size_t begin = begins_[static_cast<std::size_t>(block.id)];
    return block.element_bytes == sizeof(float) ? static_cast<void*>(floats_.gradients.data() + begin)
                                                : doubles_.gradients.data() + begin;
  }

  /// Calls `f(span)` with the gradients of a block, if it is here and learnt.
  template <class F>
  void visit_gradient(const Block& block, F&& f) const {
    const std::size_t begin = begins_[static_cast<std::size_t>(block.id)];
    if (block.frozen || begin == elsewhere) return;
    if (block.element_bytes == sizeof(float)) {
      f(std::span<float>(floats_.gradients.data() + begin, block.size));
    } else {
      f(std::span<double>(doubles_.gradients.data() + begin, block.size));
    }
  }

  /// The gradients of all parameters that are learnt, in order.
  /// @param all_summed the tensor-parallel ranks have summands of all of them; else of those whose block says so
  [[nodiscard]] std::vector<GradientRange> gradients(bool all_summed) {
    std::vector<GradientRange> ranges;
    for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      for (const auto& [block, begin] : arrays.places) {
        if (block->frozen) continue;
        const OverTp kind = all_summed ? OverTp::summands : over_tp(*block);
        for (const Block::Segment& s : block->segments) {
          ranges.push_back({arrays.gradients.data() + begin + s.begin, s.end - s.begin, sizeof(T), block->id,
                            orders_[static_cast<std::size_t>(block->id)], kind});
        }
      }
    });
    return ranges;
  }

  /// Gives every parameter its initial values, a function of the seed, its name and the place of the element.
  void initialise(std::uint64_t seed) {
    for_each_segment([&]<class T>(const Block::Segment& s, std::span<T> values, std::span<T>) {
      const RandomStream stream{seed, stream_of(s.name)};
      const Init& init = s.declaration->init();
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<T>(init.value(stream, s.declaration->global_index(i)));
      }
    });
  }

  /// Calls `f(segment, values, gradients)` for each parameter; a frozen one has no gradients.
  template <class F>
  void for_each_segment(F&& f) {
    for_each_type([&]<class T>(FlatArrays<T>& arrays) {
      for (const auto& [block, begin] : arrays.places) {
        for (const Block::Segment& s : block->segments) {
          const std::size_t size = s.end - s.begin;
          const std::span<T> values(arrays.values.data() + begin + s.begin, size);
          f(s, values, block->frozen ? std::span<T>() : std::span<T>(arrays.gradients.data() + begin + s.begin, size));
        }
      }
    });
  }

  /// Blocks by the first unit that uses them; what is learnt before what is frozen. What stages share is complete when
  /// all of them are done: it comes first in forward, and last in backward.
  static std::vector<Block*> in_order(Layout& layout) {
    std::vector<int> first(layout.blocks().size(), std::numeric_limits<int>::max());
    for (const Unit& u : layout.units()) {
      for (const Block* b : u.uses) {
        int& id = first[static_cast<std::size_t>(b->id)];
        id = std::min(id, u.id);
      }
    }
    std::vector<Block*> blocks;
    for (Block& b : layout.blocks()) {
      blocks.push_back(&b);
      if (b.shared_by_stages) first[static_cast<std::size_t>(b.id)] = -1;
    }
    std::sort(blocks.begin(), blocks.end(), [&](const Block* a, const Block* b) {
      if (a->frozen != b->frozen) return b->frozen;
      const int first_a = first[static_cast<std::size_t>(a->id)], first_b = first[static_cast<std::size_t>(b->id)];
      return first_a != first_b ? first_a < first_b : a->id < b->id;
    });
    return blocks;
  }

 private:
  static constexpr std::size_t elsewhere = static_cast<std::size_t>(-1);

  /// What the layout knows of a block; copies of one parameter and parts of another may be in one, if both are not
  /// summed over the tensor-parallel ranks.
  static OverTp over_tp(const Block& block) noexcept {
    if (block.summed_over_tp) return OverTp::summands;
    return block.cut ? OverTp::parts : OverTp::copies;
  }

  template <class T>
  void add(FlatArrays<T>& arrays, const Block& block) {
    std::size_t begin = 0;
    if (!arrays.places.empty()) begin = arrays.places.back().second + arrays.places.back().first->size;
    arrays.places.emplace_back(&block, begin);
    begins_[static_cast<std::size_t>(block.id)] = begin;
    if (block.frozen) return;
    for (const Block::Segment& s : block.segments) {
      arrays.append({begin + s.begin, begin + s.end, s.rule, s.declaration->cut().parts > 1, block.counted});
    }
  }

  template <class T>
  static void allocate(FlatArrays<T>& arrays, Memory& memory, int states) {
    if (arrays.places.empty()) return;
    const auto& [last, begin] = arrays.places.back();
    arrays.values = FlatArray<T>(memory, MemoryUse::parameter, begin + last->size);
    const std::size_t learnt = arrays.runs.empty() ? 0 : arrays.runs.back().end;
    arrays.gradients = FlatArray<T>(memory, MemoryUse::gradient, learnt);
    for (int s = 0; s < states; ++s) {
      arrays.states[static_cast<std::size_t>(s)] = FlatArray<T>(memory, MemoryUse::optimizer, learnt);
    }
  }

  FlatArrays<float> floats_;
  FlatArrays<double> doubles_;
  std::vector<std::size_t> begins_;  // of each block, in the array of its type
  std::vector<std::size_t> orders_;  // of each block, among those of all types
};

}  // namespace smp
