// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A batch is a value whose tensors have the samples along one of their dimensions, usually the first. How it is cut.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

#include <smp/batch_plan.hpp>
#include <smp/device/memory.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// Along which dimension each tensor of a batch has the samples, in the order of the tensors: the first one if nothing
/// is said.
using SampleAxes = std::array<int, 8>;

/// Said of a tensor: it has no samples, and every micro-batch gets all of it.
inline constexpr int not_split = -1;

/// How a type of yours that is no tensor, or made of some, is cut as a batch. Specialise it, with
/// `static std::int64_t size(const B&)`, the number of samples, and `static B slice(const B&, SampleRange)`.
template <class B>
struct BatchTraits {};

/// A type that says itself how it is cut.
template <class B>
concept CutByTraits = requires(const B& batch, SampleRange range) {
  { BatchTraits<B>::size(batch) } -> std::convertible_to<std::int64_t>;
  { BatchTraits<B>::slice(batch, range) } -> std::same_as<B>;
};

/// Calls `f(part)` for each part of a batch that is cut by itself: tensors, and values with `BatchTraits`.
template <class V, class F>
void for_each_batch_part(V& value, F&& f) {
  using Plain = std::remove_cv_t<V>;
  if constexpr (CutByTraits<Plain> || TensorLike<Plain>) {
    f(value);
  } else if constexpr (is_dist<Plain>) {
    for_each_batch_part(value.local, f);
  } else if constexpr (HasFields<Plain>) {
    for_each_field(value, [&](auto& member, const auto&) { for_each_batch_part(member, f); });
  } else if constexpr (requires { value.begin(), value.end(); }) {
    for (auto& element : value) for_each_batch_part(element, f);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... element) { (for_each_batch_part(element, f), ...); }, value);
  }
}

/// @throws ConfigError that says that a part of a batch has not the samples that others have
template <class T>
[[noreturn]] void refuse_samples(const T& part, int axis, std::int64_t samples) {
  std::string what = "a value has " + std::string(samples < 0 ? "none" : "others");
  if constexpr (!CutByTraits<T>) what = "one has the shape " + to_string(TensorTraits<T>::shape(part));
  throw ConfigError("all tensors of a batch have the samples along " +
                    (axis == 0 ? std::string("their first dimension") : "dimension " + std::to_string(axis)) +
                    ", but " + what +
                    (samples < 0 ? "" : " where another has " + std::to_string(samples) + " samples"));
}

/// The number of samples of a batch.
/// @throws ConfigError if its tensors have different numbers of them
template <class V>
[[nodiscard]] std::int64_t batch_size(const V& batch, const SampleAxes& axes = {}) {
  std::int64_t samples = -1;
  std::size_t next = 0;
  for_each_batch_part(batch, [&]<class T>(const T& part) {
    const int axis = next < axes.size() ? axes[next] : 0;
    ++next;
    if (axis == not_split) return;
    std::int64_t own = -1;
    if constexpr (CutByTraits<T>) {
      own = BatchTraits<T>::size(part);
    } else if (const Shape& shape = TensorTraits<T>::shape(part);
               axis >= 0 && static_cast<std::size_t>(axis) < shape.rank()) {
      own = shape[axis];
    }
    if (own < 0 || (samples >= 0 && own != samples)) refuse_samples(part, axis, samples);
    samples = own;
  });
  return samples < 0 ? 0 : samples;
}

/// The samples of `range` along dimension `axis` of a tensor, which is in host memory: a copy.
template <TensorLike T>
[[nodiscard]] T slice_along(Memory& memory, const T& tensor, int axis, SampleRange range) {
  const Shape& shape = TensorTraits<T>::shape(tensor);
  T part = TensorTraits<T>::make(memory, shape.with(axis, range.size()));
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < axis; ++d) outer *= shape[d];
  for (int d = axis + 1; d < static_cast<int>(shape.rank()); ++d) inner *= shape[d];
  const auto* from = TensorTraits<T>::data(tensor).data() + range.first * inner;
  auto* to = TensorTraits<T>::data(part).data();
  for (std::int64_t o = 0; o < outer; ++o, from += shape[axis] * inner) {
    to = std::copy(from, from + range.size() * inner, to);
  }
  return part;
}

/// The samples of `range`: along first dimensions the same storage where the type of tensor allows it, along others
/// copies from `memory`.
/// @throws ConfigError if it is needed and null
template <class V>
[[nodiscard]] V batch_slice(const V& batch, SampleRange range, const SampleAxes& axes = {}, Memory* memory = nullptr) {
  V part = batch;
  std::size_t next = 0;
  for_each_batch_part(part, [&]<class T>(T& each) {
    const int axis = next < axes.size() ? axes[next] : 0;
    ++next;
    if (axis == not_split) return;
    if constexpr (CutByTraits<T>) {
      each = BatchTraits<T>::slice(each, range);
    } else {
      constexpr bool can_be_cut = requires { TensorTraits<T>::slice(each, range.first, range.size()); };
      static_assert(can_be_cut, "smp: a batch of this type of tensor cannot be cut; give its TensorTraits a 'slice'");
      if constexpr (can_be_cut) {
        if (axis != 0 && memory == nullptr) throw ConfigError("a batch is cut along another dimension than the first");
        each = axis == 0 ? TensorTraits<T>::slice(each, range.first, range.size())
                         : slice_along(*memory, each, axis, range);
      }
    }
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
