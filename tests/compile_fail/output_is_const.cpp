// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: this operation writes to the buffer; pass one whose elements are not const
#include <vector>

#include <smp/comm/self.hpp>

void broadcast_weights(smp::comm::Self& world, const std::vector<float>& weights) {
  smp::HostStream stream;
  world.broadcast(stream, weights, 0);
}
