// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Reductions in a fixed order: element by element ((x0 + x1) + x2) + ..., by rank, in the accumulation type, rounded
/// once. The result depends on the values and their ranks alone, never on the transport, the timing or the piece a
/// buffer was cut into.

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include <smp/comm/element.hpp>
#include <smp/device/copy.hpp>

namespace smp {

/// The reductions. `sum`, `average`, `maximum` and `minimum` are their values, passed to the operations.
struct Sum {};
struct Average {};
struct Maximum {};
struct Minimum {};

inline constexpr Sum sum{};          ///< x0 + x1 + ...
inline constexpr Average average{};  ///< the sum divided by the number of ranks; floating-point elements only
inline constexpr Maximum maximum{};  ///< the largest; a NaN on any rank gives NaN
inline constexpr Minimum minimum{};  ///< the smallest; a NaN on any rank gives NaN

namespace comm {

/// Identity of a reduction at run time, for messages and comparisons between ranks.
enum class ReduceOp : unsigned char { none, sum, average, maximum, minimum };

/// The name of a reduction in messages.
[[nodiscard]] constexpr const char* name(ReduceOp op) noexcept {
  constexpr const char* names[] = {"none", "sum", "average", "maximum", "minimum"};
  return names[static_cast<std::size_t>(op)];
}

/// What one reduction does to an accumulator: `combine(acc, x)` for every further rank, then `finish(acc, ranks)`.
template <class Op>
struct ReductionTraits;

template <>
struct ReductionTraits<Sum> {
  static constexpr ReduceOp op = ReduceOp::sum;
  template <class A>
  static constexpr A combine(A acc, A x) noexcept {
    if constexpr (std::is_integral_v<A>) {  // wraps around instead of undefined overflow
      using U = std::common_type_t<std::make_unsigned_t<A>, unsigned>;
      return static_cast<A>(static_cast<U>(acc) + static_cast<U>(x));
    } else {
      return acc + x;
    }
  }
  template <class A>
  static constexpr A finish(A acc, std::size_t) noexcept {
    return acc;
  }
};

template <>
struct ReductionTraits<Average> : ReductionTraits<Sum> {
  static constexpr ReduceOp op = ReduceOp::average;
  template <class A>
  static constexpr A finish(A acc, std::size_t ranks) noexcept {
    return acc / static_cast<A>(ranks);
  }
};

template <>
struct ReductionTraits<Maximum> : ReductionTraits<Sum> {
  static constexpr ReduceOp op = ReduceOp::maximum;
  template <class A>
  static constexpr A combine(A acc, A x) noexcept {
    return x > acc || x != x ? x : acc;
  }
};

template <>
struct ReductionTraits<Minimum> : ReductionTraits<Sum> {
  static constexpr ReduceOp op = ReduceOp::minimum;
  template <class A>
  static constexpr A combine(A acc, A x) noexcept {
    return x < acc || x != x ? x : acc;
  }
};

/// The buffers of one reduction: inputs by rank, and the outputs that all receive the result. Outputs may be inputs.
struct ReduceBuffers {
  const std::byte* const* inputs = nullptr;  ///< of each rank
  std::size_t ranks = 0;                     ///< number of inputs
  std::byte* const* outputs = nullptr;       ///< where the result goes
  std::size_t copies = 0;                    ///< number of outputs
};

/// Reduces `count` elements starting `offset` elements into every buffer.
using ReduceKernel = void (*)(const ReduceBuffers&, std::size_t offset, std::size_t count, Store);

/// Two inputs, one output, sums kept in the element type: element by element, without a buffer between.
template <class T, class Op>
void reduce_pair(const T* first, const T* second, T* result, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = ReductionTraits<Op>::finish(ReductionTraits<Op>::combine(first[i], second[i]), 2);
  }
}

/// The kernel for elements `T` under `Op`. Works in blocks that stay in the first-level cache, so that every input is
/// read once and every output written once whatever the number of ranks.
template <class T, class Op>
void reduce_in_rank_order(const ReduceBuffers& buffers, std::size_t offset, std::size_t count, Store store) {
  using Acc = typename ElementTraits<T>::Accumulator;
  if constexpr (std::is_same_v<T, Acc>) {
    if (buffers.ranks == 2 && buffers.copies == 1 && store == Store::cached) {
      reduce_pair<T, Op>(reinterpret_cast<const T*>(buffers.inputs[0]) + offset,
                         reinterpret_cast<const T*>(buffers.inputs[1]) + offset,
                         reinterpret_cast<T*>(buffers.outputs[0]) + offset, count);
      return;
    }
  }
  constexpr std::size_t block = 8192 / sizeof(Acc);
  alignas(64) Acc acc[block];
  alignas(64) T result[std::is_same_v<T, Acc> ? 1 : block];

  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t n = std::min(block, count - done);
    const auto input = [&](std::size_t rank) {
      return reinterpret_cast<const T*>(buffers.inputs[rank]) + offset + done;
    };
    const T* first = input(0);
    if (buffers.ranks == 1) {
      for (std::size_t i = 0; i < n; ++i) acc[i] = static_cast<Acc>(first[i]);
    } else {
      const T* second = input(1);
      for (std::size_t i = 0; i < n; ++i) {
        acc[i] = ReductionTraits<Op>::combine(static_cast<Acc>(first[i]), static_cast<Acc>(second[i]));
      }
    }
    for (std::size_t rank = 2; rank < buffers.ranks; ++rank) {
      const T* x = input(rank);
      for (std::size_t i = 0; i < n; ++i) acc[i] = ReductionTraits<Op>::combine(acc[i], static_cast<Acc>(x[i]));
    }
    if constexpr (std::is_same_v<Op, Average>) {
      for (std::size_t i = 0; i < n; ++i) acc[i] = ReductionTraits<Op>::finish(acc[i], buffers.ranks);
    }
    const std::byte* rounded = reinterpret_cast<const std::byte*>(acc);
    if constexpr (!std::is_same_v<T, Acc>) {
      for (std::size_t i = 0; i < n; ++i) result[i] = T(acc[i]);
      rounded = reinterpret_cast<const std::byte*>(result);
    }
    for (std::size_t copy = 0; copy < buffers.copies; ++copy) {
      copy_bytes(buffers.outputs[copy] + (offset + done) * sizeof(T), rounded, n * sizeof(T), store);
    }
  }
}

/// A reduction with its types erased: its identity, and the kernel that performs it.
struct Reduction {
  ReduceOp op = ReduceOp::none;   ///< which reduction
  ReduceKernel kernel = nullptr;  ///< what performs it
};

/// The reduction `Op` over elements `T`; a pair that has no meaning does not compile.
template <class T, class Op>
[[nodiscard]] constexpr Reduction reduction_of() noexcept {
  static_assert(Reducible<T>,
                "smp: this element type cannot be reduced; reducible are double, float, smp::Float16, smp::BFloat16 "
                "and the integers of <cstdint>");
  static_assert(!std::is_same_v<Op, Average> || !std::is_integral_v<T>,
                "smp: an average of integers is not defined; sum them and divide, or convert them to double");
  if constexpr (Reducible<T>) {
    return {ReductionTraits<Op>::op, &reduce_in_rank_order<T, Op>};
  } else {
    return {};
  }
}

}  // namespace comm
}  // namespace smp
