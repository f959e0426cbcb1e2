// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The tensor that modules pass on, and the trait through which tensors of users take its place.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <smp/device/memory.hpp>
#include <smp/distribution.hpp>
#include <smp/error.hpp>
#include <smp/fields.hpp>

namespace smp {

/// The sizes of a tensor, the slowest dimension first: at most six of them.
class Shape {
 public:
  /// Most dimensions.
  static constexpr std::size_t max_rank = 6;

  constexpr Shape() = default;
  /// @throws ConfigError for a negative size or too many dimensions
  constexpr Shape(std::initializer_list<std::int64_t> sizes) {
    if (sizes.size() > max_rank) throw ConfigError("a tensor has at most 6 dimensions");
    for (const std::int64_t n : sizes) {
      if (n < 0) throw ConfigError("a tensor cannot have the size " + std::to_string(n));
      sizes_[rank_++] = n;
    }
  }

  /// Number of dimensions.
  [[nodiscard]] constexpr std::size_t rank() const noexcept { return rank_; }
  /// Size of dimension `d`; a negative one counts from the last.
  [[nodiscard]] constexpr std::int64_t operator[](int d) const noexcept {
    return sizes_[static_cast<std::size_t>(d < 0 ? d + static_cast<int>(rank_) : d)];
  }
  /// Number of elements; 1 without dimensions.
  [[nodiscard]] constexpr std::size_t elements() const noexcept {
    std::size_t n = 1;
    for (std::size_t d = 0; d < rank_; ++d) n *= static_cast<std::size_t>(sizes_[d]);
    return n;
  }
  /// The same shape with another size in dimension `d`.
  [[nodiscard]] constexpr Shape with(int d, std::int64_t size) const noexcept {
    Shape s = *this;
    s.sizes_[static_cast<std::size_t>(d < 0 ? d + static_cast<int>(rank_) : d)] = size;
    return s;
  }
  /// The same shape behind a new first dimension.
  /// @throws ConfigError if it has the most dimensions already
  [[nodiscard]] constexpr Shape prepended(std::int64_t size) const {
    if (rank_ == max_rank) throw ConfigError("a tensor has at most 6 dimensions");
    Shape s;
    s.sizes_[s.rank_++] = size;
    for (std::size_t d = 0; d < rank_; ++d) s.sizes_[s.rank_++] = sizes_[d];
    return s;
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, max_rank> sizes_{};
  std::size_t rank_ = 0;
};

/// "[8, 64, 128]"
[[nodiscard]] inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(shape[static_cast<int>(d)]);
  }
  return text + "]";
}

/// Contiguous elements, row by row, behind a handle: copies refer to the same elements. What has been handed on is not
/// changed any more; who makes a tensor fills it before.
template <class T>
class TensorOf {
 public:
  using value_type = T;  ///< of the elements

  /// No elements, no storage.
  TensorOf() noexcept = default;
  /// Elements that are not initialised.
  TensorOf(Memory& memory, const Shape& shape, MemoryUse use = MemoryUse::activation)
      : storage_(memory.allocate(shape.elements() * sizeof(T), use)), shape_(shape) {}

  TensorOf(const TensorOf& other) noexcept : storage_(other.storage_), offset_(other.offset_), shape_(other.shape_) {
    if (storage_ != nullptr) storage_->handles.fetch_add(1, std::memory_order_relaxed);
  }
  TensorOf(TensorOf&& other) noexcept
      : storage_(std::exchange(other.storage_, nullptr)),
        offset_(std::exchange(other.offset_, 0)),
        shape_(std::exchange(other.shape_, Shape{})) {}
  // Not one operator that takes its argument by value: clang 16 forgets to destroy that in `t = {}` inside a template.
  TensorOf& operator=(const TensorOf& other) noexcept { return *this = TensorOf(other); }
  TensorOf& operator=(TensorOf&& other) noexcept {
    TensorOf taken(std::move(other));
    std::swap(storage_, taken.storage_);
    std::swap(offset_, taken.offset_);
    std::swap(shape_, taken.shape_);
    return *this;
  }
  ~TensorOf() {
    if (storage_ != nullptr && storage_->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      storage_->owner->keep(storage_);
    }
  }

  /// The sizes.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return storage_ == nullptr ? 0 : shape_.elements(); }
  /// True if there is no storage.
  [[nodiscard]] bool empty() const noexcept { return storage_ == nullptr; }
  /// The elements, to read.
  [[nodiscard]] const T* data() const noexcept { return storage_ == nullptr ? nullptr : bytes(); }
  /// The elements, to fill.
  [[nodiscard]] T* data() noexcept { return storage_ == nullptr ? nullptr : bytes(); }
  /// A range of elements, as communicators take it.
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  /// Behind the last element.
  [[nodiscard]] const T* end() const noexcept { return data() + size(); }
  /// A range of elements, to fill.
  [[nodiscard]] T* begin() noexcept { return data(); }
  /// Behind the last element.
  [[nodiscard]] T* end() noexcept { return data() + size(); }
  /// The rows `first` to `first + count` along the first dimension: a handle to the same elements.
  /// @throws ConfigError if there are no such rows
  [[nodiscard]] TensorOf slice(std::int64_t first, std::int64_t count) const {
    if (shape_.rank() == 0 || first < 0 || count < 0 || first + count > shape_[0]) {
      throw ConfigError("a tensor of shape " + to_string(shape_) + " has no rows " + std::to_string(first) + " to " +
                        std::to_string(first + count));
    }
    TensorOf part = *this;
    part.shape_ = shape_.with(0, count);
    part.offset_ += shape_.with(0, first).elements();
    return part;
  }
  /// The same elements in another shape.
  /// @throws ConfigError if that has another number of elements
  [[nodiscard]] TensorOf reshaped(const Shape& shape) const {
    if (shape.elements() != shape_.elements()) {
      throw ConfigError("a tensor of shape " + to_string(shape_) + " cannot become " + to_string(shape));
    }
    TensorOf same = *this;
    same.shape_ = shape;
    return same;
  }
  /// Handles that refer to the elements.
  [[nodiscard]] int handles() const noexcept {
    return storage_ == nullptr ? 0 : storage_->handles.load(std::memory_order_relaxed);
  }

 private:
  static_assert(std::is_trivially_copyable_v<T>, "smp::TensorOf: elements must be trivially copyable");
  [[nodiscard]] T* bytes() const noexcept { return reinterpret_cast<T*>(storage_->data()) + offset_; }

  Memory::Storage* storage_ = nullptr;
  std::size_t offset_ = 0;  // elements before the first
  Shape shape_{};
};

using Tensor = TensorOf<float>;     ///< activations in single precision
using Tensor64 = TensorOf<double>;  ///< activations in double precision

/// Token or class numbers, masks: values that have no gradient.
using Ids = TensorOf<std::int32_t>;

template <>
struct GradOfT<Ids> {
  using type = NoGrad;
};

/// How a type of tensor is looked at. Specialise it for tensors of your own: with `element`, `data`, `shape`, `make`,
/// which returns one of a shape whose elements are to be filled, and `slice`, which returns some rows (the same
/// elements or a copy), for batches that are cut.
template <class T>
struct TensorTraits {};

template <class T>
struct TensorTraits<TensorOf<T>> {
  using element = T;  ///< of the tensor
  /// The elements, row by row.
  static std::span<const T> data(const TensorOf<T>& t) noexcept { return {t.data(), t.size()}; }
  /// The elements of a tensor that nobody else has yet.
  static std::span<T> data(TensorOf<T>& t) noexcept { return {t.data(), t.size()}; }
  /// The sizes.
  static const Shape& shape(const TensorOf<T>& t) noexcept { return t.shape(); }
  /// A tensor to fill.
  static TensorOf<T> make(Memory& memory, const Shape& shape) { return TensorOf<T>(memory, shape); }
  /// Nobody else has it: its elements may be changed.
  static bool sole(const TensorOf<T>& t) noexcept { return t.handles() == 1; }
  /// Some rows along the first dimension.
  static TensorOf<T> slice(const TensorOf<T>& t, std::int64_t first, std::int64_t count) {
    return t.slice(first, count);
  }
};

/// A type that stands for a tensor: ours, or one with `TensorTraits`.
template <class T>
concept TensorLike = requires { typename TensorTraits<T>::element; };

template <class T>
struct GradOfFields;
template <class... Fields>
struct GradOfFields<std::tuple<Fields...>> {
  using type = std::tuple<GradOf<typename Fields::type>...>;
};
template <HasFields T>
struct GradOfT<T> : GradOfFields<decltype(FieldsOf<T>::fields())> {};

/// Calls `f(tensor)` for each tensor of a value: a tensor, a `Dist` of one, a tuple, array or vector of such values, or
/// a struct that lists its members with `fields()`. Inputs, outputs and `Saved` of modules are such values; members
/// that are none (numbers, generator positions) are passed over. An `f` that takes two is called as `f(tensor, tag)`:
/// how the `Dist` around the tensor is distributed over the tensor-parallel ranks (`Invariant`, ...), or NoTags.
/// @tparam Tp the tag of what is not in a `Dist` of its own
template <class Tp = NoTags, class V, class F>
void for_each_tensor(V& value, F&& f) {
  using Plain = std::remove_cv_t<V>;
  if constexpr (TensorLike<Plain>) {
    if constexpr (std::is_invocable_v<F&, V&, Tp>) {
      f(value, Tp{});
    } else {
      f(value);
    }
  } else if constexpr (is_dist<Plain>) {
    for_each_tensor<typename Plain::tp>(value.local, f);
  } else if constexpr (HasFields<Plain>) {
    for_each_field(value, [&](auto& member, const auto&) { for_each_tensor<Tp>(member, f); });
  } else if constexpr (requires { value.begin(), value.end(); }) {
    for (auto& element : value) for_each_tensor<Tp>(element, f);
  } else if constexpr (requires { std::tuple_size<Plain>::value; }) {
    std::apply([&](auto&... element) { (for_each_tensor<Tp>(element, f), ...); }, value);
  }
}

}  // namespace smp
