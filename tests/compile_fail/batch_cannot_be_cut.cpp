// SPDX-License-Identifier: Apache-2.0
// A batch of a tensor type that does not say how it is cut.
// expect-error: smp: a batch of this type of tensor cannot be cut; give its TensorTraits a 'slice'
#include <span>

#include <smp/train/batch.hpp>

struct Own {
  float value;
};
template <>
struct smp::TensorTraits<Own> {
  using element = float;
  static std::span<const float> data(const Own& t) noexcept { return {&t.value, 1}; }
  static smp::Shape shape(const Own&) { return {1}; }
};

Own half(const Own& batch) { return smp::batch_slice(batch, {0, 1}); }
