// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Whether a sanitizer watches this build: ten times slower, so that sweeps have to be shorter and time limits longer.

namespace smp::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace smp::testing
