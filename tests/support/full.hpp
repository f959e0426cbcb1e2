// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Whether this run has time for long sweeps.

#include <cstdlib>
#include <string_view>

namespace smp::testing {

/// True under `scripts/test.sh --full`. What is tested must not depend on it, only how much of it.
inline bool full() {
  const char* const value = std::getenv("SMP_TEST_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace smp::testing
