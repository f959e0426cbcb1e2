// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

template void train<double>(smp::comm::Any world, const std::string& transport, const Options& options,
                            const Text& text, Clock::time_point begin);
