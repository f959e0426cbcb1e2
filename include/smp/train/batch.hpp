// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A batch is a value whose tensors have the samples along their first dimension. How it is cut.

#include <cstdint>
#include <string>

#include <smp/batch_plan.hpp>
#include <smp/error.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// The number of samples of a batch.
/// @throws ConfigError if its tensors have different numbers of them
template <class V>
[[nodiscard]] std::int64_t batch_size(const V& batch) {
  std::int64_t samples = -1;
  for_each_tensor(batch, [&]<class T>(const T& tensor) {
    const Shape& shape = TensorTraits<T>::shape(tensor);
    const std::int64_t own = shape.rank() == 0 ? -1 : shape[0];
    if (own < 0 || (samples >= 0 && own != samples)) {
      throw ConfigError("all tensors of a batch have the samples along their first dimension, but one has the shape " +
                        to_string(shape) +
                        (samples < 0 ? "" : " where another has " + std::to_string(samples) + " samples"));
    }
    samples = own;
  });
  return samples < 0 ? 0 : samples;
}

/// The samples of `range`: the same storage where the type of tensor allows it.
template <class V>
[[nodiscard]] V batch_slice(const V& batch, SampleRange range) {
  V part = batch;
  for_each_tensor(part, [&]<class T>(T& tensor) {
    constexpr bool can_be_cut = requires { TensorTraits<T>::slice(tensor, range.first, range.size()); };
    static_assert(can_be_cut, "smp: a batch of this type of tensor cannot be cut; give its TensorTraits a 'slice'");
    if constexpr (can_be_cut) tensor = TensorTraits<T>::slice(tensor, range.first, range.size());
  });
  return part;
}

/// Part `part` of `parts` of a batch of `samples`: the first ones have one sample more if it does not divide.
[[nodiscard]] constexpr SampleRange microbatch(std::int64_t samples, int parts, int part) noexcept {
  const std::int64_t each = samples / parts;
  const std::int64_t more = samples % parts;
  const std::int64_t first = part * each + (part < more ? part : more);
  return {first, first + each + (part < more ? 1 : 0)};
}

}  // namespace smp
