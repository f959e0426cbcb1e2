// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The parameters of a model as files and digests see them: whole tensors, in the order of their paths.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <smp/error.hpp>
#include <smp/io/safetensors.hpp>
#include <smp/io/sha256.hpp>
#include <smp/layout.hpp>

namespace smp::io {

/// A parameter with its values. Tied parameters are one.
template <class T>
struct NamedParameter {
  std::string name;           ///< path in the whole model, or the name of the tie
  Shape shape;                ///< the sizes
  std::span<const T> values;  ///< row by row; valid until the strategy moves them
};

/// The parameters of `layout`, in the order of their names' bytes.
/// @throws ConfigError if one is of another type than `T`, cut, or not on this rank
template <class T>
[[nodiscard]] std::vector<NamedParameter<T>> parameters(Layout& layout) {
  std::vector<NamedParameter<T>> list;
  for (const Block& block : layout.blocks()) {
    for (const Block::Segment& s : block.segments) {
      const ParameterBase& p = *s.declaration;
      if (block.element_bytes != sizeof(T)) throw ConfigError(s.name + " has values of another type");
      if (p.cut().dim >= 0 || (block.value == nullptr && block.size > 0)) {
        throw ConfigError(s.name + " is not whole on this rank: it must be gathered before it is written");
      }
      list.push_back({s.name, p.shape(), {static_cast<const T*>(block.value) + s.begin, s.end - s.begin}});
    }
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return list;
}

/// What a file with these parameters says of them.
template <class T>
[[nodiscard]] std::vector<TensorHeader> headers(const std::vector<NamedParameter<T>>& list) {
  std::vector<TensorHeader> all;
  for (const NamedParameter<T>& p : list) all.push_back(tensor_header<T>(p.name, p.shape));
  return all;
}

/// SHA-256 of all values in order: of what follows the header in a file that `SafetensorsWriter` has written of them.
template <class T>
[[nodiscard]] std::string sha256(const std::vector<NamedParameter<T>>& list) {
  Sha256 digest;
  for (const NamedParameter<T>& p : list) digest.update(std::as_bytes(p.values));
  return digest.hex();
}

}  // namespace smp::io
