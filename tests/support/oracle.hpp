// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What operations on ranks are held against: values that every rank can compute for every other one, sums of them by
/// plain loops, and buffers that notice a byte written beside them.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <smp/comm/element.hpp>
#include <smp/comm/reduction.hpp>

namespace smp::testing {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
inline constexpr bool is_float = std::is_floating_point_v<T> || is_half<T>;

/// A list of element types, and all there are. One body runs through a list: under MPI, making a communicator for each
/// type would take longer than what is tested.
template <class... T>
struct Types {};
using Floats = Types<float, double, Float16, BFloat16>;
using Integers = Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                       std::uint32_t, std::uint64_t>;
using AllElements = Types<float, double, Float16, BFloat16, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
                          std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>;

/// Calls `f.operator()<T>()` for each type of a list.
template <class... T, class F>
void for_each_type(Types<T...>, F f) {
  (f.template operator()<T>(), ...);
}

template <class T>
const char* type_name() {
  return comm::name(comm::ElementTraits<T>::element);
}

/// `value` as a `T`, rounded once to the type in which `T` is summed, and once to `T`.
template <class T>
T rounded(double value) {
  if constexpr (is_half<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
double as_double(T value) {
  if constexpr (is_half<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

/// The bits of a value, so that -0 is not 0 and a NaN is itself.
template <class T>
auto bits(T value) {
  if constexpr (sizeof(T) == 1) return std::bit_cast<std::uint8_t>(value);
  if constexpr (sizeof(T) == 2) return std::bit_cast<std::uint16_t>(value);
  if constexpr (sizeof(T) == 4) return std::bit_cast<std::uint32_t>(value);
  if constexpr (sizeof(T) == 8) return std::bit_cast<std::uint64_t>(value);
}

/// splitmix64: a well mixed 64-bit number for each (rank, index).
inline std::uint64_t mixed(std::uint64_t rank, std::uint64_t index) {
  std::uint64_t z = (rank << 40) + index + 1;
  z *= 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// Values that repeat every `period` elements; long buffers are filled and compared run by run. The period is a prime,
/// so that no piece, segment or cache line that went to the wrong place looks right. Bytes, whatever their type is:
/// what does not depend on the type is compiled once.
class Pattern {
 public:
  static constexpr std::size_t period = 251;

  /// Element `i` of a period is `value(i)`.
  template <class T, class F>
  static Pattern of(F value) {
    Pattern p;
    p.element_bytes_ = sizeof(T);
    p.values_.resize(period * sizeof(T));
    for (std::size_t i = 0; i < period; ++i) {
      const T x = value(i);
      std::memcpy(p.values_.data() + i * sizeof(T), &x, sizeof(T));
    }
    return p;
  }

  /// Copies elements `first`, `first + 1`, ... of the endless sequence to `to`.
  void fill(std::span<std::byte> to, std::size_t first = 0) const {
    for_runs(to.size(), first, [&](std::size_t at, std::size_t in_period, std::size_t n) {
      std::memcpy(to.data() + at, values_.data() + in_period, n);
      return true;
    });
  }
  template <class T>
  void fill(std::span<T> to, std::size_t first = 0) const {
    fill(std::as_writable_bytes(to), first);
  }

  /// Whether `found` has the bits of elements `first`, `first + 1`, ...
  [[nodiscard]] bool matches(std::span<const std::byte> found, std::size_t first = 0) const {
    return for_runs(found.size(), first, [&](std::size_t at, std::size_t in_period, std::size_t n) {
      return std::memcmp(found.data() + at, values_.data() + in_period, n) == 0;
    });
  }
  template <class T>
  [[nodiscard]] bool matches(std::span<T> found, std::size_t first = 0) const {
    return matches(std::as_bytes(found), first);
  }

 private:
  template <class F>
  bool for_runs(std::size_t bytes, std::size_t first, F f) const {
    std::size_t in_period = first % period * element_bytes_;
    for (std::size_t at = 0; at < bytes;) {
      const std::size_t n = std::min(bytes - at, values_.size() - in_period);
      if (!f(at, in_period, n)) return false;
      at += n;
      in_period = 0;
    }
    return true;
  }

  std::size_t element_bytes_ = 1;
  std::vector<std::byte> values_;
};

/// Element `i` of the input of one rank: integers so small that the sums of eight ranks are exact in every type.
template <class T>
T small_integer(int rank, std::size_t i) {
  const int lowest = std::is_unsigned_v<T> ? 0 : -7;
  return rounded<T>(lowest + static_cast<int>(mixed(static_cast<std::uint64_t>(rank), i) % 15));
}

/// The input of one rank.
template <class T>
Pattern small_integers(int rank) {
  return Pattern::of<T>([rank](std::size_t i) { return small_integer<T>(rank, i); });
}

/// One reduction of values in rank order, computed in `A`. The averages divide by the number of ranks at the end.
template <class Op, class A>
A fold(std::span<const A> by_rank) {
  A result = by_rank[0];
  for (const A x : by_rank.subspan(1)) {
    if constexpr (std::is_same_v<Op, Maximum>) {
      if (x > result) result = x;
    } else if constexpr (std::is_same_v<Op, Minimum>) {
      if (x < result) result = x;
    } else if constexpr (std::is_integral_v<A>) {
      result = static_cast<A>(static_cast<std::uint64_t>(result) + static_cast<std::uint64_t>(x));
    } else {
      result = result + x;
    }
  }
  if constexpr (std::is_same_v<Op, Average>) result = result / static_cast<A>(by_rank.size());
  return result;
}

/// The reduction of the small integers of `ranks` ranks: computed in double, and exact.
template <class Op, class T>
Pattern reduced_integers(int ranks) {
  return Pattern::of<T>([ranks](std::size_t i) {
    std::array<double, 16> by_rank{};
    for (int r = 0; r < ranks; ++r) by_rank[static_cast<std::size_t>(r)] = as_double(small_integer<T>(r, i));
    return rounded<T>(fold<Op, double>(std::span<const double>(by_rank.data(), static_cast<std::size_t>(ranks))));
  });
}

/// A value of one rank that makes every sum round: magnitudes differ, integers fill their type and wrap around.
template <class T>
T random_value(int rank, std::size_t i) {
  const std::uint64_t m = mixed(static_cast<std::uint64_t>(rank), i);
  if constexpr (is_float<T>) {
    const double fraction = static_cast<double>(m >> 11) * 0x1p-52 - 1;  // [-1, 1)
    const double scale = static_cast<double>(1 << (m % 8));
    return rounded<T>(fraction * scale);
  } else {
    return static_cast<T>(m);
  }
}

/// What ranks 0 to n-1 come to if element `i` of each is its random value: summed in rank order in the accumulation
/// type, rounded once. A plain serial loop: every transport has to have its bits.
template <class Op, class T>
T reduced_random(int ranks, std::size_t i) {
  using A = typename comm::ElementTraits<T>::Accumulator;
  std::array<A, 16> by_rank{};
  for (int r = 0; r < ranks; ++r) by_rank[static_cast<std::size_t>(r)] = static_cast<A>(random_value<T>(r, i));
  return T(fold<Op, A>(std::span<const A>(by_rank.data(), static_cast<std::size_t>(ranks))));
}

/// A buffer of `elements` between guard bytes. Begins one element after a 64-byte boundary, where streaming stores have
/// a head and a tail to treat.
class Guarded {
 public:
  Guarded(std::size_t elements, std::size_t element_bytes)
      : memory_(elements * element_bytes + 4 * guard, fence), size_(elements * element_bytes) {
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % guard;
    begin_ = guard + (guard - past) + element_bytes;
  }

  [[nodiscard]] std::span<std::byte> bytes() noexcept { return {memory_.data() + begin_, size_}; }

  /// Nobody has written beside the buffer.
  [[nodiscard]] bool intact() const { return fenced(0, begin_) && fenced(begin_ + size_, memory_.size()); }

  /// Nobody has written to the buffer either.
  [[nodiscard]] bool untouched() const { return fenced(0, memory_.size()); }

 private:
  static constexpr std::size_t guard = 64;
  static constexpr std::byte fence{0xa5};

  [[nodiscard]] bool fenced(std::size_t begin, std::size_t end) const {
    return std::all_of(memory_.data() + begin, memory_.data() + end, [](std::byte b) { return b == fence; });
  }

  std::vector<std::byte> memory_;
  std::size_t size_;
  std::size_t begin_ = 0;
};

/// FNV-1a over bytes.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes, std::uint64_t hash = 14695981039346656037u) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 1099511628211u;
  return hash;
}

/// Calls `f(op)` for every reduction that elements `T` have.
template <class T, class F>
void for_each_reduction(F f) {
  f(sum);
  f(maximum);
  f(minimum);
  if constexpr (is_float<T>) f(average);
}

}  // namespace smp::testing
