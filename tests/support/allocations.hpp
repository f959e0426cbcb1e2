// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Counts what this program allocates with `new`, on any thread. Replaces the global functions: include it in one file
/// of an executable.

#include <atomic>
#include <cstdlib>
#include <new>

namespace smp::testing {

inline std::atomic<long> allocations{0};

}  // namespace smp::testing

// Not inlined, or GCC sees `new` meet `free` and warns.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++smp::testing::allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++smp::testing::allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  ++smp::testing::allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
