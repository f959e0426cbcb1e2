// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Turns the error codes of MPI into exceptions.

#include <array>
#include <string>

#include <mpi.h>

#include <smp/error.hpp>

namespace smp::comm {

/// Throws CommError with MPI's own text if `code`, returned by the function called `function`, is an error.
inline void check(int code, const char* function, const std::string& context = {}) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw CommError((context.empty() ? "" : context + ": ") + function +
                  " failed: " + std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace smp::comm
