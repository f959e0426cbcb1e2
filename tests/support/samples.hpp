// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Numbers to train small modules on.

#include <cmath>
#include <cstdint>

#include <smp/tensor.hpp>

namespace smp::testing {

/// Samples `first` to `last` - 1 of all there are, a row each: functions of their numbers, so that ranks which share a
/// batch have what one rank has. Another `phase`, other samples.
inline TensorOf<double> samples(Memory& memory, std::int64_t first, std::int64_t last, std::int64_t width,
                                double phase) {
  TensorOf<double> v(memory, {last - first, width});
  for (std::int64_t i = 0; i < (last - first) * width; ++i) {
    v.data()[i] = std::sin(phase + 0.7 * static_cast<double>(first * width + i));
  }
  return v;
}

}  // namespace smp::testing
