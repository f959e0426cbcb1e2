// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which gradients are reduced together.

#include <cstddef>
#include <span>
#include <vector>

#include <smp/error.hpp>

namespace smp {

/// A range of consecutive parameters.
struct ParameterRange {
  std::size_t first = 0;  ///< place of the first parameter
  std::size_t last = 0;   ///< behind the last parameter
  friend bool operator==(const ParameterRange&, const ParameterRange&) = default;
};

/// Joins parameters from the last to the first, the order in which backward completes them, into ranges of at most
/// `limit`. A parameter is never split: a larger one goes alone.
/// @param sizes of the parameters, in the order of forward; in the unit of `limit`
/// @throws ConfigError if `limit` is 0
[[nodiscard]] inline std::vector<ParameterRange> plan_buckets(std::span<const std::size_t> sizes, std::size_t limit) {
  if (limit == 0) throw ConfigError("bucket_bytes is 0: a bucket of gradients must have room for something");
  std::vector<ParameterRange> buckets;
  std::size_t last = sizes.size();
  while (last > 0) {
    std::size_t first = last - 1;
    std::size_t filled = sizes[first];
    while (first > 0 && filled + sizes[first - 1] <= limit) filled += sizes[--first];
    buckets.push_back({first, last});
    last = first;
  }
  return buckets;
}

}  // namespace smp
