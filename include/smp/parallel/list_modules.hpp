// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What of a model is on this rank: its modules by name, and of which of them it has a part.

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/parameter.hpp>

namespace smp {

/// A module of a model on one rank.
struct ListedModule {
  std::string path;  ///< names from the root, with dots between them
  int part = 0;      ///< which part of it is here
  int parts = 1;     ///< of how many; 1: all of it is here

  /// The last name of the path; with `:part` if there are parts.
  [[nodiscard]] std::string name() const {
    return path.substr(path.rfind('.') + 1) + (parts > 1 ? ":" + std::to_string(part) : "");
  }
  friend bool operator==(const ListedModule&, const ListedModule&) = default;
};

/// Appends what `list_modules` says of a module at `path`.
template <class M>
void append_modules(M& m, const std::string& path, Cut cut, std::vector<ListedModule>& list) {
  if constexpr (requires { m.marked(); }) {
    append_modules(m.marked(), path, cut, list);
  } else if constexpr (requires { m.part(), m.cut(); }) {
    append_modules(m.part(), path, m.cut(), list);
  } else if constexpr (Wrapper<M>) {
    append_modules(m.inner(), path, cut, list);
  } else {
    if constexpr (ModuleTypes<M>) list.push_back({path, cut.part, cut.parts});
    if (cut.parts > 1) return;
    if constexpr (Container<M>) {
      m.children([&](const std::string& name, auto& child, auto&&...) {
        append_modules(child, path + "." + name, cut, list);
      });
    } else if constexpr (HasFields<M>) {
      for_each_field(m, [&](auto& member, const auto& field) {
        append_modules(member, path + "." + std::string(field.name), cut, list);
      });
    }
  }
}

/// The modules of a model from the root on, each before its children. A module that is cut over the tensor-parallel
/// ranks is one: its children are cut with it, and not listed.
/// @param name of the root
template <class M>
[[nodiscard]] std::vector<ListedModule> list_modules(M& model, const std::string& name) {
  std::vector<ListedModule> list;
  append_modules(model, name, Cut{}, list);
  return list;
}

}  // namespace smp
