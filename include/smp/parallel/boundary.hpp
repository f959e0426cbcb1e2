// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What happens where a value meets a module. A plain module (`Input = Tensor`) takes a value of any distribution, as
/// long as no sum is pending, and what it returns is distributed in the same way; a typed one (`Input = Dist<...>`)
/// says what it takes. Containers pass values on through a `Joint` for each child.

#include <concepts>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/distribution.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/tags.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>

namespace smp {

/// The type of a plain value `X` when it is distributed as `D` says: tensors become `Dist`, ids stay what they are.
template <class X, class D>
struct SpreadT {
  using type = X;  ///< NoTags, or a value without gradient
};
/// As a type.
template <class X, class D>
using SpreadAs = typename SpreadT<X, D>::type;

template <class X, class Tp, class Cp>
  requires(TensorLike<X> && !std::is_same_v<GradOf<X>, NoGrad>)
struct SpreadT<X, Tags<Tp, Cp>> {
  using type = Dist<X, Tp, Cp>;
};
template <class... Xs, class Tp, class Cp>
struct SpreadT<std::tuple<Xs...>, Tags<Tp, Cp>> {
  using type = std::tuple<SpreadAs<Xs, Tags<Tp, Cp>>...>;
};

/// A plain value as a value of type `X`, which differs from it by tags only. The claim is the caller's.
template <class X, class Plain>
[[nodiscard]] X spread(Plain&& value) {
  if constexpr (std::is_same_v<X, std::remove_cvref_t<Plain>>) {
    return std::forward<Plain>(value);
  } else if constexpr (is_dist<X>) {
    return {std::forward<Plain>(value)};
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return X{spread<std::tuple_element_t<I, X>>(std::get<I>(std::forward<Plain>(value)))...};
    }(std::make_index_sequence<std::tuple_size_v<X>>{});
  }
}

/// The plain value of type `Plain` inside of a value that differs from it by tags only.
template <class Plain, class X>
[[nodiscard]] decltype(auto) local(const X& value) {
  if constexpr (std::is_same_v<Plain, X>) {
    return (value);
  } else if constexpr (is_dist<X>) {
    return (value.local);
  } else {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Plain{local<std::tuple_element_t<I, Plain>>(std::get<I>(value))...};
    }(std::make_index_sequence<std::tuple_size_v<Plain>>{});
  }
}

/// Whether a plain module can treat values distributed as `D` alone.
template <class M, DistributionTag D>
inline constexpr bool plain_takes = [] {
  if constexpr (D::on.kind != Spread::shard) {
    return D::on.kind != Spread::partial;
  } else if constexpr (requires { M::works_on_slices_of(D::on.dim); }) {
    return M::works_on_slices_of(D::on.dim);
  } else {
    return D::on.dim == Dim::batch;
  }
}();

/// Says in words why a plain module cannot take a value distributed as `D`.
template <class M, DistributionTag D>
consteval bool expect_plain_takes() {
  if constexpr (D::on.kind == Spread::partial) {
    return expect_distribution<D, Invariant>();
  } else {
    constexpr bool treats_slices_alone = plain_takes<M, D>;
    static_assert(treats_slices_alone,
                  "smp: this module would see one tp rank's slice (Shard); gather before it, or declare "
                  "works_on_slices_of(Dim) if every slice can be treated alone");
  }
  return true;
}

/// Says in words what is wrong where a value of type `X` meets a typed module that takes `Input`.
template <class X, class Input>
consteval bool expect_input() {
  if constexpr (!std::is_same_v<X, Input>) {
    if constexpr (is_dist<X> && is_dist<Input>) {
      if constexpr (std::is_same_v<typename X::Local, typename Input::Local>) {
        return expect_distribution<typename X::tp, typename Input::tp>() &&
               expect_distribution<typename X::cp, typename Input::cp>();
      }
    }
    constexpr bool fits = is_dist<X> && is_dist<Input>;
    static_assert(fits, "smp: the Output of a module is not the Input of the module after it");
  }
  return true;
}

/// Says in words why a module cannot stand where values are distributed as `D`.
template <class M, class D>
consteval bool expect_takes() {
  if constexpr (is_plain<M> && !std::is_same_v<D, NoTags>) {
    return expect_plain_takes<M, typename D::tp>() && expect_plain_takes<M, typename D::cp>();
  }
  return true;
}

/// How values are distributed where the first of these modules stands: as the first typed one says.
template <class... Ms>
struct EntryTagsT {
  using type = NoTags;  ///< all are plain
};
/// As a type.
template <class... Ms>
using EntryTags = typename EntryTagsT<Ms...>::type;
template <class M, class... Ms>
struct EntryTagsT<M, Ms...> {
  using type = std::conditional_t<is_plain<M>, EntryTags<Ms...>, TagsOf<typename M::Input>>;
};

/// True where a rank has some of the rows of each value.
template <class D>
inline constexpr bool rows_are_cut = false;
/// Over tp.
template <class Tp, class Cp>
inline constexpr bool rows_are_cut<Tags<Tp, Cp>> = Tp::on.kind == Spread::shard && Tp::on.dim != Dim::features;

/// The child `M` where a value arrives that is distributed as `D`: its types as the container sees them, and the calls.
template <class M, class D>
struct Joint {
  static_assert(expect_takes<M, D>());
  using Arriving = D;  ///< how values are distributed that arrive
  /// What is around its parameters.
  using Outside = std::conditional_t<std::is_same_v<D, NoTags>, NoTags, smp::Around<D>>;
  /// A plain module among distributed values.
  static constexpr bool lifted = is_plain<M> && !std::is_same_v<D, NoTags>;
  using Input = std::conditional_t<lifted, SpreadAs<typename M::Input, D>, typename M::Input>;     ///< what it takes
  using Output = std::conditional_t<lifted, SpreadAs<typename M::Output, D>, typename M::Output>;  ///< what it returns
  using Saved = typename M::Saved;                                                                 ///< the module's
  /// How its output is distributed.
  using Next = std::conditional_t<is_plain<M>, D, TagsOf<typename M::Output>>;

  /// Forward.
  template <class Ctx>
  static Output forward(const M& m, Ctx& ctx, const Input& x, Saved& saved) {
    static_assert(expect_module<M, Ctx>());
    if constexpr (rows_are_cut<D>) {
      // The module does not know of ranks; what it draws, or numbers, depends on which rows it sees.
      const RandomPosition outside = ctx.position;
      const auto& tp = ctx.groups()[Group::tp];
      ctx.position.part = static_cast<std::uint64_t>(tp.rank());
      ctx.position.parts = static_cast<std::uint64_t>(tp.size());
      Output y = spread<Output>(m.forward(ctx, local<typename M::Input>(x), saved));
      ctx.position = outside;
      return y;
    } else {
      return spread<Output>(m.forward(ctx, local<typename M::Input>(x), saved));
    }
  }
  /// Backward; frees what the child has saved.
  template <class Ctx>
  static GradOf<Input> backward(M& m, Ctx& ctx, GradOf<Output>&& dy, Saved& saved) {
    GradOf<Input> dx = enter(
        std::move(dy), [&](auto&& inner) { return m.backward(ctx, std::forward<decltype(inner)>(inner), saved); });
    saved = Saved{};
    return dx;
  }
  /// The first part of backward.
  template <class Ctx>
  static GradOf<Input> backward_input(M& m, Ctx& ctx, GradOf<Output>&& dy, Saved& saved) {
    return enter(std::move(dy), [&](auto&& inner) {
      return smp::backward_input(m, ctx, std::forward<decltype(inner)>(inner), saved);
    });
  }
  /// The second part; frees what the child has saved.
  template <class Ctx>
  static void backward_params(M& m, Ctx& ctx, Saved& saved) {
    smp::backward_params(m, ctx, saved);
    saved = Saved{};
  }

 private:
  // The gradient dies here, when the child has used it, not when the whole container is done.
  template <class F>
  static GradOf<Input> enter(GradOf<Output>&& dy, F&& run) {
    GradOf<Output> held = std::move(dy);
    if constexpr (lifted) {
      return spread<GradOf<Input>>(run(local<GradOf<typename M::Output>>(held)));
    } else {
      return run(std::move(held));
    }
  }
};

}  // namespace smp
