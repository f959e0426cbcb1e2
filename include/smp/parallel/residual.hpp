// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The sum of a value and of what a module makes of it (He, Zhang, Ren, Sun: Deep Residual Learning, 2016).

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/device/vectorized.hpp>
#include <smp/error.hpp>
#include <smp/parallel/boundary.hpp>

namespace smp {

/// Says in words why the result of a module cannot be added to its input.
template <class M>
consteval bool expect_residual() {
  using In = TagsOf<typename M::Input>;
  using Out = TagsOf<typename M::Output>;
  if constexpr (!std::is_same_v<In, Out> && !std::is_same_v<In, NoTags> && !std::is_same_v<Out, NoTags>) {
    constexpr bool sum_pending = Out::tp::on.kind == Spread::partial || Out::cp::on.kind == Spread::partial;
    static_assert(!sum_pending,
                  "smp::Residual: adds a Partial (a sum over tp still pending) to a finished value: x would be counted "
                  "once per tp rank; end the branch with AllReduce or ReduceScatter");
  }
  constexpr bool ends_as_it_begins = std::is_same_v<typename M::Input, typename M::Output>;
  static_assert(ends_as_it_begins,
                "smp::Residual: the branch must end as it begins: the same type, distributed in the same way");
  return true;
}

/// a + b, element by element, for the tensors of two values; what has no gradient (ids, masks) is `b`'s.
/// @throws ConfigError if two tensors differ in size
template <class X>
[[nodiscard]] X sum_of(auto& ctx, const X& a, X b) {
  if constexpr (std::is_same_v<GradOf<X>, NoGrad> || std::is_same_v<X, NoGrad>) {
    return b;
  } else if constexpr (is_dist<X>) {
    return {sum_of(ctx, a.local, std::move(b.local))};
  } else if constexpr (TensorLike<X>) {
    using Traits = TensorTraits<X>;
    if (Traits::data(a).size() != Traits::data(std::as_const(b)).size()) {
      throw ConfigError("a residual adds " + std::to_string(Traits::data(a).size()) + " elements to " +
                        std::to_string(Traits::data(std::as_const(b)).size()) + ": the branch has changed the size");
    }
    const auto add = [&ctx](const auto* p, const auto* q, auto* y, std::size_t n) {
      ctx.stream().enqueue(
          [p, q, y, n] { vectorized([=](auto unit) { add_arrays(unit, static_cast<std::int64_t>(n), p, q, y); }); });
    };
    // Nobody else sees a result that the branch has let go of: it can take the sum.
    if constexpr (requires { Traits::sole(b); }) {
      if (!Traits::sole(b)) {
        X y = Traits::make(ctx.memory(), Traits::shape(a));
        add(Traits::data(a).data(), Traits::data(std::as_const(b)).data(), Traits::data(y).data(),
            Traits::data(a).size());
        return y;
      }
    }
    add(Traits::data(a).data(), Traits::data(std::as_const(b)).data(), Traits::data(b).data(), Traits::data(a).size());
    return b;
  } else if constexpr (HasFields<X>) {
    for_each_field(
        b, [&](auto& member, const auto& field) { member = sum_of(ctx, a.*(field.member), std::move(member)); });
    return b;
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return X{sum_of(ctx, std::get<I>(a), std::get<I>(std::move(b)))...};
    }(std::make_index_sequence<std::tuple_size_v<X>>{});
  }
}

/// x + M(x).
template <class M>
class Residual {
  static_assert(expect_residual<M>());

 public:
  using Input = typename M::Input;    ///< of the branch
  using Output = typename M::Output;  ///< the same type
  using Saved = typename M::Saved;    ///< of the branch

  Residual()
    requires std::is_default_constructible_v<M>
  = default;
  /// The branch.
  explicit Residual(M branch) : branch_(std::move(branch)) {}

  /// The branch.
  [[nodiscard]] M& inner() noexcept { return branch_; }

  /// x + M(x).
  template <class Ctx>
  Output forward(Ctx& ctx, const Input& x, Saved& saved) const {
    static_assert(expect_module<M, Ctx>());
    return sum_of(ctx, x, branch_.forward(ctx, x, saved));
  }
  /// dy + the branch's gradient of its input.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return sum_of(ctx, dy, branch_.backward(ctx, dy, saved));
  }
  /// The first part.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return sum_of(ctx, dy, smp::backward_input(branch_, ctx, dy, saved));
  }
  /// The second part.
  void backward_params(auto& ctx, Saved& saved) { smp::backward_params(branch_, ctx, saved); }

 private:
  M branch_{};
};

}  // namespace smp
