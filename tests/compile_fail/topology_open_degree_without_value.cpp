// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::Topology: the type leaves something open; give the constructor degrees and placement
#include <smp/topology.hpp>

int main() { return smp::DynamicTopology{}.world_size(); }
