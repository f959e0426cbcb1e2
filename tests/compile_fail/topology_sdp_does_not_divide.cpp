// SPDX-License-Identifier: Apache-2.0
// Refused even where another degree is open.
// expect-error: smp::Topology: sdp must divide rdp; write an sdp that does, or an rdp that is a multiple of sdp
#include <smp/topology.hpp>

int main() {
  return smp::Topology<smp::Degrees{.pp = smp::dynamic, .rdp = 4, .sdp = 3}>({.pp = 1, .rdp = 4}).world_size();
}
