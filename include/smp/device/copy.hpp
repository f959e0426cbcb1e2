// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Copying host memory, with stores that bypass the cache where the destination is larger than it.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__unix__)
#include <unistd.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace smp {

/// Bytes of the largest cache that one core has for itself (1 MiB where the system does not tell).
[[nodiscard]] inline std::size_t private_cache_bytes() noexcept {
  long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{1} << 20;
}

/// How a buffer is written: through the cache, or past it (for buffers that would not stay there anyway).
enum class Store : unsigned char { cached, streaming };

/// Makes streaming stores of this thread visible before whatever it stores next: to call before other threads are told.
inline void order_streaming_stores() noexcept {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/// Copies `bytes` from `from` to `to`; the two may be the same but must not overlap otherwise. Streaming stores are not
/// ordered: a fence after each block would keep the reads of the next one waiting.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Store store) noexcept {
  if (bytes == 0 || to == from) return;
#if defined(__SSE2__)
  if (store == Store::streaming && bytes >= 256) {
    const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    std::memcpy(to, from, head);
    const std::size_t blocks = (bytes - head) / 64;
    std::byte* t = to + head;
    const std::byte* f = from + head;
    for (std::size_t b = 0; b < blocks; ++b, t += 64, f += 64) {
      const auto* source = reinterpret_cast<const __m128i*>(f);
      auto* target = reinterpret_cast<__m128i*>(t);
      const __m128i v0 = _mm_loadu_si128(source);
      const __m128i v1 = _mm_loadu_si128(source + 1);
      const __m128i v2 = _mm_loadu_si128(source + 2);
      const __m128i v3 = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, v0);
      _mm_stream_si128(target + 1, v1);
      _mm_stream_si128(target + 2, v2);
      _mm_stream_si128(target + 3, v3);
    }
    std::memcpy(t, f, bytes - head - blocks * 64);
    return;
  }
#endif
  (void)store;
  std::memcpy(to, from, bytes);
}

}  // namespace smp
