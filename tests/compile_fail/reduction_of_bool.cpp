// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: this element type cannot be reduced; reducible are double, float, smp::Float16, smp::BFloat16 and
// the integers of <cstdint>
#include <array>

#include <smp/comm/self.hpp>

void any(smp::comm::Self& world, std::array<bool, 4>& flags) {
  smp::HostStream stream;
  world.all_reduce(stream, flags, flags, smp::maximum);
}
