// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The parameters of a model as files and digests see them: whole tensors, in the order of their paths.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/error.hpp>
#include <smp/io/safetensors.hpp>
#include <smp/layout.hpp>
#include <smp/parameter.hpp>
#include <smp/topology.hpp>

namespace smp::io {

/// The parameters of `layout` in the order of their names' bytes, which is the order of a file. Tied parameters are
/// one.
[[nodiscard]] inline std::vector<std::pair<Block*, const Block::Segment*>> in_order(Layout& layout) {
  std::vector<std::pair<Block*, const Block::Segment*>> list;
  for (Block& block : layout.blocks()) {
    for (const Block::Segment& s : block.segments) list.emplace_back(&block, &s);
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second->name < b.second->name; });
  return list;
}

/// What a file with the parameters of `layout` says of them.
/// @tparam T of the values
template <class T>
[[nodiscard]] std::vector<TensorHeader> headers(Layout& layout) {
  std::vector<TensorHeader> all;
  for (const auto& [block, s] : in_order(layout)) all.push_back(tensor_header<T>(s->name, s->declaration->shape()));
  return all;
}

/// The values of a parameter of which each rank of a group has a part.
/// @param part this rank's
template <class T, class Comm>
[[nodiscard]] std::vector<T> joined(const ParameterBase& p, std::span<const T> part, Comm& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<ParameterBase> parts;
  std::vector<std::size_t> counts;
  for (int r = 0; r < group.size(); ++r) {
    const Cut& cut = p.cut();
    parts.emplace_back(p.shape(), p.init(), Cut{cut.dim, r, cut.parts, cut.blocks, cut.uneven});
    counts.push_back(parts.back().size());
  }
  std::vector<T> gathered(p.shape().elements()), whole(gathered.size());
  HostStream now;
  group.all_gather_v(now, part, gathered, counts, Purpose::control);
  const T* next = gathered.data();
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < counts[r]; ++i) whole[parts[r].global_index(i)] = *next++;
  }
  return whole;
}

/// Calls `f(name, values)` for each parameter of the model of `strategy`, whole, in the order of a file. What is spread
/// over ranks is gathered, a block or a parameter at a time. All ranks call it.
/// @throws ConfigError if a parameter is of another type than `T`
template <class T, class Ctx, class Strategy, class F>
void for_each_whole(Ctx& ctx, Strategy& strategy, F&& f) {
  auto& tp = ctx.groups()[Group::tp];
  for (const auto& [block, s] : in_order(strategy.layout())) {
    if (block->element_bytes != sizeof(T)) throw ConfigError(s->name + " has values of another type");
    strategy.with_values(ctx, *block, [&, segment = s](const Block& here) {
      const std::span<const T> part(static_cast<const T*>(here.value) + segment->begin, segment->end - segment->begin);
      if (segment->declaration->cut().parts > 1) {
        const std::vector<T> whole = joined(*segment->declaration, part, tp);
        f(segment->name, std::span<const T>(whole));
      } else {
        f(segment->name, part);
      }
    });
  }
}

}  // namespace smp::io
