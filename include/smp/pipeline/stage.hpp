// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The layers of one stage with one micro-batch: forward, what is kept, and backward.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <smp/context.hpp>
#include <smp/module.hpp>
#include <smp/pipeline/checkpoint_groups.hpp>
#include <smp/pipeline/layers.hpp>
#include <smp/random.hpp>

namespace smp {

/// What a group of checkpointed layers keeps.
/// @tparam L `Layers` of a model
template <class L>
struct CheckpointedGroup {
  typename L::Value input{};  ///< of its first layer
  RandomPosition position{};  ///< of the first pass
  bool training = true;       ///< of the first pass
};

/// What a stage keeps of a micro-batch.
template <class L>
struct StageSaved {
  typename L::Saved layers{};                  ///< what layers have saved
  std::vector<CheckpointedGroup<L>> groups{};  ///< by group
  /// Frees all of it, and keeps the room.
  void clear() {
    layers = {};
    for (auto& group : groups) group = {};
  }
};

/// The layers of a stage.
template <class L>
struct Stage {
  using Value = typename L::Value;        ///< between layers
  using Gradient = typename L::Gradient;  ///< between layers

  L& layers;                              ///< of the model
  const std::vector<LayerGroup>& groups;  ///< of the stage, in order

  /// All layers, in order.
  template <class Ctx>
  [[nodiscard]] Value forward(Ctx& ctx, Value x, StageSaved<L>& saved) const {
    saved.groups.resize(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const LayerRange range = groups[g].layers;
      if (!groups[g].checkpointed) {
        x = layers.forward(ctx, range, std::move(x), saved.layers);
        continue;
      }
      if (ctx.training) saved.groups[g] = {x, ctx.position, ctx.training};
      for (int layer = range.first; layer < range.last; ++layer) {  // each lets go of what it has saved
        x = layers.forward(ctx, {layer, layer + 1}, std::move(x), saved.layers);
        layers.clear({layer, layer + 1}, saved.layers);
      }
    }
    return x;
  }
  /// All of the backward, or its first part, from the last layer to the first.
  template <class Ctx>
  [[nodiscard]] Gradient backward(Ctx& ctx, Gradient dy, StageSaved<L>& saved, Phase phase) const {
    for (std::size_t g = groups.size(); g-- > 0;) {
      if (groups[g].checkpointed) repeat(ctx, groups[g], saved.groups[g], saved.layers);
      dy = layers.backward(ctx, groups[g].layers, std::move(dy), saved.layers, phase);
    }
    return dy;
  }

 private:
  template <class Ctx>
  void repeat(Ctx& ctx, const LayerGroup& group, CheckpointedGroup<L>& kept, typename L::Saved& saved) const {
    RandomPosition position = kept.position;
    if (!group.same_randomness) position.step ^= std::uint64_t{1} << 63;
    const RunAgain again(ctx, position, kept.training);
    (void)layers.forward(ctx, group.layers, std::move(kept.input), saved);
    kept.input = {};
  }
};

}  // namespace smp
