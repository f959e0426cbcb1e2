// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which gradients are reduced together.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <smp/error.hpp>

namespace smp {

/// What the tensor-parallel ranks have of a parameter and of its gradient.
enum class OverTp : unsigned char {
  parts,     ///< each its part, with its gradient
  copies,    ///< all the same, with equal gradients
  summands,  ///< all the same parameter, with summands of its gradient
};

/// The gradients of one parameter that are reduced here.
struct GradientRange {
  void* data = nullptr;             ///< the first of them, a float or a double
  std::size_t size = 0;             ///< elements
  std::size_t element_bytes = 0;    ///< of one
  int block = 0;                    ///< of the parameter
  std::size_t order = 0;            ///< of the block in forward, among those of all types
  OverTp over_tp = OverTp::copies;  ///< who has what
};

/// Consecutive gradients that are reduced together.
struct GradientBucket {
  void* data = nullptr;             ///< the first of them, a float or a double
  std::size_t size = 0;             ///< elements
  std::size_t element_bytes = 0;    ///< of one
  std::vector<int> blocks{};        ///< whose gradients are in it
  std::size_t order = 0;            ///< of the first block in forward
  OverTp over_tp = OverTp::copies;  ///< who has what

  /// Calls `f` with the gradients, as a span of their type.
  template <class F>
  void visit(F&& f) const {
    if (element_bytes == sizeof(float)) {
      std::forward<F>(f)(std::span<float>(static_cast<float*>(data), size));
    } else {
      std::forward<F>(f)(std::span<double>(static_cast<double*>(data), size));
    }
  }
};

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
[[nodiscard]] inline std::vector<ParameterRange> plan_buckets(const std::vector<std::size_t>& sizes,
                                                              std::size_t limit) {
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

/// Buckets of at most `bucket_bytes`, unless a parameter is larger, of `ranges` in the order of forward. What does not
/// follow in memory, or differs in type or in who has what, is not joined.
/// @throws ConfigError if `bucket_bytes` is 0
[[nodiscard]] inline std::vector<GradientBucket> plan_buckets(const std::vector<GradientRange>& ranges,
                                                              std::size_t bucket_bytes) {
  const auto follows = [](const GradientRange& a, const GradientRange& b) {
    return a.element_bytes == b.element_bytes && a.over_tp == b.over_tp &&
           static_cast<const std::byte*>(a.data) + a.size * a.element_bytes == b.data;
  };
  std::vector<GradientBucket> buckets;
  for (std::size_t begin = 0, end = 0; begin < ranges.size(); begin = end) {
    std::vector<std::size_t> bytes;
    do {
      bytes.push_back(ranges[end].size * ranges[end].element_bytes);
      ++end;
    } while (end < ranges.size() && follows(ranges[end - 1], ranges[end]));
    for (const ParameterRange& joined : plan_buckets(bytes, bucket_bytes)) {
      const GradientRange& first = ranges[begin + joined.first];
      GradientBucket bucket{first.data, 0, first.element_bytes, {}, first.order, first.over_tp};
      for (std::size_t i = begin + joined.first; i < begin + joined.last; ++i) {
        const GradientRange& r = ranges[i];
        bucket.size += r.size;
        if (bucket.blocks.empty() || bucket.blocks.back() != r.block) bucket.blocks.push_back(r.block);
      }
      buckets.push_back(std::move(bucket));
    }
  }
  return buckets;
}

}  // namespace smp
