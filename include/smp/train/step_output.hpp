// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What the micro-batches of a step have returned.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include <smp/device/memory_allocator.hpp>
#include <smp/error.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// A value of each micro-batch, in order: a tensor, or a tuple, a struct or a `Dist` of tensors, each of which is
/// combined by itself. Their contents are there when the stream has been waited for; `step`, `evaluate` and `predict`
/// have done so.
template <class V>
class StepOutput {
 public:
  /// Room for `microbatches` values.
  StepOutput(Memory& memory, int microbatches)
      : values_(MemoryAllocator<V>(memory)), samples_(MemoryAllocator<std::int64_t>(memory)) {
    values_.reserve(static_cast<std::size_t>(microbatches));
    samples_.reserve(static_cast<std::size_t>(microbatches));
  }

  /// Adds what a micro-batch of `samples` samples has returned.
  void add(V value, std::int64_t samples) {
    values_.push_back(std::move(value));
    samples_.push_back(samples);
  }

  /// Number of micro-batches.
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  /// Of one micro-batch.
  [[nodiscard]] const V& operator[](std::size_t microbatch) const noexcept { return values_[microbatch]; }

  /// The sum of all, element by element.
  /// @throws ConfigError if there are none, or their shapes differ
  [[nodiscard]] V reduce_sum() const {
    return combine([](std::int64_t) { return 1.0; });
  }
  /// The mean over the samples: micro-batches count by their number of samples.
  /// @throws ConfigError as `reduce_sum`
  [[nodiscard]] V reduce_mean() const {
    std::int64_t all = 0;
    for (const std::int64_t n : samples_) all += n;
    return combine([all](std::int64_t n) { return static_cast<double>(n) / static_cast<double>(all); });
  }
  /// All rows, one after the other.
  /// @throws ConfigError if there are none, or their shapes differ in more than the first dimension
  [[nodiscard]] V concat() const {
    return for_each_place([&]<class T>(const T& first, const auto& others) {
      std::int64_t rows = 0;
      others([&](const T& value, std::int64_t) {
        const Shape& shape = TensorTraits<T>::shape(value);
        if (shape.rank() == 0)
          throw ConfigError("values without dimensions cannot be joined along the first one; stack them");
        expect(shape.with(0, 0), TensorTraits<T>::shape(first).with(0, 0));
        rows += shape[0];
      });
      return join(first, TensorTraits<T>::shape(first).with(0, rows), others);
    });
  }
  /// All of them along a new first dimension.
  /// @throws ConfigError if there are none, or their shapes differ
  [[nodiscard]] V stack() const {
    return for_each_place([&]<class T>(const T& first, const auto& others) {
      const Shape& shape = TensorTraits<T>::shape(first);
      others([&](const T& value, std::int64_t) { expect(TensorTraits<T>::shape(value), shape); });
      return join(first, shape.prepended(static_cast<std::int64_t>(size())), others);
    });
  }

 private:
  /// A value of which each tensor is `f(first, others)`: the tensor in its place of the first micro-batch, and what
  /// calls a function with that of each and its number of samples.
  template <class F>
  [[nodiscard]] V for_each_place(F&& f) const {
    if (values_.empty()) throw ConfigError("this rank has run no micro-batch in this step");
    V result = values_.front();
    std::size_t place = 0;
    for_each_tensor(result, [&]<class T>(T& tensor) {
      const auto others = [&, here = place](auto&& each) {
        for (std::size_t m = 0; m < size(); ++m) {
          std::size_t at = 0;
          for_each_tensor(values_[m], [&]<class U>(const U& other) {
            if constexpr (std::is_same_v<T, U>) {
              if (at == here) each(other, samples_[m]);
            }
            ++at;
          });
        }
      };
      const T first = tensor;
      tensor = f(first, others);
      ++place;
    });
    return result;
  }
  static void expect(const Shape& found, const Shape& expected) {
    if (found == expected) return;
    throw ConfigError("micro-batches have returned tensors of different shapes: " + to_string(expected) + " and " +
                      to_string(found));
  }
  template <class Weight>
  [[nodiscard]] V combine(Weight weight) const {
    return for_each_place([&]<class T>(const T& first, const auto& others) {
      using Element = typename TensorTraits<T>::element;
      T result = TensorTraits<T>::make(memory(), TensorTraits<T>::shape(first));
      const auto out = TensorTraits<T>::data(result);
      std::fill(out.begin(), out.end(), Element{});
      others([&](const T& value, std::int64_t samples) {
        expect(TensorTraits<T>::shape(value), TensorTraits<T>::shape(first));
        const auto in = TensorTraits<T>::data(value);
        const auto factor = static_cast<Element>(weight(samples));
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Element>(out[i] + factor * in[i]);
      });
      return result;
    });
  }
  template <class T, class Others>
  [[nodiscard]] T join(const T&, const Shape& shape, const Others& others) const {
    T result = TensorTraits<T>::make(memory(), shape);
    auto* to = TensorTraits<T>::data(result).data();
    others([&](const T& value, std::int64_t) {
      const auto in = TensorTraits<T>::data(value);
      to = std::copy(in.begin(), in.end(), to);
    });
    return result;
  }
  [[nodiscard]] Memory& memory() const noexcept { return values_.get_allocator().memory(); }

  MemoryVector<V> values_;
  MemoryVector<std::int64_t> samples_;
};

}  // namespace smp
