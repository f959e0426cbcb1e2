// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The array that schedules are written in: sized at run time, usable in constant expressions of all three compilers.

#include <utility>

namespace smp {

/// A growable array indexed by `int`. Unlike `std::vector` it costs a constant evaluation one step per access and one
/// per allocation, not several per element: a `static_assert` of a schedule stays inside the default limits of g++,
/// clang and nvcc.
template <class T>
class Table {
 public:
  /// No elements.
  constexpr Table() = default;
  /// `size` elements, each a `T{}`.
  constexpr explicit Table(int size) : data_(size > 0 ? allocate(size) : nullptr), size_(size), capacity_(size) {}
  /// `size` copies of `value`.
  constexpr Table(int size, const T& value) : Table(size) {
    for (int i = 0; i < size_; ++i) data_[i] = value;
  }
  /// Copies the elements.
  constexpr Table(const Table& other) : Table(other.size_) {
    for (int i = 0; i < size_; ++i) data_[i] = other.data_[i];
  }
  /// Leaves `other` empty.
  constexpr Table(Table&& other) noexcept { swap(other); }
  constexpr Table& operator=(const Table& other) {
    if (this != &other) *this = Table(other);
    return *this;
  }
  constexpr Table& operator=(Table&& other) noexcept {
    Table taken(std::move(other));
    swap(taken);
    return *this;
  }
  constexpr ~Table() { delete[] data_; }

  [[nodiscard]] constexpr int size() const noexcept { return size_; }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T& operator[](int i) noexcept { return data_[i]; }
  constexpr const T& operator[](int i) const noexcept { return data_[i]; }
  [[nodiscard]] constexpr T* begin() noexcept { return data_; }
  [[nodiscard]] constexpr T* end() noexcept { return data_ + size_; }
  [[nodiscard]] constexpr const T* begin() const noexcept { return data_; }
  [[nodiscard]] constexpr const T* end() const noexcept { return data_ + size_; }

  /// Adds an element behind the last.
  constexpr void append(T value) {
    if (size_ == capacity_) reserve(capacity_ < 8 ? 16 : 2 * capacity_);
    data_[size_++] = value;
  }
  /// Takes the last element off. @pre not empty()
  constexpr T take_last() { return data_[--size_]; }

  /// Room for `capacity` elements before the next allocation.
  constexpr void reserve(int capacity) {
    if (capacity <= capacity_) return;
    T* grown = allocate(capacity);
    for (int i = 0; i < size_; ++i) grown[i] = data_[i];
    delete[] data_;
    data_ = grown;
    capacity_ = capacity;
  }

  friend constexpr bool operator==(const Table& a, const Table& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i)
      if (!(a.data_[i] == b.data_[i])) return false;
    return true;
  }

 private:
  static constexpr T* allocate(int size) { return new T[static_cast<decltype(sizeof(T))>(size)](); }
  constexpr void swap(Table& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  int size_ = 0, capacity_ = 0;
};

}  // namespace smp
