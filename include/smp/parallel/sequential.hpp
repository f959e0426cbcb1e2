// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Modules one after the other.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/parallel/boundary.hpp>

namespace smp {

/// The output of each module is the input of the next one. Children are named "0", "1", ..., or as `named` says. Plain
/// and typed modules mix: a plain one passes on how the value it gets is distributed.
template <class... Ms>
class Sequential {
  static_assert(sizeof...(Ms) > 0, "smp::Sequential: needs at least one module");
  static constexpr std::size_t count = sizeof...(Ms);

  // The joints from the first child on; `D` is how the value that arrives is distributed.
  template <class D, class... Rest>
  struct Chain {
    using type = std::tuple<>;
  };
  template <class D, class M, class... Rest>
  struct Chain<D, M, Rest...> {
    using Here = Joint<M, D>;
    using type = decltype(std::tuple_cat(std::declval<std::tuple<Here>>(),
                                         std::declval<typename Chain<typename Here::Next, Rest...>::type>()));
  };
  using Joints = typename Chain<EntryTags<Ms...>, Ms...>::type;

 public:
  /// Where child `I` stands: its types as its neighbours see them.
  template <std::size_t I>
  using JointAt = std::tuple_element_t<I, Joints>;

 private:
  template <std::size_t... I>
  static consteval bool expect_joints(std::index_sequence<I...>) {
    return (expect_input<typename JointAt<I>::Output, typename JointAt<I + 1>::Input>() && ...);
  }
  static_assert(expect_joints(std::make_index_sequence<count - 1>{}));

 public:
  using Input = typename JointAt<0>::Input;            ///< of the first child
  using Output = typename JointAt<count - 1>::Output;  ///< of the last child
  using Saved = std::tuple<typename Ms::Saved...>;     ///< of all children

  Sequential()
    requires(std::is_default_constructible_v<Ms> && ...)
  = default;
  /// The children, in order.
  explicit Sequential(Ms... children) : children_(std::move(children)...) {}
  /// The same with other names for the children, which become part of the names of their parameters.
  [[nodiscard]] Sequential named(const std::array<std::string_view, count>& names) && {
    names_ = names;
    return std::move(*this);
  }

  /// Calls `f(name, child, unit slot, around)` for each child; `around` is what is around the parameters of a plain
  /// one.
  template <class F>
  void children(F&& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (f(name(I), std::get<I>(children_), units_[I], typename JointAt<I>::Outside{}), ...);
    }(std::make_index_sequence<count>{});
  }
  /// A child by its number.
  template <std::size_t I>
  [[nodiscard]] auto& child() noexcept {
    return std::get<I>(children_);
  }
  /// A child by its number.
  template <std::size_t I>
  [[nodiscard]] const auto& child() const noexcept {
    return std::get<I>(children_);
  }
  /// What a child is called.
  [[nodiscard]] std::string name(std::size_t child) const {
    return names_[child].empty() ? std::to_string(child) : std::string(names_[child]);
  }
  /// The unit of a child, once a layout has made it.
  [[nodiscard]] Unit*& unit(std::size_t child) noexcept { return units_[child]; }

  /// All children, in order.
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return forward_through<count - 1>(ctx, x, saved); }
  /// All children, from the last to the first.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return backward_through<0>(ctx, std::move(dy), saved);
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return backward_input_through<0>(ctx, std::move(dy), saved);
  }
  /// The gradients of the parameters.
  void backward_params(auto& ctx, Saved& saved) { backward_params_from<count - 1>(ctx, saved); }

  /// One child, in its unit; for who runs the children one by one.
  template <std::size_t I>
  auto forward_child(auto& ctx, const typename JointAt<I>::Input& x, Saved& saved) const {
    return ctx.unit(units_[I], Phase::forward,
                    [&] { return JointAt<I>::forward(std::get<I>(children_), ctx, x, std::get<I>(saved)); });
  }
  /// The backward of one child.
  template <std::size_t I>
  auto backward_child(auto& ctx, GradOf<typename JointAt<I>::Output>&& dy, Saved& saved) {
    return ctx.unit(units_[I], Phase::backward, [&] {
      return JointAt<I>::backward(std::get<I>(children_), ctx, std::move(dy), std::get<I>(saved));
    });
  }
  /// The first part of the backward of one child.
  template <std::size_t I>
  auto backward_input_child(auto& ctx, GradOf<typename JointAt<I>::Output>&& dy, Saved& saved) {
    return ctx.unit(units_[I], Phase::backward_input, [&] {
      return JointAt<I>::backward_input(std::get<I>(children_), ctx, std::move(dy), std::get<I>(saved));
    });
  }
  /// The second part of the backward of one child.
  template <std::size_t I>
  void backward_params_child(auto& ctx, Saved& saved) {
    ctx.unit(units_[I], Phase::backward_params,
             [&] { JointAt<I>::backward_params(std::get<I>(children_), ctx, std::get<I>(saved)); });
  }

 private:
  // Each value is a temporary of the call that uses it, so that nothing lives longer than it is needed.
  template <std::size_t I>
  auto forward_through(auto& ctx, const Input& x, Saved& saved) const {
    if constexpr (I == 0) {
      return forward_child<0>(ctx, x, saved);
    } else {
      return forward_child<I>(ctx, forward_through<I - 1>(ctx, x, saved), saved);
    }
  }

  template <std::size_t I>
  auto backward_through(auto& ctx, GradOf<Output>&& dy, Saved& saved) {
    if constexpr (I == count - 1) {
      return backward_child<I>(ctx, std::move(dy), saved);
    } else {
      return backward_child<I>(ctx, backward_through<I + 1>(ctx, std::move(dy), saved), saved);
    }
  }

  template <std::size_t I>
  auto backward_input_through(auto& ctx, GradOf<Output>&& dy, Saved& saved) {
    if constexpr (I == count - 1) {
      return backward_input_child<I>(ctx, std::move(dy), saved);
    } else {
      return backward_input_child<I>(ctx, backward_input_through<I + 1>(ctx, std::move(dy), saved), saved);
    }
  }

  template <std::size_t I>
  void backward_params_from(auto& ctx, Saved& saved) {
    backward_params_child<I>(ctx, saved);
    if constexpr (I > 0) backward_params_from<I - 1>(ctx, saved);
  }

  std::tuple<Ms...> children_;
  std::array<Unit*, count> units_{};
  std::array<std::string_view, count> names_{};
};

}  // namespace smp
