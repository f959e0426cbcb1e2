// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The product of matrices without a library: blocks that fit into the caches, copied to be contiguous, and a tile of C
/// in the registers (K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008).
/// The bits of an element of C depend on its row of op(A), its column of op(B), alpha, beta and the vector unit, and on
/// nothing else: neither on the other sizes nor on where it stands.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <smp/device/gemm_call.hpp>
#include <smp/device/vectorized.hpp>

namespace smp {

/// How much of the matrices is worked on at a time on one vector unit.
template <class Unit, class T>
struct GemmBlocks {
  /// One register.
  using Vector [[gnu::vector_size(Unit::vector_bytes)]] = T;
  static constexpr int lanes = Unit::vector_bytes / static_cast<int>(sizeof(T));  ///< elements of a register
  static constexpr int columns = 2 * lanes;                                       ///< of a tile
  static constexpr int rows = Unit::registers == 32 ? 14 : Unit::vector_bytes == 32 ? 6 : 4;  ///< of a tile
  static constexpr std::int64_t depth = 512;   ///< terms of a sum before it is added to C: a slice of A fits L1
  static constexpr std::int64_t m = 8 * rows;  ///< rows of A at a time: fit L2
  static constexpr std::int64_t n = 4096 / sizeof(T) / columns * columns;  ///< columns of B at a time
};

/// A tile: c[rows][columns] = a * b + beta c, where a holds `depth` columns of `rows` numbers, and b rows of `columns`.
/// @tparam row 0, 1, ... rows - 1: the loops over them are written out, so that the sums are kept in registers
template <class Unit, class T, int... row>
[[gnu::always_inline]] inline void gemm_tile(std::int64_t depth, const T* a, const T* b, T beta, T* c, std::int64_t ldc,
                                             std::integer_sequence<int, row...>) {
  using Blocks = GemmBlocks<Unit, T>;
  typename Blocks::Vector left[Blocks::rows] = {}, right[Blocks::rows] = {}, b_left, b_right;
  for (std::int64_t p = 0; p < depth; ++p, a += Blocks::rows, b += Blocks::columns) {
    std::memcpy(&b_left, b, sizeof(b_left));
    std::memcpy(&b_right, b + Blocks::lanes, sizeof(b_right));
    ((left[row] += a[row] * b_left, right[row] += a[row] * b_right), ...);
  }
  if (beta != T(0)) {
    ((std::memcpy(&b_left, c + row * ldc, sizeof(b_left)), left[row] += beta * b_left), ...);
    ((std::memcpy(&b_right, c + row * ldc + Blocks::lanes, sizeof(b_right)), right[row] += beta * b_right), ...);
  }
  (std::memcpy(c + row * ldc, &left[row], sizeof(b_left)), ...);
  (std::memcpy(c + row * ldc + Blocks::lanes, &right[row], sizeof(b_right)), ...);
}

/// Copies `count` x `depth` numbers to panels of `width`, padded with zeros: of a panel come the first numbers of all
/// its rows, then the second ones. Number p of row i is from[i * row + p * step]; one of `row` and `step` is 1.
template <int width, class T>
[[gnu::always_inline]] inline void gemm_pack(std::int64_t count, std::int64_t depth, const T* from, std::int64_t row,
                                             std::int64_t step, T scale, T* to) {
  for (std::int64_t first = 0; first < count; first += width, from += width * row, to += width * depth) {
    const std::int64_t rows = std::min<std::int64_t>(width, count - first);
    if (rows < width) std::memset(static_cast<void*>(to), 0, sizeof(T) * static_cast<std::size_t>(width * depth));
    if (row == 1 && rows == width) {
      for (std::int64_t p = 0; p < depth; ++p) {
        for (int i = 0; i < width; ++i) to[p * width + i] = scale * from[p * step + i];
      }
    } else {
      // A cache line of each row at a time.
      for (std::int64_t begin = 0; begin < depth; begin += 16) {
        const std::int64_t end = std::min<std::int64_t>(begin + 16, depth);
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t p = begin; p < end; ++p) to[p * width + i] = scale * from[i * row + p * step];
        }
      }
    }
  }
}

/// The block of C whose rows and columns of A and B are packed.
template <class Unit, class T>
[[gnu::always_inline]] inline void gemm_block(std::int64_t m, std::int64_t n, std::int64_t depth, const T* a,
                                              const T* b, T beta, T* c, std::int64_t ldc) {
  using Blocks = GemmBlocks<Unit, T>;
  for (std::int64_t j = 0; j < n; j += Blocks::columns) {
    for (std::int64_t i = 0; i < m; i += Blocks::rows) {
      const auto columns = std::min<std::int64_t>(Blocks::columns, n - j);
      const auto rows = std::min<std::int64_t>(Blocks::rows, m - i);
      // A tile that hangs over goes the same way, on a copy.
      alignas(64) T edge[Blocks::rows][Blocks::columns];
      const bool whole = columns == Blocks::columns && rows == Blocks::rows;
      T* tile = c + i * ldc + j;
      if (!whole) {
        std::memset(edge, 0, sizeof(edge));
        for (std::int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * ldc, beta == T(0) ? 0 : columns, edge[r]);
      }
      gemm_tile<Unit>(depth, a + i * depth, b + j * depth, beta, whole ? tile : edge[0], whole ? ldc : Blocks::columns,
                      std::make_integer_sequence<int, Blocks::rows>{});
      if (!whole) {
        for (std::int64_t r = 0; r < rows; ++r) std::copy_n(edge[r], columns, tile + r * ldc);
      }
    }
  }
}

/// Computes the product for one vector unit, within `room` for the packed blocks.
template <class Unit, class T>
[[gnu::always_inline]] inline void gemm_on(const Gemm<T>& g, T* room) {
  using Blocks = GemmBlocks<Unit, T>;
  const bool a_rows = g.a_op == Transpose::no;
  const bool b_rows = g.b_op == Transpose::no;
  T* packed_a = room;
  T* packed_b = room + Blocks::m * Blocks::depth;
  for (std::int64_t j = 0; j < g.n; j += Blocks::n) {
    const std::int64_t n = std::min(Blocks::n, g.n - j);
    for (std::int64_t p = 0; p < g.k; p += Blocks::depth) {
      const std::int64_t depth = std::min(Blocks::depth, g.k - p);
      gemm_pack<Blocks::columns>(n, depth, g.b + (b_rows ? p * g.ldb + j : j * g.ldb + p), b_rows ? 1 : g.ldb,
                                 b_rows ? g.ldb : 1, T(1), packed_b);
      for (std::int64_t i = 0; i < g.m; i += Blocks::m) {
        const std::int64_t m = std::min(Blocks::m, g.m - i);
        gemm_pack<Blocks::rows>(m, depth, g.a + (a_rows ? i * g.lda + p : p * g.lda + i), a_rows ? g.lda : 1,
                                a_rows ? 1 : g.lda, g.alpha, packed_a);
        gemm_block<Unit>(m, n, depth, packed_a, packed_b, p == 0 ? g.beta : T(1), g.c + i * g.ldc + j, g.ldc);
      }
    }
  }
}

/// The product as this header computes it, on `unit` at most: for float and double, on any processor.
template <class T>
void gemm_portable(const Gemm<T>& g, VectorUnit unit = VectorUnit::avx512) {
  check(g);
  if (gemm_is_trivial(g)) return;
  // Memory of its own for each thread: it is as large as a cache, and allocating it anew would cost page faults.
  struct Free {
    void operator()(T* p) const noexcept { ::operator delete(p, std::align_val_t{64}); }
  };
  using Largest = GemmBlocks<OnAvx512, T>;
  constexpr std::int64_t elements = (Largest::m + Largest::n) * Largest::depth;
  thread_local const std::unique_ptr<T, Free> room(
      static_cast<T*>(::operator new(sizeof(T) * elements, std::align_val_t{64})));
  vectorized_on(unit, [&](auto on) { gemm_on<decltype(on)>(g, room.get()); });
}

}  // namespace smp
