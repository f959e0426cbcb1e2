// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The training run, for each type of numbers and each layout compiled by itself.

#include <chrono>

#if USE_MPI
#include <smp/comm/mpi.hpp>
#endif

#include "options.hpp"
#include "text.hpp"

/// Trains as `options` say on `text`, with values of type `T`, on ranks that are threads of this process.
/// @param begin of the program
template <class T>
void train(const Options& options, const Text& text, std::chrono::steady_clock::time_point begin);

#if USE_MPI
/// The same on one rank of those that MPI has started.
template <class T>
void train(smp::comm::Mpi& world, const Options& options, const Text& text,
           std::chrono::steady_clock::time_point begin);
#endif
