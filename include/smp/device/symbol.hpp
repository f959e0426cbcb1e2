// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Functions that only some of the libraries have which a program may be linked with, by name.

#include <dlfcn.h>

namespace smp {

/// The function `name`, of type `Function`, of a shared library that this process has loaded; null if none has it.
template <class Function>
[[nodiscard]] Function* loaded_function(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace smp
