// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A module that applies parameters of a member of another one, under their names.

#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/distribution.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>

namespace smp {

/// The name of a member in the fields of its owner.
template <class Owner, class Member>
[[nodiscard]] consteval std::string_view name_of(Member Owner::*member) {
  std::string_view name;
  std::apply(
      [&](const auto&... field) {
        const auto look = [&]<class F>(const F& f) {
          if constexpr (std::is_same_v<decltype(f.member), Member Owner::*>) {
            if (f.member == member) name = f.name;
          }
        };
        (look(field), ...);
      },
      FieldsOf<Owner>::fields());
  return name;
}

/// The plain module `M` in the place of a member of another module: its parameters have the names of that member's. For
/// the rule of a cut module, whose bias is applied after the sum:
///
///     using After = smp::InPlaceOf<&Gated::c, smp::nn::AddBias<>>;  // the parameter is c.bias, as in the whole
///     static After after(const Gated& whole) { return {{whole.c.bias}}; }
template <auto member, class M>
struct InPlaceOf {
  using Input = typename M::Input;    ///< of the module
  using Output = typename M::Output;  ///< of the module
  using Saved = typename M::Saved;    ///< of the module

  M module;  ///< the module

  static constexpr auto fields() { return smp::fields(smp::field(name_of(member), &InPlaceOf::module)); }
  /// As the module.
  static constexpr bool works_on_slices_of(Dim dim)
    requires requires { M::works_on_slices_of(dim); }
  {
    return M::works_on_slices_of(dim);
  }
  /// As the module.
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return module.forward(ctx, x, saved); }
  /// As the module.
  GradOf<Input> backward(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return module.backward(ctx, std::move(dy), saved);
  }
  /// The first part of backward.
  GradOf<Input> backward_input(auto& ctx, GradOf<Output> dy, Saved& saved) {
    return smp::backward_input(module, ctx, std::move(dy), saved);
  }
  /// The second part of backward.
  void backward_params(auto& ctx, Saved& saved) { smp::backward_params(module, ctx, saved); }
};

}  // namespace smp
