// SPDX-License-Identifier: Apache-2.0
#include <smp/comm/launch.hpp>

#include "run.hpp"
#include "train.hpp"

template <>
void train<float>(const Options& options, const Text& text, Clock::time_point begin) {
  smp::comm::launch(options.ranks, [&](smp::comm::Threads& world) {
    Run<float, smp::comm::Threads>(world, options, text).all("threads", begin);
  });
}
