// SPDX-License-Identifier: Apache-2.0
// expect-error: smp: an average of integers is not defined; sum them and divide, or convert them to double
#include <vector>

#include <smp/comm/self.hpp>

void average_counts(smp::comm::Self& world, std::vector<int>& counts) {
  smp::HostStream stream;
  world.all_reduce(stream, counts, counts, smp::average);
}
