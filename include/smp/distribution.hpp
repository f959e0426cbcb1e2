// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Distribution types: how a value is spread over the ranks, as part of its type, so that a missing reduction does not
/// compile. Pure compile time: a `Dist` costs no instruction.
///
/// One tag per axis on which modules communicate. Data-parallel ranks never communicate inside a model, so there is no
/// tag for them.

#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

namespace smp {

/// Dimensions of activations, by meaning: different samples and slices of a sequence differ, though both may be rows.
enum class Dim : unsigned char { none, batch, sequence, features };

/// The kinds of distribution.
enum class Spread : unsigned char { invariant, replicated, partial, varying, shard };

/// A kind, and the dimension of a shard.
struct SpreadOn {
  Spread kind = Spread::invariant;  ///< how
  Dim dim = Dim::none;              ///< along which dimension, for a shard
  friend constexpr bool operator==(const SpreadOn&, const SpreadOn&) = default;
};

/// Equal bits on all ranks: one computation, repeated, and counted once. Its gradient: Invariant.
struct Invariant {
  static constexpr SpreadOn on{Spread::invariant, Dim::none};  ///< as a value
};
/// Equal on all ranks, each of which uses it for its own part of the work. Its gradient: Partial.
struct Replicated {
  static constexpr SpreadOn on{Spread::replicated, Dim::none};  ///< as a value
};
/// The ranks hold summands. Its gradient: Replicated.
struct Partial {
  static constexpr SpreadOn on{Spread::partial, Dim::none};  ///< as a value
};
/// Each rank has its own samples. Its gradient: Varying.
struct Varying {
  static constexpr SpreadOn on{Spread::varying, Dim::none};  ///< as a value
};
/// Each rank has a slice along dimension `D`. Its gradient: the same slices.
template <Dim D>
struct Shard {
  static constexpr SpreadOn on{Spread::shard, D};  ///< as a value
};

/// In place of a tag: nothing has been said.
struct NoTags {};

/// One of the tags above. They are types because nvcc 13 mistranslates class-type template arguments.
template <class D>
concept DistributionTag = requires {
  { D::on } -> std::convertible_to<SpreadOn>;
};

/// The distribution of the gradient of what is distributed as `D`.
template <DistributionTag D>
using GradOn =
    std::conditional_t<D::on == Replicated::on, Partial, std::conditional_t<D::on == Partial::on, Replicated, D>>;

/// Says in words what is wrong where a value distributed as `From` meets a module that takes `To`.
template <DistributionTag From, DistributionTag To>
consteval bool expect_distribution() {
  constexpr SpreadOn from = From::on;
  constexpr SpreadOn to = To::on;
  constexpr bool from_slices = from.kind == Spread::shard || from.kind == Spread::varying;
  constexpr bool to_slices = to.kind == Spread::shard || to.kind == Spread::varying;
  constexpr bool from_whole = from.kind == Spread::invariant || from.kind == Spread::replicated;
  constexpr bool to_whole = to.kind == Spread::invariant || to.kind == Spread::replicated;
  if constexpr (from != to) {
    constexpr bool sum_pending = from.kind == Spread::partial;
    constexpr bool unsummed_gradient = from == Invariant::on && to == Replicated::on;
    constexpr bool counted_often = from == Replicated::on && to == Invariant::on;
    constexpr bool gather_missing = from_slices && to_whole;
    constexpr bool slice_missing = from_whole && to_slices;
    constexpr bool other_slices = from_slices && to_slices;
    constexpr bool no_summands = from.kind != Spread::partial && to.kind == Spread::partial;
    static_assert(
        !sum_pending,
        "smp: a sum over tp is still pending here (Partial); put AllReduce or ReduceScatter before this module");
    static_assert(
        !unsummed_gradient,
        "smp: Invariant used for different work on each tp rank: its gradient would be a Partial nobody sums; "
        "put Replicate before this module");
    static_assert(!counted_often,
                  "smp: Replicated used where Invariant is expected: its gradient would be counted once per tp rank");
    static_assert(!gather_missing,
                  "smp: this module needs the whole value but gets one tp rank's slice; put AllGather before it");
    static_assert(!slice_missing,
                  "smp: this module needs one tp rank's slice but gets the whole value; put Slice before it");
    static_assert(!other_slices, "smp: this module needs slices of another dimension; put AllToAll before it");
    static_assert(!no_summands, "smp: this module takes summands (Partial) but gets a finished value");
  }
  return true;
}

/// A local value and, in the type only, how it is distributed over the tensor-parallel and the context-parallel ranks.
/// Writing `Dist<T, D>{x}` is a claim: leaf modules, moves and a trainer's entry make it, nobody else.
template <class T, DistributionTag Tp = Invariant, DistributionTag Cp = Invariant>
struct Dist {
  using Local = T;  ///< the type of this rank's part
  using tp = Tp;    ///< over the tensor-parallel ranks
  using cp = Cp;    ///< over the context-parallel ranks

  T local;  ///< this rank's part

  /// Not usable: turns a mismatch at any call into one of the sentences above.
  template <DistributionTag A, DistributionTag B>
    requires(!std::is_same_v<A, Tp> || !std::is_same_v<B, Cp>)
  operator Dist<T, A, B>() const {
    static_assert(expect_distribution<Tp, A>() && expect_distribution<Cp, B>());
    return {local};
  }
};

/// True for the types `Dist<...>`.
template <class T>
inline constexpr bool is_dist = false;
/// They are.
template <class T, class A, class B>
inline constexpr bool is_dist<Dist<T, A, B>> = true;

/// The gradient of what has none: ids, masks.
struct NoGrad {
  friend constexpr bool operator==(NoGrad, NoGrad) = default;
};

/// Says which type the gradient of a `T` has. Specialise it for a tensor type without gradient (`type = NoGrad`).
/// The gradient of a tuple, or of a struct that lists its members with `fields()`, is the tuple of their gradients.
template <class T>
struct GradOfT {
  using type = T;  ///< a tensor's gradient is a tensor
};

/// The type of the gradient of a `T`.
template <class T>
using GradOf = typename GradOfT<T>::type;

template <class T, class A, class B>
struct GradOfT<Dist<T, A, B>> {
  using type = std::conditional_t<std::is_same_v<GradOf<T>, NoGrad>, NoGrad, Dist<GradOf<T>, GradOn<A>, GradOn<B>>>;
};
template <class... Ts>
struct GradOfT<std::tuple<Ts...>> {
  using type = std::tuple<GradOf<Ts>...>;
};

}  // namespace smp
