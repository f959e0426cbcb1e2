// SPDX-License-Identifier: Apache-2.0
// Copies with and without the cache: every alignment and size, and not a byte more.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/copy.hpp>

namespace {

using smp::Store;

TEST_CASE("a copy of any size between any alignments is whole and ends where it should") {
  std::vector<std::byte> from(1500), to(1500);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 % 251 + 1);
  constexpr std::array<std::size_t, 11> sizes{0, 1, 63, 64, 255, 256, 257, 319, 320, 383, 1000};
  for (const Store store : {Store::cached, Store::streaming}) {
    for (const std::size_t bytes : sizes) {
      for (std::size_t a = 0; a < 64; a += 5) {
        for (std::size_t b = 0; b < 64; b += 3) {
          to.assign(to.size(), std::byte{0});
          smp::copy_bytes(to.data() + b, from.data() + a, bytes, store);
          bool right = true;
          for (std::size_t i = 0; i < to.size(); ++i) {
            const bool inside = i >= b && i < b + bytes;
            right = right && to[i] == (inside ? from[i - b + a] : std::byte{0});
          }
          if (!right) FAIL_CHECK(bytes, " bytes from ", a, " to ", b);
        }
      }
    }
  }
}

TEST_CASE("a copy onto itself and a copy of nothing do nothing") {
  std::vector<std::byte> data(1000, std::byte{3});
  smp::copy_bytes(data.data(), data.data(), data.size(), Store::streaming);
  smp::copy_bytes(nullptr, nullptr, 0, Store::streaming);
  CHECK(data == std::vector<std::byte>(1000, std::byte{3}));
}

TEST_CASE("a core has a cache of its own of a believable size") {
  CHECK(smp::private_cache_bytes() >= std::size_t{64} << 10);
  CHECK(smp::private_cache_bytes() <= std::size_t{1} << 30);
}

}  // namespace
