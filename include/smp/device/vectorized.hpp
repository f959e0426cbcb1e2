// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Code for the vector unit of the processor at hand, without -march: a lambda is compiled once for each unit, and the
/// widest one that is there runs. Loops over arrays in it are vectorised by the compiler.
///
///     smp::vectorized([=](auto unit) {
///       smp::map_blocks(unit, n, y, [](auto unit, auto& y, const auto& x) {  // 64 elements at a time
///         for (int i = 0; i < 64; ++i) y[i] = 0.8f * x[i];
///         unit.tanh(y);
///       }, x);
///     });

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <smp/config.hpp>
#include <smp/device/libmvec.hpp>

namespace smp {

/// What code can be compiled for.
enum class VectorUnit : unsigned char {
  baseline,  ///< what every processor of the architecture has; on x86 SSE2
  avx2,      ///< x86: AVX2 and FMA
  avx512     ///< x86: AVX-512 F, DQ, BW and VL
};

/// "AVX-512"
[[nodiscard]] constexpr const char* to_string(VectorUnit unit) noexcept {
  return unit == VectorUnit::avx512 ? "AVX-512" : unit == VectorUnit::avx2 ? "AVX2" : "baseline";
}

/// Elements of a block.
inline constexpr int block_size = 64;

/// The functions of the standard library, one element at a time.
struct StandardMaths {
  /// e^x of each element; like all of them in place, and independent of the place of an element.
  template <class T>
  static void exp(T (&x)[block_size]) noexcept {
    for (T& v : x) v = std::exp(v);
  }
  /// Natural logarithm of each element.
  template <class T>
  static void log(T (&x)[block_size]) noexcept {
    for (T& v : x) v = std::log(v);
  }
  /// Hyperbolic tangent of each element.
  template <class T>
  static void tanh(T (&x)[block_size]) noexcept {
    for (T& v : x) v = std::tanh(v);
  }
  /// Error function of each element.
  template <class T>
  static void erf(T (&x)[block_size]) noexcept {
    for (T& v : x) v = std::erf(v);
  }
};

#if SMP_HAS_LIBMVEC
using BaselineMaths = libmvec::Baseline;  ///< exp, log, tanh, erf of SSE2
using Avx2Maths = libmvec::Avx2;          ///< the same of AVX2
using Avx512Maths = libmvec::Avx512;      ///< the same of AVX-512
#else
using BaselineMaths = StandardMaths;  ///< exp, log, tanh, erf of any processor
using Avx2Maths = StandardMaths;      ///< the same of AVX2
using Avx512Maths = StandardMaths;    ///< the same of AVX-512
#endif

/// What a lambda is given that runs on any processor.
struct OnBaseline : BaselineMaths {
  static constexpr VectorUnit unit = VectorUnit::baseline;  ///< which one
  static constexpr int vector_bytes = 16;                   ///< of a register
  static constexpr int registers = 16;                      ///< of that size
};
/// What a lambda is given that runs where AVX2 is.
struct OnAvx2 : Avx2Maths {
  static constexpr VectorUnit unit = VectorUnit::avx2;  ///< which one
  static constexpr int vector_bytes = 32;               ///< of a register
  static constexpr int registers = 16;                  ///< of that size
};
/// What a lambda is given that runs where AVX-512 is.
struct OnAvx512 : Avx512Maths {
  static constexpr VectorUnit unit = VectorUnit::avx512;  ///< which one
  static constexpr int vector_bytes = 64;                 ///< of a register
  static constexpr int registers = 32;                    ///< of that size
};

/// The widest unit of this processor that code is compiled for.
[[nodiscard]] inline VectorUnit vector_unit() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return VectorUnit::baseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return avx512 ? VectorUnit::avx512 : VectorUnit::avx2;
#else
  return VectorUnit::baseline;
#endif
}

/// Runs `f` as compiled for any processor. flatten: whatever f calls is compiled for the unit along with it.
template <class F>
[[gnu::flatten, gnu::noinline]] decltype(auto) run_on_baseline(F& f) {
  return f(OnBaseline{});
}
#if defined(__x86_64__) && defined(__GNUC__)
/// Runs `f` as compiled for AVX2.
template <class F>
[[gnu::flatten, gnu::noinline, gnu::target("avx2,fma")]] decltype(auto) run_on_avx2(F& f) {
  return f(OnAvx2{});
}
/// Runs `f` as compiled for AVX-512.
template <class F>
[[gnu::flatten, gnu::noinline, gnu::target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]] decltype(auto)
run_on_avx512(F& f) {
  return f(OnAvx512{});
}
#endif

/// Runs `f(unit)` as compiled for `wanted`, or for the widest unit there is if it is not there, and returns what it
/// returns. For tests; `vectorized(f)` is what others call.
template <class F>
decltype(auto) vectorized_on(VectorUnit wanted, F&& f) {
#if defined(__x86_64__) && defined(__GNUC__)
  const VectorUnit unit = std::min(wanted, vector_unit());
  if (unit == VectorUnit::avx512) return run_on_avx512(f);
  if (unit == VectorUnit::avx2) return run_on_avx2(f);
#else
  (void)wanted;
#endif
  return run_on_baseline(f);
}

/// Runs `f(unit)` as compiled for the widest vector unit of this processor, and returns what it returns. `unit` has
/// `exp`, `log`, `tanh` and `erf` for `T (&x)[64]`, T = float or double, in place.
template <class F>
decltype(auto) vectorized(F&& f) {
  return vectorized_on(VectorUnit::avx512, f);
}

/// Up to 64 elements of an array, filled up with the last of them.
template <class T>
struct VectorBlock {
  /// Reads `count` elements, 1 to 64.
  [[gnu::always_inline]] VectorBlock(const T* from, std::int64_t count) noexcept {
    if (count == block_size) {
      std::memcpy(v, from, sizeof(v));
    } else {
      for (std::int64_t i = 0; i < block_size; ++i) v[i] = from[std::min(i, count - 1)];
    }
  }
  alignas(64) T v[block_size];  ///< the elements
};

/// Inside of `vectorized`: out[i] from in[i]... for all i < n, 64 at a time: `f(unit, y, x...)` fills the array y from
/// the arrays x, which it may change. The last block is filled up, so the result does not depend on the place in the
/// array as long as each element of y depends on those at the same place only. `out` may be one of `in`.
template <class Unit, class T, class F, class... In>
[[gnu::always_inline, gnu::flatten]] inline void map_blocks(Unit unit, std::int64_t n, T* out, F f, const In*... in) {
  for (std::int64_t i = 0; i < n; i += block_size) {
    const std::int64_t count = std::min<std::int64_t>(block_size, n - i);
    alignas(64) T y[block_size];
    f(unit, y, VectorBlock<In>(in + i, count).v...);
    if (count == block_size) {
      std::memcpy(out + i, y, sizeof(y));
    } else {
      std::memcpy(out + i, y, static_cast<std::size_t>(count) * sizeof(T));
    }
  }
}

/// Inside of `vectorized`: y = a + b, n numbers. `y` may be one of them.
template <class Unit, class T>
[[gnu::always_inline]] inline void add_arrays(Unit target, std::int64_t n, const T* a, const T* b, T* y) {
  map_blocks(
      target, n, y,
      [](auto, auto& both, const auto& p, const auto& q) {
        for (int i = 0; i < block_size; ++i) both[i] = p[i] + q[i];
      },
      a, b);
}

}  // namespace smp
