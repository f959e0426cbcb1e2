// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How large a module is.

#include <concepts>
#include <cstddef>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/parameter.hpp>

namespace smp {

/// Bytes of the parameters of a module, on all tensor-parallel ranks together: the same number on each of them.
template <class M>
[[nodiscard]] std::size_t parameter_bytes(M& m) {
  std::size_t bytes = 0;
  const auto add = [&](auto& part, auto&&...) { bytes += parameter_bytes(part); };
  if constexpr (requires { m.marked(); }) {
    add(m.marked());
  } else if constexpr (requires { m.parts(add); }) {
    m.parts(add);
  } else if constexpr (Wrapper<M>) {
    add(m.inner());
  } else if constexpr (Container<M>) {
    m.children([&](const auto&, auto& child, auto&&...) { add(child); });
  } else if constexpr (HasFields<M>) {
    for_each_field(m, [&]<class Member>(Member& member, const auto&) {
      if constexpr (std::derived_from<Member, ParameterBase>) {
        bytes += member.shape().elements() * sizeof(typename Member::value_type);
      } else {
        add(member);
      }
    });
  }
  return bytes;
}

}  // namespace smp
