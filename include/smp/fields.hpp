// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The one description of what a struct is made of: its members by name. Parameters of modules, their storage, shards,
/// optimizer state and files, and the tensors in inputs and saved values are all found through it.
///
///     static constexpr auto fields() {
///       return smp::fields(smp::field("weight", &Linear::weight), smp::field("bias", &Linear::bias, {.decay =
///       false}));
///     }

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace smp {

/// What a field says beyond its name; for parameters.
struct FieldOptions {
  std::string_view tie{};  ///< parameters of one tie are one parameter, wherever they are declared
  bool decay = true;       ///< weight decay applies
};

/// Where a parameter is applied follows from the types of its module.
struct Derived {};
/// Said of a parameter of a typed module (`Input = Dist<...>`): each tensor-parallel rank has a part of it.
struct CutOverTp {};

/// A member of `Owner` by name.
/// @tparam Where for parameters and plain modules in typed modules: `Derived`, `CutOverTp`, or the distribution
/// (`Invariant`, ...) of the values that they are applied to, where Input and Output differ
template <class Owner, class Member, class Where = Derived>
struct Field {
  std::string_view name;  ///< becomes part of parameters' paths
  Member Owner::*member;  ///< which member
  FieldOptions options;   ///< what else there is to say

  using type = Member;  ///< of the member
  using where = Where;  ///< how its gradient comes about
};

/// A field called `name`.
template <class Where = Derived, class Owner, class Member>
[[nodiscard]] constexpr Field<Owner, Member, Where> field(std::string_view name, Member Owner::*member,
                                                          FieldOptions options = {}) {
  return {name, member, options};
}

/// A list of fields.
template <class... Fields>
[[nodiscard]] constexpr std::tuple<Fields...> fields(Fields... list) {
  return {list...};
}

/// The fields of `T`: those of its own `fields()`. Specialise it, with a function of that name, for a type that cannot
/// have one.
template <class T>
struct FieldsOf {};

template <class T>
  requires requires { T::fields(); }
struct FieldsOf<T> {
  /// The list.
  static constexpr auto fields() { return T::fields(); }
};

/// A type that says what it is made of.
template <class T>
concept HasFields = requires { FieldsOf<std::remove_cv_t<T>>::fields(); };

/// Calls `f(member, field)` for each field of `object`.
template <HasFields T, class F>
constexpr void for_each_field(T& object, F&& f) {
  std::apply([&](const auto&... each) { (f(object.*(each.member), each), ...); },
             FieldsOf<std::remove_cv_t<T>>::fields());
}

}  // namespace smp
