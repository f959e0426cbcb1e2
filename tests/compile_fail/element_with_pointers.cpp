// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: only trivially copyable elements can be communicated in place; for other types use
#include <string>
#include <vector>

#include <smp/comm/self.hpp>

void broadcast_names(smp::comm::Self& world, std::vector<std::string>& names) {
  smp::HostStream stream;
  world.broadcast(stream, names, 0);
}
