// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the micro-batches of a step have returned.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <smp/device/memory_allocator.hpp>
#include <smp/error.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// A tensor of each micro-batch, in order. Their contents are there when the stream has been waited for; `step`,
/// `evaluate` and `predict` have done so.
template <TensorLike T>
class StepOutput {
 public:
  using Traits = TensorTraits<T>;            ///< of the tensors
  using element = typename Traits::element;  ///< of the tensors

  /// Room for `microbatches` tensors.
  StepOutput(Memory& memory, int microbatches)
      : values_(MemoryAllocator<T>(memory)), samples_(MemoryAllocator<std::int64_t>(memory)) {
    values_.reserve(static_cast<std::size_t>(microbatches));
    samples_.reserve(static_cast<std::size_t>(microbatches));
  }

  /// Adds what a micro-batch of `samples` samples has returned.
  void add(T value, std::int64_t samples) {
    values_.push_back(std::move(value));
    samples_.push_back(samples);
  }

  /// Number of micro-batches.
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  /// Of one micro-batch.
  [[nodiscard]] const T& operator[](std::size_t microbatch) const noexcept { return values_[microbatch]; }

  /// The sum of all, element by element.
  /// @throws ConfigError if there are none, or their shapes differ
  [[nodiscard]] T reduce_sum() const {
    return combine([](std::int64_t) { return 1.0; });
  }
  /// The mean over the samples: micro-batches count by their number of samples.
  /// @throws ConfigError as `reduce_sum`
  [[nodiscard]] T reduce_mean() const {
    std::int64_t all = 0;
    for (const std::int64_t n : samples_) all += n;
    return combine([all](std::int64_t n) { return static_cast<double>(n) / static_cast<double>(all); });
  }
  /// All rows, one after the other.
  /// @throws ConfigError if there are none, or their shapes differ in more than the first dimension
  [[nodiscard]] T concat() const {
    std::int64_t rows = 0;
    for (const T& value : values_) {
      const Shape& shape = Traits::shape(value);
      if (shape.rank() == 0)
        throw ConfigError("values without dimensions cannot be joined along the first one; stack them");
      expect(shape.with(0, 0), Traits::shape(values_.front()).with(0, 0));
      rows += shape[0];
    }
    return join(Traits::shape(first()).with(0, rows));
  }
  /// All of them along a new first dimension.
  /// @throws ConfigError if there are none, or their shapes differ
  [[nodiscard]] T stack() const {
    for (const T& value : values_) expect(Traits::shape(value), Traits::shape(values_.front()));
    return join(Traits::shape(first()).prepended(static_cast<std::int64_t>(size())));
  }

 private:
  [[nodiscard]] const T& first() const {
    if (values_.empty()) throw ConfigError("this rank has run no micro-batch in this step");
    return values_.front();
  }
  static void expect(const Shape& found, const Shape& expected) {
    if (found == expected) return;
    throw ConfigError("micro-batches have returned tensors of different shapes: " + to_string(expected) + " and " +
                      to_string(found));
  }
  template <class Weight>
  [[nodiscard]] T combine(Weight weight) const {
    T result = Traits::make(memory(), Traits::shape(first()));
    const auto out = Traits::data(result);
    std::fill(out.begin(), out.end(), element{});
    for (std::size_t m = 0; m < size(); ++m) {
      expect(Traits::shape(values_[m]), Traits::shape(values_.front()));
      const auto in = Traits::data(values_[m]);
      const auto factor = static_cast<element>(weight(samples_[m]));
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<element>(out[i] + factor * in[i]);
    }
    return result;
  }
  [[nodiscard]] T join(const Shape& shape) const {
    T result = Traits::make(memory(), shape);
    auto* to = Traits::data(result).data();
    for (const T& value : values_) {
      const auto in = Traits::data(value);
      to = std::copy(in.begin(), in.end(), to);
    }
    return result;
  }
  [[nodiscard]] Memory& memory() const noexcept { return values_.get_allocator().memory(); }

  MemoryVector<T> values_;
  MemoryVector<std::int64_t> samples_;
};

}  // namespace smp
