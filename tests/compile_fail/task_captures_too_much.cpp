// SPDX-License-Identifier: Apache-2.0
// expect-error: smp::HostStream: a task captures more than HostStream::task_bytes; capture pointers to the data, not
// the data
#include <array>

#include <smp/device/host_stream.hpp>

void sum_later(smp::HostStream& stream, const std::array<double, 100>& data, double& result) {
  stream.enqueue([data, &result] { result = data[0] + data[99]; });
}
