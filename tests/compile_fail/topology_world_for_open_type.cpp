// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::Topology: a world tells nothing but rdp; give the constructor degrees and placement
#include <smp/topology.hpp>

int main() { return smp::DynamicTopology(8).world_size(); }
