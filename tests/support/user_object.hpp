// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A user's own type that is sent as an object.

#include <string>
#include <vector>

#include <smp/comm/objects.hpp>

namespace smp::testing {

/// Not trivially copyable, and with something that must not travel.
struct Settings {
  std::string name;
  std::vector<double> rates;
  int* cache = nullptr;
  friend bool operator==(const Settings& a, const Settings& b) { return a.name == b.name && a.rates == b.rates; }
};

}  // namespace smp::testing

template <>
struct smp::comm::ObjectTraits<smp::testing::Settings> {
  static void pack(const smp::testing::Settings& s, Bytes& bytes) {
    comm::pack(s.name, bytes);
    comm::pack(s.rates, bytes);
  }
  static smp::testing::Settings unpack(ByteReader& reader) {
    smp::testing::Settings s;
    s.name = comm::unpack<std::string>(reader);
    s.rates = comm::unpack<std::vector<double>>(reader);
    return s;
  }
};
