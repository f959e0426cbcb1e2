// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What smp throws. Every text starts with "smp: " and says what was expected, what was found, and on which rank.

#include <stdexcept>
#include <string>

namespace smp {

/// The root of all exceptions of this library.
class Error : public std::runtime_error {
 public:
  /// `what()` becomes "smp: " followed by `text`, which may be the text of another such exception.
  explicit Error(const std::string& text) : std::runtime_error(text.starts_with("smp: ") ? text : "smp: " + text) {}
};

/// Degrees, sizes, options, arguments or environment variables that cannot work. Thrown before any message is sent.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A communication that failed, timed out, or did not match what the other ranks called.
class CommError : public Error {
 public:
  using Error::Error;
};

/// A stream, event or memory operation of a device (host or GPU) that failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace smp
