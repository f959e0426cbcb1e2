// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: input and output of a communication must have the same element type
#include <vector>

#include <smp/comm/self.hpp>

void gather_into_wider(smp::comm::Self& world, const std::vector<float>& in, std::vector<double>& out) {
  smp::HostStream stream;
  world.all_gather(stream, in, out);
}
