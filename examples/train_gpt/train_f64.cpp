// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

template void train<double>(const Options& options, const Text& text, Clock::time_point begin);
#if USE_MPI
template void train<double>(smp::comm::Mpi& world, const Options& options, const Text& text, Clock::time_point begin);
#endif
