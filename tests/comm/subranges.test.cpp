// SPDX-License-Identifier: Apache-2.0
// Parts of larger arrays. Elsewhere a strided view was packed, the copy was reduced, and the view came back as it was;
// here a view does not compile (compile_fail/strided_buffer.cpp), its rows are reduced where they are, and a column is
// copied by its owner.
#include <array>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

TEST_CASE("both ranks see 3 in every element of a reduced 2 x 3 matrix that one keeps transposed") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    const auto value = static_cast<float>(world.rank() + 1);
    std::array<float, 6> matrix;  // columns first
    matrix.fill(value);
    std::array<float, 6> rows_first;
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t c = 0; c < 3; ++c) rows_first[3 * r + c] = matrix[2 * c + r];
    }
    world.all_reduce(stream, rows_first, rows_first, smp::sum);
    CHECK(rows_first == std::array<float, 6>{3, 3, 3, 3, 3, 3});
    CHECK(matrix == std::array<float, 6>{value, value, value, value, value, value});
    world.all_reduce(stream, matrix, matrix, smp::sum);  // its memory is contiguous in whatever order
    CHECK(matrix == std::array<float, 6>{3, 3, 3, 3, 3, 3});
  });
}

/// A matrix whose rows are further apart than they are wide; what is between them is nobody's business.
template <class T>
struct PaddedRows {
  static constexpr std::size_t rows = 4, width = 6, stride = 9;
  static constexpr T between = 99;
  std::vector<T> memory = std::vector<T>(rows * stride, between);

  explicit PaddedRows(T value) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (T& x : row(r)) x = value;
    }
  }
  std::span<T> row(std::size_t r) { return std::span(memory).subspan(r * stride, width); }
  [[nodiscard]] bool untouched_between() const {
    for (std::size_t i = 0; i < memory.size(); ++i) {
      if (i % stride >= width && memory[i] != between) return false;
    }
    return true;
  }
};

TEST_CASE("rows with a stride wider than the row are reduced in place, and nothing between them changes") {
  on_ranks({2, 3, 4}, [](World& world) {
    smp::HostStream stream;
    const int all = world.size() * (world.size() + 1) / 2;
    PaddedRows<int> matrix(world.rank() + 1);
    for (std::size_t r = 0; r < matrix.rows; ++r) world.all_reduce(stream, matrix.row(r), matrix.row(r), smp::sum);
    for (std::size_t r = 0; r < matrix.rows; ++r) {
      for (const int x : matrix.row(r)) CHECK(x == all);
    }
    CHECK(matrix.untouched_between());
  });
}

TEST_CASE("rows are scattered into part of a row, and the rest of it stays") {
  on_ranks({2, 3}, [](World& world) {
    smp::HostStream stream;
    const auto ranks = static_cast<std::size_t>(world.size());
    const std::size_t piece = PaddedRows<float>::width / ranks;
    PaddedRows<float> in(static_cast<float>(world.rank() + 1));
    PaddedRows<float> out(-1);
    for (std::size_t r = 0; r < in.rows; ++r) {
      world.reduce_scatter(stream, in.row(r), out.row(r).subspan(1, piece), smp::sum);
      for (std::size_t c = 0; c < out.width; ++c) {
        const bool is_mine = c >= 1 && c < 1 + piece;
        CHECK(out.row(r)[c] == (is_mine ? static_cast<float>(world.size() * (world.size() + 1)) / 2 : -1));
      }
    }
    CHECK(in.untouched_between());
    CHECK(out.untouched_between());
  });
}

TEST_CASE("buffers are spans, vectors and arrays, named or not") {
  on_ranks({1, 2, 4}, [](World& world) {
    smp::HostStream stream;
    const std::vector<double> in{1, 2};
    std::vector<double> vector(2);
    std::array<double, 2> array{};
    double plain[2] = {};
    world.all_reduce(stream, in, vector, smp::sum);
    world.all_reduce(stream, vector, array, smp::maximum);
    world.all_reduce(stream, std::span(array), std::span(plain), smp::minimum);
    const double n = world.size();
    CHECK(vector == std::vector{n, 2 * n});
    CHECK(array == std::array{n, 2 * n});
    CHECK(plain[0] == n);
    CHECK(plain[1] == 2 * n);
  });
}

}  // namespace
