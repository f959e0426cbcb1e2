// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How the values are distributed that a module takes and returns, and what follows for the gradients of its
/// parameters.

#include <concepts>
#include <tuple>
#include <type_traits>

#include <smp/distribution.hpp>
#include <smp/fields.hpp>

namespace smp {

/// How a value is distributed: one tag per axis on which modules communicate.
template <DistributionTag Tp = Invariant, DistributionTag Cp = Invariant>
struct Tags {
  using tp = Tp;  ///< over the tensor-parallel ranks
  using cp = Cp;  ///< over the context-parallel ranks
};

/// The tags of a value: of its first `Dist`, or NoTags: the model is made of plain modules so far. A value is a tensor,
/// a `Dist`, or a tuple or struct of values.
template <class X>
struct TagsOfT {
  using type = NoTags;  ///< of a tensor
};
/// As a type.
template <class X>
using TagsOf = typename TagsOfT<X>::type;

template <class T, class Tp, class Cp>
struct TagsOfT<Dist<T, Tp, Cp>> {
  using type = Tags<Tp, Cp>;
};
template <class First, class... Rest>
struct TagsOfT<std::tuple<First, Rest...>> {
  using type = std::conditional_t<std::is_same_v<TagsOf<First>, NoTags>, TagsOf<std::tuple<Rest...>>, TagsOf<First>>;
};
template <HasFields X>
struct TagsOfT<X> {
  template <class... F>
  static std::tuple<typename F::type...> members(std::tuple<F...>);
  using type = TagsOf<decltype(members(FieldsOf<X>::fields()))>;
};

/// True for a module that says nothing of distributions.
template <class M>
inline constexpr bool is_plain =
    std::is_same_v<TagsOf<typename M::Input>, NoTags> && std::is_same_v<TagsOf<typename M::Output>, NoTags>;

/// What is around the parameters of a typed module: how the values are distributed that it takes and returns.
template <class In, class Out = In>
struct Around {
  using in = In;    ///< takes
  using out = Out;  ///< returns
};
/// What is around the parameters of a part of a module that `TensorParallel` has cut. `In`: how the values are
/// distributed that the part takes. What its traits say of it is checked where it is made.
template <class In>
struct AroundPart {};

/// What is around the parameters of `M`; `Outside`, if it is plain.
template <class M, class Outside>
struct AroundT {
  using type = Outside;  ///< of a plain module, or of one that is no module
};
template <class M, class Outside>
  requires requires {
    typename M::Input;
    typename M::Output;
    requires !is_plain<M>;
  }
struct AroundT<M, Outside> {
  using In = TagsOf<typename M::Input>;
  using Out = TagsOf<typename M::Output>;
  // Ids alone have no tags.
  using type = Around<std::conditional_t<std::is_same_v<In, NoTags>, Out, In>,
                      std::conditional_t<std::is_same_v<Out, NoTags>, In, Out>>;
};

/// Whether the ranks have summands of the gradient of a parameter that each of them has whole, and applies to values
/// distributed as `D`: to different ones, or each for its own part of the work.
template <DistributionTag D>
[[nodiscard]] consteval bool summands_on() {
  static_assert(D::on.kind != Spread::partial,
                "smp: this parameter would be added once per tp rank and then summed; cut it, or apply it after the "
                "reduction (AllReduce, then AddBias)");
  return D::on.kind != Spread::invariant;
}

/// Whether a parameter that is cut over the ranks can be applied to values distributed as `D`.
template <DistributionTag D>
[[nodiscard]] consteval bool expect_cut_on() {
  constexpr bool sees_all_samples =
      D::on.kind != Spread::varying && !(D::on.kind == Spread::shard && D::on.dim != Dim::features);
  static_assert(sees_all_samples,
                "smp: this parameter is cut over the tp ranks, but its module sees one rank's samples only: its "
                "gradient would miss the others; gather (AllGather or AllToAll) first");
  return true;
}

/// What is around a member that is a plain module, by what its field says: all its parameters are cut, or it stands
/// where values are distributed as `D`.
template <class Here, class Where>
struct AroundMember {
  using type = Here;  ///< nothing is said
};
template <class In, class Out>
struct AroundMember<Around<In, Out>, CutOverTp> {
  static_assert(expect_cut_on<typename In::tp>());
  using type = AroundPart<Tags<Invariant>>;
};
template <class In, class Out, DistributionTag D>
struct AroundMember<Around<In, Out>, D> {
  using type = Around<Tags<D>>;
};

/// Whether the gradient of a parameter has to be summed over the tensor-parallel ranks, by what is around it and what
/// its field says.
template <class A, class Where>
struct SummedOverTp {
  static constexpr bool value = false;  ///< plain modules only: all ranks do the same
};
template <class In, class Where>
struct SummedOverTp<AroundPart<In>, Where> {
  static constexpr bool value = In::tp::on.kind != Spread::invariant;
};
template <class In, class Out>
struct SummedOverTp<Around<In, Out>, CutOverTp> {
  static_assert(expect_cut_on<typename In::tp>());
  static constexpr bool value = false;
};
template <class In, class Out>
struct SummedOverTp<Around<In, Out>, Derived> {
  static constexpr bool sum_pending = Out::tp::on.kind == Spread::partial;
  static_assert(std::is_same_v<In, Out> || sum_pending,
                "smp: this parameter belongs to a module whose Input and Output are distributed differently; say which "
                "of the two it is applied to: field<Invariant>(...), or field<CutOverTp>(...) if it is cut");
  static constexpr bool value = summands_on<typename Out::tp>();
};
template <class In, class Out, DistributionTag D>
struct SummedOverTp<Around<In, Out>, D> {
  static_assert(D::on == In::tp::on || D::on == Out::tp::on,
                "smp: field<...> names a distribution that neither Input nor Output of this module has");
  static constexpr bool value = summands_on<D>();
};

}  // namespace smp
