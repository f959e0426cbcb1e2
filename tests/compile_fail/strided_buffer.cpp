// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: a contiguous buffer is needed here (std::span, std::vector, std::array); copy a strided view into
// one first A column of a 2 x 3 matrix. Elsewhere a packed copy of it was reduced, and the view came back as it was.
#include <array>
#include <ranges>

#include <smp/comm/self.hpp>

void reduce_column(smp::comm::Self& world, std::array<float, 6>& matrix) {
  smp::HostStream stream;
  auto column = std::views::iota(0, 2) | std::views::transform([&](int row) -> float& { return matrix[3 * row]; });
  world.all_reduce(stream, column, column, smp::sum);
}
