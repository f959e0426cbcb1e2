// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Lists of handles whose storage comes from a rank's memory, where it is kept for the next list.

#include <cstddef>
#include <vector>

#include <smp/device/memory.hpp>

namespace smp {

/// An allocator of the standard library's containers over a `Memory`.
template <class T>
class MemoryAllocator {
 public:
  using value_type = T;  ///< of the container

  /// From `memory`, counted as `use`.
  explicit MemoryAllocator(Memory& memory, MemoryUse use = MemoryUse::buffer) noexcept : memory_(&memory), use_(use) {}
  /// The same memory for another type.
  template <class U>
  MemoryAllocator(const MemoryAllocator<U>& other) noexcept : memory_(&other.memory()), use_(other.use()) {}

  /// Room for `count` objects.
  [[nodiscard]] T* allocate(std::size_t count) {
    static_assert(alignof(T) <= Memory::alignment);
    return reinterpret_cast<T*>(memory_->allocate(count * sizeof(T), use_, Memory::Writer::host)->data());
  }
  /// Gives it back.
  void deallocate(T* objects, std::size_t) noexcept {
    Memory::Storage* const storage = reinterpret_cast<Memory::Storage*>(objects) - 1;  // its bytes are behind it
    storage->owner->keep(storage);
  }

  /// Where storage comes from.
  [[nodiscard]] Memory& memory() const noexcept { return *memory_; }
  /// What it is counted as.
  [[nodiscard]] MemoryUse use() const noexcept { return use_; }
  friend bool operator==(const MemoryAllocator& a, const MemoryAllocator& b) noexcept { return a.memory_ == b.memory_; }

 private:
  Memory* memory_;
  MemoryUse use_;
};

/// A vector with storage from a rank's memory.
template <class T>
using MemoryVector = std::vector<T, MemoryAllocator<T>>;

}  // namespace smp
