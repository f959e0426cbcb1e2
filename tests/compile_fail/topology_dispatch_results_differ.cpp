// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::Topology::dispatch_stage: f must return the same type for every stage
#include <smp/topology.hpp>

int main() {
  smp::Topology<smp::Degrees{.pp = 2}>{}.dispatch_stage(0, [](auto stage) { return stage; });
}
