// SPDX-License-Identifier: Apache-2.0
// Eight ranks as threads of this process: two pipeline stages x two tensor-parallel ranks x two copies.
#include "groups.hpp"

// [readme-begin]
int main() {
  smp::comm::launch(8, [](smp::comm::Threads& world) { train(world); });
}
// [readme-end]
