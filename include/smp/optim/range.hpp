// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What an optimizer is: a small value of numbers, and a kernel over a flat range of parameters. It keeps nothing;
/// a strategy owns values, gradients and state, and says which ranges are updated where.

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <smp/device/vectorized.hpp>
#include <smp/parameter_groups.hpp>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace smp::optim {

/// Most arrays of state that an optimizer keeps beside the values.
inline constexpr int max_states = 2;

/// A range of parameters to update. The arrays do not overlap.
template <class T>
struct Range {
  T* values = nullptr;                 ///< changed
  T* gradients = nullptr;              ///< read, and set to zero for the next step
  std::array<T*, max_states> state{};  ///< zero before the first step; those that the optimizer asks for
  std::int64_t size = 0;               ///< elements of each array
};

/// The numbers of one step.
struct StepNumbers {
  std::int64_t step = 1;       ///< counted from 1
  double learning_rate = 0;    ///< of this step
  double gradient_factor = 1;  ///< gradients are multiplied by it: clipping, averaging
  bool decay = true;           ///< the range is subject to weight decay

  /// The same for parameters with a rule.
  [[nodiscard]] StepNumbers under(const UpdateRule& rule) const noexcept {
    return {step, learning_rate * rule.rate, gradient_factor, rule.decay};
  }
};

/// A type that updates ranges. `states()` is how many arrays of state it needs.
template <class O>
concept Optimizer = std::copy_constructible<O> &&
                    requires(const O& o, const Range<float>& f, const Range<double>& d, const StepNumbers& numbers) {
                      { o.states() } -> std::same_as<int>;
                      o.update(f, numbers);
                      o.update(d, numbers);
                    };

/// Replaces each element by its square root. Compilers do not vectorise std::sqrt, which may set errno.
template <class T>
[[gnu::always_inline]] inline void square_roots(T (&x)[block_size]) noexcept {
#if defined(__SSE2__)
  if constexpr (std::same_as<T, float>) {
    for (int i = 0; i < block_size; i += 4) _mm_storeu_ps(x + i, _mm_sqrt_ps(_mm_loadu_ps(x + i)));
  } else {
    for (int i = 0; i < block_size; i += 2) _mm_storeu_pd(x + i, _mm_sqrt_pd(_mm_loadu_pd(x + i)));
  }
#else
  for (T& v : x) v = std::sqrt(v);
#endif
}

/// Inside of `vectorized`: calls `f(value, gradient, state0, state1)` with arrays of 64 elements until all of `range`
/// has been updated, and sets its gradients to zero. The last block is filled up with zeros, so that the result of an
/// element does not depend on its place. `states` of the arrays are read and written.
template <int states, class T, class F>
[[gnu::always_inline, gnu::flatten]] inline void for_each_block(const Range<T>& range, F f) {
  for (std::int64_t i = 0; i < range.size; i += block_size) {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(block_size, range.size - i));
    alignas(64) T value[block_size];
    alignas(64) T gradient[block_size];
    alignas(64) T state[max_states][block_size];
    const auto load = [count](T(&block)[block_size], const T* from) {
      if (count == block_size) {
        std::memcpy(block, from, sizeof(block));
      } else {
        std::memset(block, 0, sizeof(block));
        std::memcpy(block, from, count * sizeof(T));
      }
    };
    const auto store = [count](T* to, const T(&block)[block_size]) {
      if (count == block_size) {
        std::memcpy(to, block, sizeof(block));
      } else {
        std::memcpy(to, block, count * sizeof(T));
      }
    };
    load(value, range.values + i);
    load(gradient, range.gradients + i);
    if constexpr (states > 0) load(state[0], range.state[0] + i);
    if constexpr (states > 1) load(state[1], range.state[1] + i);
    f(value, gradient, state[0], state[1]);
    store(range.values + i, value);
    std::memset(range.gradients + i, 0, count * sizeof(T));
    if constexpr (states > 0) store(range.state[0] + i, state[0]);
    if constexpr (states > 1) store(range.state[1] + i, state[1]);
  }
}

}  // namespace smp::optim
