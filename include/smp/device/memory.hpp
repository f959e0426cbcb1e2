// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The memory of one rank, by category: what is live, what the peak was, and storage that is kept for the next tensor
/// of the same size, so that the steady state of a training step allocates nothing.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <smp/error.hpp>

namespace smp {

/// What memory is for.
enum class MemoryUse : unsigned char { parameter, gradient, optimizer, activation, buffer };

/// Number of categories.
inline constexpr std::size_t memory_uses = 5;

/// The name of a category, as reports print it.
[[nodiscard]] constexpr const char* name(MemoryUse use) noexcept {
  constexpr const char* names[memory_uses] = {"parameter", "gradient", "optimizer", "activation", "buffer"};
  return names[static_cast<std::size_t>(use)];
}

/// Live and peak bytes of one category. Bytes that were asked for: without rounding, without what is kept for later.
struct MemoryCount {
  std::size_t live = 0;  ///< now
  std::size_t peak = 0;  ///< the most at any time
};

/// Counts and keeps the memory of one rank. Outlives everything that was allocated from it. Several threads may use it.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Gives back to the system what is kept.
  ~Memory() {
    for (auto& lists : kept_) {
      for (Storage*& list : lists) {
        while (list != nullptr) release_to_system(std::exchange(list, list->next));
      }
    }
  }

  /// Alignment of all storage: a cache line, and what vector instructions like.
  static constexpr std::size_t alignment = 64;

  /// Who writes to a piece of memory: tasks of the rank's stream, or the host at once. What the host writes must never
  /// have been a tensor: tasks that still wait in a queue write to that.
  enum class Writer : unsigned char { stream, host };

  /// A piece of memory with its count of handles, in front of its bytes.
  struct alignas(alignment) Storage {
    Memory* owner = nullptr;                ///< whom it goes back to
    Storage* next = nullptr;                ///< in the list of what is kept
    std::size_t bytes = 0;                  ///< that were asked for
    unsigned size_class = 0;                ///< its capacity is 2^size_class
    MemoryUse use = MemoryUse::activation;  ///< what it is counted as
    Writer writer = Writer::stream;         ///< who writes to it
    std::atomic<int> handles{1};            ///< that refer to it

    /// The bytes.
    [[nodiscard]] std::byte* data() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
  };

  /// At least `bytes` bytes, not initialised, with one handle.
  /// @throws std::bad_alloc
  [[nodiscard]] Storage* allocate(std::size_t bytes, MemoryUse use, Writer writer = Writer::stream) {
    const unsigned size_class = static_cast<unsigned>(std::bit_width(bytes < smallest ? smallest - 1 : bytes - 1));
    const std::lock_guard lock(mutex_);
    Storage*& list = kept(writer)[size_class];
    Storage* storage = list;
    // Checked, the piece that was given back last is not the one that is handed out.
    Storage** place = checked_ && storage != nullptr ? &storage->next : &list;
    storage = *place;
    if (storage != nullptr) {
      *place = storage->next;
    } else {
      void* raw = ::operator new(sizeof(Storage) + (std::size_t{1} << size_class), std::align_val_t{alignment});
      storage = ::new (raw) Storage;
      storage->owner = this;
      storage->size_class = size_class;
      storage->writer = writer;
    }
    storage->bytes = bytes;
    storage->use = use;
    storage->handles.store(1, std::memory_order_relaxed);
    add(use, bytes);
    return storage;
  }

  /// Keeps `storage` for later; its last handle is gone.
  void keep(Storage* storage) noexcept {
    const std::lock_guard lock(mutex_);
    if (checked_) std::memset(storage->data(), 0xFF, std::size_t{1} << storage->size_class);
    counts_[static_cast<std::size_t>(storage->use)].live -= storage->bytes;
    storage->next = std::exchange(kept(storage->writer)[storage->size_class], storage);
  }

  /// From now on storage that is released becomes NaN in every element, and the next tensor lies elsewhere, so that
  /// whoever kept a pointer notices. Only for streams that run tasks at once: a task that waits in a queue may still
  /// read.
  void check_released() {
    const std::lock_guard lock(mutex_);
    checked_ = true;
  }

  /// Counts memory of the category that is held elsewhere: a flat array of a strategy.
  void count(MemoryUse use, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    add(use, bytes);
  }
  /// Ends counting it.
  void uncount(MemoryUse use, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    counts_[static_cast<std::size_t>(use)].live -= bytes;
  }

  /// What one category has, and has had at most.
  [[nodiscard]] MemoryCount operator[](MemoryUse use) const {
    const std::lock_guard lock(mutex_);
    return counts_[static_cast<std::size_t>(use)];
  }

  /// Lets all peaks begin again at what is live.
  void reset_peaks() {
    const std::lock_guard lock(mutex_);
    for (MemoryCount& c : counts_) c.peak = c.live;
  }

 private:
  static constexpr std::size_t smallest = 64;

  void add(MemoryUse use, std::size_t bytes) noexcept {
    MemoryCount& c = counts_[static_cast<std::size_t>(use)];
    c.live += bytes;
    c.peak = c.live > c.peak ? c.live : c.peak;
  }

  [[nodiscard]] std::array<Storage*, 64>& kept(Writer writer) noexcept {
    return kept_[static_cast<std::size_t>(writer)];
  }
  static void release_to_system(Storage* storage) noexcept {
    storage->~Storage();
    ::operator delete(static_cast<void*>(storage), std::align_val_t{alignment});
  }

  mutable std::mutex mutex_;
  std::array<MemoryCount, memory_uses> counts_{};
  std::array<std::array<Storage*, 64>, 2> kept_{};  // by writer and size class
  bool checked_ = false;
};

}  // namespace smp
