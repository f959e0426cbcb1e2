// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::Topology: pp * tp * rdp are more ranks than an int can count; write smaller degrees
#include <smp/topology.hpp>

int main() { return smp::Topology<smp::Degrees{.pp = 65536, .tp = 65536}>{}.world_size(); }
