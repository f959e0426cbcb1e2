// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A layout as a planner sees it.

#include <smp/layout.hpp>
#include <smp/plan/model_sizes.hpp>

namespace smp {

/// The sizes of a model that a layout was made of. A unit that says it is not sharded has blocks that are whole on
/// every rank, as those of small parameters are.
[[nodiscard]] inline ModelSizes model_sizes(Layout& layout) {
  ModelSizes model;
  for (const Block& b : layout.blocks()) {
    model.blocks.push_back({{}, b.element_bytes, b.frozen, b.persistent, b.cut, b.summed_over_tp});
    for (const Block::Segment& s : b.segments) model.blocks.back().parameters.push_back(s.end - s.begin);
  }
  for (const Unit& u : layout.units()) {
    model.units.push_back({{}, u.parent});
    for (const Block* b : u.uses) {
      model.units.back().blocks.push_back(b->id);
      if (u.shard_degree == 1) model.blocks[static_cast<std::size_t>(b->id)].persistent = true;
    }
  }
  return model;
}

}  // namespace smp
