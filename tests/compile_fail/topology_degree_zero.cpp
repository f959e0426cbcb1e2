// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::Topology: every degree must be at least 1; write a number of ranks, or smp::dynamic
#include <smp/topology.hpp>

int main() { return smp::Topology<smp::Degrees{.pp = 2, .tp = 0}>{}.world_size(); }
