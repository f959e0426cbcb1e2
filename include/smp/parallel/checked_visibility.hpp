// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Finds modules that keep pointers to parameters, under a strategy that never moves them: in checked mode a unit sees
/// its values at another address each time, and what it leaves behind is NaN. Such a module gets right numbers from
/// DataParallel and wrong ones, now and then, from a strategy that gathers values where there is room.

#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include <smp/device/memory.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/flat_storage.hpp>

namespace smp {

/// Shows the parameters of a unit while it is entered, and no others.
class CheckedVisibility {
 public:
  /// For the blocks of `layout`, whose values are in `storage`.
  CheckedVisibility(Layout& layout, FlatStorage& storage, Memory& memory) : layout_(&layout), storage_(&storage) {
    for (const Block& b : layout.blocks()) {
      copies_.push_back({FlatArray<std::byte>(memory, MemoryUse::buffer, places * place_bytes(b)), 0, 0, 0});
    }
  }

  /// Nothing is visible any more.
  void hide_all() noexcept {
    for (Block& b : layout_->blocks()) b.value = b.grad = nullptr;
    for (Copy& c : copies_) c.uses = c.backward_uses = 0;
  }

  /// Shows a block. In backward its gradient, too.
  template <class Stream>
  void show(Stream& stream, Block& block, bool backward) {
    Copy& copy = copies_[static_cast<std::size_t>(block.id)];
    if (copy.uses++ == 0) {
      block.value = next_place(copy, block);
      stream.enqueue([to = block.value, from = storage_->value(block), bytes = block.size * block.element_bytes] {
        if (bytes > 0) std::memcpy(to, from, bytes);
      });
    }
    if (backward && copy.backward_uses++ == 0) block.grad = storage_->gradient(block);
  }

  /// The end of a `show`.
  template <class Stream>
  void hide(Stream& stream, Block& block, bool backward) {
    Copy& copy = copies_[static_cast<std::size_t>(block.id)];
    if (backward && --copy.backward_uses == 0) block.grad = nullptr;
    if (--copy.uses > 0) return;
    if (block.element_bytes == sizeof(float)) poison(stream, static_cast<float*>(block.value), block.size);
    if (block.element_bytes == sizeof(double)) poison(stream, static_cast<double*>(block.value), block.size);
    block.value = nullptr;
  }

 private:
  struct Copy {
    FlatArray<std::byte> room;
    std::size_t visits;
    int uses;
    int backward_uses;
  };
  static constexpr std::size_t places = 3;         // an address comes back only after two others
  static constexpr std::size_t jitter_bytes = 64;  // and then a little beside

  static std::size_t place_bytes(const Block& block) {
    const std::size_t bytes = block.size * block.element_bytes + 8 * jitter_bytes;
    return (bytes + Memory::alignment - 1) / Memory::alignment * Memory::alignment;
  }
  static void* next_place(Copy& copy, const Block& block) {
    const std::size_t visit = copy.visits++;
    return copy.room.data() + visit % places * place_bytes(block) + visit / places % 8 * jitter_bytes;
  }
  template <class Stream, class T>
  static void poison(Stream& stream, T* values, std::size_t size) {
    stream.enqueue([=] {
      for (std::size_t i = 0; i < size; ++i) values[i] = std::numeric_limits<T>::quiet_NaN();
    });
  }

  Layout* layout_;
  FlatStorage* storage_;
  std::vector<Copy> copies_;  // by block
};

}  // namespace smp
