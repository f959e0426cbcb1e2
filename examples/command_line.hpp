// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the command lines of the examples share.

#include <charconv>
#include <exception>
#include <iostream>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

/// For an integer option: `->transform(decimal())`. CLI11 alone reads 010 as 8.
inline CLI::Validator decimal() {
  return {[](std::string& text) -> std::string {
            int value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error == std::errc{} && end == text.data() + text.size()) {
              text = std::to_string(value);
              return {};
            }
            return "\"" + text + "\" is not a decimal 32-bit integer";
          },
          ""};
}

/// Reads the arguments, then calls `f`. What goes wrong is one sentence on stderr and exit code 2.
template <class F>
int run(CLI::App& app, int argc, char** argv, F f) {
  try {
    app.parse(argc, argv);
    f();
    return 0;
  } catch (const CLI::Success& request) {  // --help
    return app.exit(request);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
