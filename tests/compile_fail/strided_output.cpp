// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: a contiguous buffer is needed here (std::span, std::vector, std::array); copy a strided view into
// one first
#include <array>
#include <ranges>

#include <smp/comm/self.hpp>

void scatter_into_column(smp::comm::Self& world, std::array<float, 6>& matrix) {
  smp::HostStream stream;
  auto column = std::views::iota(0, 2) | std::views::transform([&](int row) -> float& { return matrix[3 * row]; });
  const std::array<float, 2> input{};
  world.reduce_scatter(stream, input, column, smp::sum);
}
