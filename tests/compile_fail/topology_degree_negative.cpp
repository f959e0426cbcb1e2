// SPDX-License-Identifier: Apache-2.0
// A negative number does not mean dynamic.
// expect-error: smp::Topology: every degree must be at least 1; write a number of ranks, or smp::dynamic
#include <smp/topology.hpp>

int main() { return smp::Topology<smp::Degrees{.rdp = -1}>(8).world_size(); }
