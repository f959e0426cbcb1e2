// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What all ranks of a job must have been told alike, compared before it begins: a rank that was told something else is
/// named, with what it was told, where without this the job would hang or compute nonsense.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/objects.hpp>
#include <smp/error.hpp>
#include <smp/random.hpp>

namespace smp::comm {

/// Something that a rank was told.
struct Fact {
  std::string name;   ///< "micro-batches"
  std::string value;  ///< "8"
  friend bool operator==(const Fact&, const Fact&) = default;
};

/// How it travels.
template <>
struct ObjectTraits<Fact> {
  static void pack(const Fact& fact, Bytes& bytes) {
    comm::pack(fact.name, bytes);
    comm::pack(fact.value, bytes);
  }
  static Fact unpack(ByteReader& reader) {
    auto name = comm::unpack<std::string>(reader);
    return {std::move(name), comm::unpack<std::string>(reader)};
  }
};

/// A hash of facts.
[[nodiscard]] inline std::uint64_t hash_of(const std::vector<Fact>& facts) {
  std::uint64_t hash = 14695981039346656037u;
  for (const Fact& fact : facts) {
    for (const std::string* text : {&fact.name, &fact.value}) hash = (hash ^ stream_of(*text)) * 1099511628211u;
  }
  return hash;
}

/// Compares facts over a group. All ranks of it call this; where all agree it costs one number of each.
/// @throws ConfigError on all ranks if they differ, naming the first rank and fact that do, and both values
template <HostCommunicator C>
void expect_equal_facts(C& communicator, const std::vector<Fact>& own) {
  if (communicator.size() == 1) return;
  const std::uint64_t hash = hash_of(own);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(communicator.size()));
  HostStream now;
  communicator.all_gather(now, std::span<const std::uint64_t>(&hash, 1), hashes, Purpose::control);
  std::size_t other = 1;
  while (other < hashes.size() && hashes[other] == hashes[0]) ++other;
  if (other == hashes.size()) return;
  const auto all = all_gather_object(communicator, own);
  std::size_t i = 0;
  while (i < all[0].size() && i < all[other].size() && all[0][i] == all[other][i]) ++i;
  const auto value = [&](std::size_t rank) {
    return i < all[rank].size() ? all[rank][i].value : std::string("nothing");
  };
  const std::string name = i < all[0].size() ? all[0][i].name : all[other][i].name;
  throw ConfigError("rank " + std::to_string(other) + " of the " + communicator.group().name + " group has " + name +
                    " = " + value(other) + ", but rank 0 has " + value(0) + ": all ranks must be told the same");
}

}  // namespace smp::comm
