// SPDX-License-Identifier: Apache-2.0
// Objects as bytes: what is packed is unpacked, and what was damaged is an error and not a surprise.
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/objects.hpp>

#include "support/user_object.hpp"

namespace {

using smp::CommError;
using smp::comm::ByteReader;
using smp::comm::Bytes;
using smp::comm::pack;
using smp::comm::unpack;
using smp::comm::unpack_all;
using smp::testing::Settings;

template <class T>
Bytes packed(const T& object) {
  Bytes bytes;
  pack(object, bytes);
  return bytes;
}

struct Plain {
  int a;
  double b;
  friend bool operator==(const Plain&, const Plain&) = default;
};

template <class T>
void check_round_trip(const T& object) {
  const Bytes bytes = packed(object);
  CHECK(unpack_all<T>(bytes) == object);
  // Cut anywhere, it is damaged; so it is with a byte too many.
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    CHECK_THROWS_WITH_AS(static_cast<void>(unpack_all<T>(part)), doctest::Contains(" bytes expected, "), CommError);
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_THROWS_WITH_AS(static_cast<void>(unpack_all<T>(longer)),
                       "smp: a received object is damaged or of another type: 1 bytes are left over", CommError);
}

TEST_CASE("objects come back as they were, and parts of them are refused") {
  check_round_trip(42);
  check_round_trip(std::uint8_t{7});
  check_round_trip(Plain{1, 2.5});
  check_round_trip(std::array<int, 3>{1, 2, 3});
  check_round_trip(std::string());
  check_round_trip(std::string("a text with \0 in it", 19));
  check_round_trip(std::vector<int>());
  check_round_trip(std::vector<double>{1, 2, 3});
  check_round_trip(std::vector<bool>{true, false, true});
  check_round_trip(std::vector<std::string>{"h.0.attn", "", "h.1.attn"});
  check_round_trip(std::vector<std::vector<Plain>>{{{1, 1}}, {}, {{2, 2}, {3, 3}}});
  check_round_trip(Settings{"adam", {1e-3, 1e-4}});
  check_round_trip(std::vector<Settings>{{"a", {}}, {"b", {0.5}}});
}

TEST_CASE("several objects are read one after the other") {
  Bytes bytes;
  pack(std::string("first"), bytes);
  pack(2, bytes);
  ByteReader reader(bytes);
  CHECK(unpack<std::string>(reader) == "first");
  CHECK(reader.left() == sizeof(int));
  CHECK(unpack<int>(reader) == 2);
  CHECK(reader.left() == 0);
}

TEST_CASE("a length that was damaged is refused before memory is made for it") {
  for (const std::uint64_t length :
       {std::uint64_t{4}, std::uint64_t{1} << 32, std::numeric_limits<std::uint64_t>::max()}) {
    Bytes bytes;
    pack(length, bytes);
    bytes.resize(bytes.size() + 3);
    CHECK_THROWS_AS(static_cast<void>(unpack_all<std::string>(bytes)), CommError);
    CHECK_THROWS_AS(static_cast<void>(unpack_all<std::vector<std::uint8_t>>(bytes)), CommError);
    CHECK_THROWS_AS(static_cast<void>(unpack_all<std::vector<std::string>>(bytes)), CommError);
    CHECK_THROWS_AS(static_cast<void>(unpack_all<std::vector<Plain>>(bytes)), CommError);
  }
}

TEST_CASE("an announcement beyond the limit is a mistake, not a request for memory") {
  using smp::comm::checked_object_bytes;
  using smp::comm::max_object_bytes;
  CHECK(checked_object_bytes(0) == 0);
  CHECK(checked_object_bytes(max_object_bytes) == max_object_bytes);
  CHECK_THROWS_WITH_AS(static_cast<void>(checked_object_bytes(max_object_bytes + 1)),
                       "smp: an object of 1073741825 bytes was announced; at most 1073741824 are accepted", CommError);
}

}  // namespace
