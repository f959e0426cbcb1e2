// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The training run of one rank, for each type of numbers compiled by itself.

#include <chrono>
#include <string>

#include <smp/comm/any.hpp>

#include "options.hpp"
#include "text.hpp"

/// Trains as `options` say on `text`, with values of type `T`, on the calling rank.
/// @param transport what carries the messages of `world`
/// @param begin of the program
template <class T>
void train(smp::comm::Any world, const std::string& transport, const Options& options, const Text& text,
           std::chrono::steady_clock::time_point begin);
