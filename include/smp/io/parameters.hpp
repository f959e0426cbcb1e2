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
#include <smp/comm/objects.hpp>
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

/// A parameter of a model whose layers are spread over stages.
struct StagedParameter {
  std::string name;                         ///< path, or the name of the tie
  Shape shape;                              ///< of the whole
  int stage = 0;                            ///< rank of the PP group that has it; the first one
  Block* block = nullptr;                   ///< where it is here; null: it is elsewhere, or another stage counts
  const Block::Segment* segment = nullptr;  ///< its place there
};

/// The parameters of all stages, in the order of a file. All ranks of the PP group call it.
template <class Ctx>
[[nodiscard]] std::vector<StagedParameter> over_stages(Ctx& ctx, Layout& layout) {
  auto& stages = ctx.groups()[Group::pp];
  std::vector<StagedParameter> all;
  std::vector<std::string> names;
  std::vector<Shape> shapes;
  for (const auto& [block, s] : in_order(layout)) {
    if (!block->counted) continue;
    all.push_back({s->name, s->declaration->shape(), stages.rank(), block, s});
    names.push_back(s->name);
    shapes.push_back(s->declaration->shape());
  }
  if (stages.size() == 1) return all;
  const auto names_of = comm::all_gather_object(stages, names);
  const auto shapes_of = comm::all_gather_object(stages, shapes);
  for (int rank = 0; rank < stages.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (rank == stages.rank()) continue;
    for (std::size_t i = 0; i < names_of[r].size(); ++i) all.push_back({names_of[r][i], shapes_of[r][i], rank});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

/// What a file with the parameters of `layout` says of them.
/// @tparam T of the values
template <class T>
[[nodiscard]] std::vector<TensorHeader> headers(Layout& layout) {
  std::vector<TensorHeader> all;
  for (const auto& [block, s] : in_order(layout)) all.push_back(tensor_header<T>(s->name, s->declaration->shape()));
  return all;
}
/// The same of a model whose layers are spread over stages. All ranks of the PP group call it.
template <class T, class Ctx>
[[nodiscard]] std::vector<TensorHeader> headers(Ctx& ctx, Layout& layout) {
  std::vector<TensorHeader> all;
  for (const StagedParameter& p : over_stages(ctx, layout)) all.push_back(tensor_header<T>(p.name, p.shape));
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
/// over ranks is gathered, a block or a parameter at a time. All ranks call it, and all see every parameter.
/// @throws ConfigError if a parameter is of another type than `T`
template <class T, class Ctx, class Strategy, class F>
void for_each_whole(Ctx& ctx, Strategy& strategy, F&& f) {
  auto& tp = ctx.groups()[Group::tp];
  auto& stages = ctx.groups()[Group::pp];
  for (const StagedParameter& p : over_stages(ctx, strategy.layout())) {
    if (p.segment == nullptr) {
      std::vector<T> whole(p.shape.elements());
      HostStream now;
      stages.broadcast(now, whole, p.stage, Purpose::checkpoint);
      f(p.name, std::span<const T>(whole));
      continue;
    }
    if (p.block->element_bytes != sizeof(T)) throw ConfigError(p.name + " has values of another type");
    strategy.with_values(ctx, *p.block, [&](const Block& here) {
      const Block::Segment& s = *p.segment;
      std::span<const T> values(static_cast<const T*>(here.value) + s.begin, s.end - s.begin);
      std::vector<T> whole;
      if (s.declaration->cut().parts > 1) {
        whole = joined(*s.declaration, values, tp);
      } else if (stages.size() > 1) {
        whole.assign(values.begin(), values.end());
      }
      if (!whole.empty()) values = whole;
      HostStream now;
      if (stages.size() > 1) stages.broadcast(now, whole, p.stage, Purpose::checkpoint);
      f(p.name, values);
    });
  }
}

}  // namespace smp::io
