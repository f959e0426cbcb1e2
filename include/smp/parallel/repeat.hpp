// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// One module many times: the depth of a model is a number at run time and costs nothing at compile time.

#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/parallel/boundary.hpp>

namespace smp {

/// What repeated modules have saved. Assigning an empty list frees what the elements hold and keeps the elements, so
/// that the next micro-batch allocates nothing.
template <class S>
class SavedList {
 public:
  SavedList() = default;
  SavedList(const SavedList&) = default;
  SavedList(SavedList&&) noexcept = default;
  SavedList& operator=(const SavedList&) = default;
  /// Takes the elements of `other`, or empties its own if there are none.
  SavedList& operator=(SavedList&& other) noexcept {
    if (!other.items_.empty()) {
      items_.swap(other.items_);
    } else {
      for (S& item : items_) item = S{};
    }
    return *this;
  }
  ~SavedList() = default;

  /// Makes room for `count` elements.
  void resize(std::size_t count) {
    if (items_.size() != count) items_.resize(count);
  }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return items_.size(); }
  /// An element.
  [[nodiscard]] S& operator[](std::size_t i) noexcept { return items_[i]; }
  /// The first element.
  [[nodiscard]] auto begin() noexcept { return items_.begin(); }
  /// Behind the last element.
  [[nodiscard]] auto end() noexcept { return items_.end(); }
  /// The first element.
  [[nodiscard]] auto begin() const noexcept { return items_.begin(); }
  /// Behind the last element.
  [[nodiscard]] auto end() const noexcept { return items_.end(); }

 private:
  std::vector<S> items_;
};

/// Says in words why a module cannot be repeated.
template <class M>
consteval bool expect_repeatable() {
  constexpr bool ends_as_it_begins = std::is_same_v<typename M::Input, typename M::Output>;
  static_assert(ends_as_it_begins,
                "smp::Repeat: the block must end as it begins: the same type, distributed in the same way");
  return true;
}

/// `M` several times, one after the other. Children are named "0", "1", ...; each is a unit.
template <class M>
class Repeat {
  static_assert(expect_repeatable<M>());

 public:
  using value_type = M;                             ///< an element
  using Input = typename M::Input;                  ///< of each element
  using Output = typename M::Output;                ///< the same type
  using Saved = SavedList<typename M::Saved>;       ///< of all elements
  static constexpr bool elements_are_units = true;  ///< for the layout

  Repeat() = default;
  /// @param make is called as `make(i)` for each element and returns an `M`
  template <class F>
  Repeat(std::size_t count, F&& make) {
    elements_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) elements_.push_back(make(i));
    units_.resize(count);
  }

  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  /// An element.
  [[nodiscard]] M& operator[](std::size_t i) noexcept { return elements_[i]; }
  /// An element.
  [[nodiscard]] const M& operator[](std::size_t i) const noexcept { return elements_[i]; }
  /// The unit of an element, once a layout has made it.
  [[nodiscard]] Unit*& unit(std::size_t i) noexcept { return units_[i]; }
  /// The unit of an element.
  [[nodiscard]] Unit* unit(std::size_t i) const noexcept { return units_[i]; }
  /// Calls `f(name, child, unit slot)` for each element.
  template <class F>
  void children(F&& f) {
    for (std::size_t i = 0; i < size(); ++i) f(std::to_string(i), elements_[i], units_[i]);
  }

  /// All elements, in order.
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    static_assert(expect_module<M, Ctx>());
    saved.resize(size());
    Output y = x;
    for (std::size_t i = 0; i < size(); ++i) {
      y = ctx.unit(units_[i], Phase::forward, [&] { return elements_[i].forward(ctx, y, saved[i]); });
    }
    return y;
  }
  /// All elements, from the last to the first.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    for (std::size_t i = size(); i-- > 0;) {
      dy = ctx.unit(units_[i], Phase::backward, [&] { return elements_[i].backward(ctx, std::move(dy), saved[i]); });
      saved[i] = typename M::Saved{};
    }
    return dy;
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    for (std::size_t i = size(); i-- > 0;) {
      dy = ctx.unit(units_[i], Phase::backward_input,
                    [&] { return smp::backward_input(elements_[i], ctx, std::move(dy), saved[i]); });
    }
    return dy;
  }
  /// The gradients of the parameters.
  void backward_params(auto& ctx, Saved& saved) {
    for (std::size_t i = size(); i-- > 0;) {
      ctx.unit(units_[i], Phase::backward_params, [&] { smp::backward_params(elements_[i], ctx, saved[i]); });
      saved[i] = typename M::Saved{};
    }
  }

 private:
  std::vector<M> elements_;
  std::vector<Unit*> units_;
};

}  // namespace smp
