// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How a module is cut over tensor-parallel ranks: the extension point `TensorParallelTraits`, and the list of its
/// parameters' cuts.

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/distribution.hpp>
#include <smp/fields.hpp>
#include <smp/parameter.hpp>
#include <smp/tags.hpp>

namespace smp {

/// In which way a module is cut, where there are several.
enum class Split : unsigned char {
  usual,    ///< the only or the best way
  columns,  ///< a linear layer's outputs, an embedding's numbers
  rows      ///< a linear layer's inputs, an embedding's vocabulary
};

/// The rule by which `M` is cut; specialise it for modules of your own. Everything follows from a few lines:
///
///     template <>
///     struct smp::TensorParallelTraits<Gated, smp::Split::usual> {
///       using input = smp::Replicated;                  // each part takes the whole input
///       using output = smp::Shard<smp::Dim::features>;  // and returns a slice
///       static constexpr auto cuts() { return smp::cuts(smp::cut(0, &Gated::a), smp::cut(0, &Gated::b)); }
///     };
///
/// - `input`, `output`: how what a part takes and returns is distributed.
/// - `cuts()`: `cut(dim, member...)` for each parameter that is cut (the members lead to it), and `once(member...)` for
///   each that a part must not have because it is applied after the sum over the ranks. All others are whole in each
///   part; if the parts return summands, `in_each(member...)` says so of those that belong inside.
/// - if there are such: `using After`, a module, and `static After after(const M& whole)`.
/// - if a part must differ otherwise: `static void adjust(M& part, int rank, int ranks)`, called before it is cut; it
/// may
///   throw a ConfigError that says which degrees are possible.
///
/// The law: the parts sum to the whole. `smp::testing::check_parts` tests it.
template <class M, Split S = Split::usual>
struct TensorParallelTraits;

/// A parameter's cut, or `once`: what leads to it, from the module.
template <class... Members>
struct CutRule {
  std::tuple<Members...> members;  ///< pointers to members
  int dim = 0;                     ///< which dimension is cut; or `applied_once`, `in_each_part`
  int blocks = 1;                  ///< equal blocks of it, each of which is cut
  bool uneven = false;             ///< the dimension need not divide by the ranks
};

/// Instead of a dimension: the parameter is not in the parts.
inline constexpr int applied_once = -1;
/// Instead of a dimension: the parameter is whole in each part.
inline constexpr int in_each_part = -2;

/// The parameter that the members lead to is cut along `dim`.
template <class... Members>
[[nodiscard]] constexpr CutRule<Members...> cut(int dim, Members... members) {
  return {{members...}, dim, 1};
}
/// The same for each of `blocks` equal blocks of the dimension: query, key and value in one matrix are 3.
template <class... Members>
[[nodiscard]] constexpr CutRule<Members...> cut_blocks(int dim, int blocks, Members... members) {
  return {{members...}, dim, blocks};
}
/// The same of a dimension that need not divide by the ranks: the last parts are smaller, or empty. For a vocabulary.
template <class... Members>
[[nodiscard]] constexpr CutRule<Members...> cut_unevenly(int dim, Members... members) {
  return {{members...}, dim, 1, true};
}
/// The parameter is not in the parts; `After` applies it.
template <class... Members>
[[nodiscard]] constexpr CutRule<Members...> once(Members... members) {
  return {{members...}, applied_once, 1};
}
/// The parameter is whole in each part, which uses it for its own share of the work: a scale that all heads have in
/// common. Its gradient is summed over the ranks.
template <class... Members>
[[nodiscard]] constexpr CutRule<Members...> in_each(Members... members) {
  return {{members...}, in_each_part, 1};
}
/// A list of rules.
template <class... Rules>
[[nodiscard]] constexpr std::tuple<Rules...> cuts(Rules... rules) {
  return {rules...};
}

/// The parameter that the members of a rule lead to.
template <class M, class... Members>
[[nodiscard]] auto& parameter_of(M& module, const CutRule<Members...>& rule) {
  return std::apply(
      [&](auto first, auto... rest) -> auto& {
        const auto reach = [](auto& self, auto& object, auto member, auto... more) -> auto& {
          if constexpr (sizeof...(more) == 0) {
            return object.*member;
          } else {
            return self(self, object.*member, more...);
          }
        };
        return reach(reach, module, first, rest...);
      },
      rule.members);
}

/// True if two lists of members, of whatever types, are the same.
template <class A, class B>
[[nodiscard]] constexpr bool same_members(const A& a, const B& b) {
  if constexpr (std::is_same_v<A, B>) {
    return a == b;
  } else {
    return false;
  }
}

/// What the rules of a cut leave whole in each part: the number of parameters that are neither cut nor applied once.
template <class M, class Rules, class Path = std::tuple<>>
[[nodiscard]] constexpr int count_whole(const Rules& rules, const Path& path = {}) {
  int whole = 0;
  std::apply(
      [&](const auto&... field) {
        const auto look = [&](const auto& f) {
          using Member = typename std::remove_cvref_t<decltype(f)>::type;
          const auto here = std::tuple_cat(path, std::tuple(f.member));
          if constexpr (std::is_base_of_v<ParameterBase, Member>) {
            const bool ruled =
                std::apply([&](const auto&... r) { return (same_members(r.members, here) || ...); }, rules);
            whole += ruled ? 0 : 1;
          } else if constexpr (HasFields<Member>) {
            whole += count_whole<Member>(rules, here);
          }
        };
        (look(field), ...);
      },
      FieldsOf<M>::fields());
  return whole;
}

/// Says in words what is wrong with the rule by which a module is cut.
template <class M, class Traits>
consteval bool expect_traits() {
  constexpr bool has_rule = requires {
    typename Traits::input;
    typename Traits::output;
    Traits::cuts();
  };
  static_assert(has_rule,
                "smp::TensorParallel: there is no rule for cutting this module this way; specialise "
                "smp::TensorParallelTraits<M, Split> with input, output and cuts()");
  if constexpr (has_rule) {
    constexpr bool any_cut =
        std::apply([](const auto&... r) { return ((r.dim >= 0) || ... || false); }, Traits::cuts());
    if constexpr (any_cut) (void)expect_cut_on<typename Traits::input>();
    constexpr bool sum_pending = Traits::output::on.kind == Spread::partial;
    constexpr bool added_often = sum_pending && count_whole<M>(Traits::cuts()) > 0;
    static_assert(
        !added_often,
        "smp::TensorParallel: a parameter that is whole in each part would be added once per tp rank and then "
        "summed; cut it, list it as once(...) and apply it in After, or as in_each(...) if it belongs inside");
    constexpr bool any_once =
        std::apply([](const auto&... r) { return ((r.dim == applied_once) || ... || false); }, Traits::cuts());
    constexpr bool has_after = requires { typename Traits::After; };
    static_assert(!any_once || has_after,
                  "smp::TensorParallel: a parameter is listed as once(...), but the rule has no After that applies it");
  }
  return true;
}

/// Part `rank` of `ranks` of a module that declares the whole.
/// @throws ConfigError if a dimension does not divide by `ranks`
template <class Traits, class M>
[[nodiscard]] M part_of(const M& whole, int rank, int ranks) {
  M part = whole;
  if constexpr (requires { Traits::adjust(part, rank, ranks); }) Traits::adjust(part, rank, ranks);
  const auto apply = [&](const auto& rule) {
    auto& p = parameter_of(part, rule);
    using P = std::remove_cvref_t<decltype(p)>;
    if (rule.dim == applied_once) {
      p = P({0});
    } else if (rule.dim >= 0 && p.shape().elements() > 0) {
      p = P(p.shape(), p.init(), Cut{rule.dim, rank, ranks, rule.blocks, rule.uneven}, p.frozen());
    }
  };
  std::apply([&](const auto&... rule) { (apply(rule), ...); }, Traits::cuts());
  return part;
}

}  // namespace smp
