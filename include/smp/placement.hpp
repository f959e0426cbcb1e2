// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which axis of a job gets ranks that are neighbours. Needs neither MPI nor CUDA.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <smp/error.hpp>

namespace smp {

/// The order of the axes data (D), pipeline (P) and tensor (T) in the global rank, the slowest first: under `dpt`,
/// ranks that differ only on the tensor axis have consecutive numbers. `runtime`: known when the program runs, as a
/// degree that is `dynamic`.
enum class Placement : signed char { runtime = -1, dpt, dtp, pdt, ptd, tdp, tpd, cluster = dpt, spread = tpd };

/// Every placement once.
inline constexpr std::array<Placement, 6> all_placements{Placement::dpt, Placement::dtp, Placement::pdt,
                                                         Placement::ptd, Placement::tdp, Placement::tpd};

namespace detail {
inline constexpr std::array<std::string_view, 6> placement_letters{"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"};
}

/// The letters of the placement: "DPT" for `cluster`, "TPD" for `spread`.
[[nodiscard]] constexpr std::string_view to_string(Placement placement) noexcept {
  return placement == Placement::runtime ? "runtime" : detail::placement_letters[static_cast<std::size_t>(placement)];
}

/// The placement of this name: "cluster", "spread", or the letters D, P and T in any order.
/// @throws ConfigError for any other name
[[nodiscard]] constexpr Placement parse_placement(std::string_view name) {
  if (name == "cluster") return Placement::cluster;
  if (name == "spread") return Placement::spread;
  for (const Placement placement : all_placements) {
    if (name == to_string(placement)) return placement;
  }
  throw ConfigError("placement is \"" + std::string(name) +
                    "\"; legal values are cluster (= DPT), spread (= TPD), DPT, DTP, PDT, PTD, TDP and TPD");
}

}  // namespace smp
