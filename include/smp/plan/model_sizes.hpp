// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A model as a planner sees it: how large its blocks are on one rank, and which units use them.

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <smp/plan/gather_uses.hpp>

namespace smp {

/// Parameters that have one fate, as they are on one rank after tensor parallelism has cut them.
struct BlockSizes {
  std::vector<std::size_t> parameters{};  ///< elements of each, in order
  std::size_t element_bytes = 4;          ///< of a value
  bool frozen = false;                    ///< has no gradient
  bool persistent = false;                ///< is never sharded
  bool cut = false;                       ///< all are parts, of which the tensor-parallel ranks have others
  bool summed_over_tp = false;            ///< the tensor-parallel ranks have summands of the gradients

  /// Elements, in all.
  [[nodiscard]] constexpr std::size_t elements() const {
    std::size_t total = 0;
    for (const std::size_t n : parameters) total += n;
    return total;
  }
  /// Bytes of an element of the gradient and of an optimizer's state: at least single precision.
  [[nodiscard]] constexpr std::size_t gradient_bytes() const { return std::max<std::size_t>(element_bytes, 4); }
};

/// A unit.
struct UnitSizes {
  std::vector<int> blocks{};  ///< that it uses
  int parent = -1;            ///< unit around it; -1: none
};

/// A model on one rank. The first unit is the root; a unit comes behind the one around it.
struct ModelSizes {
  std::vector<BlockSizes> blocks{};  ///< in the order of declaration
  std::vector<UnitSizes> units{};    ///< in the order of forward
};

/// One parameter of a list that describes a model.
struct ParameterSizes {
  int unit = 0;                   ///< that declares it
  std::size_t elements = 0;       ///< on this rank
  std::size_t element_bytes = 4;  ///< of a value
  int tie = -1;                   ///< those of one tie are one parameter; -1: of none
  bool decay = true;              ///< weight decay applies
  bool frozen = false;            ///< has no gradient
  bool cut = false;               ///< the tensor-parallel ranks have other parts of it
  bool summed_over_tp = false;    ///< the tensor-parallel ranks have summands of its gradient
};

/// What a list is made into blocks with.
struct BlockOptions {
  std::size_t persistence_threshold = 0;  ///< parameters with fewer elements are never sharded
  bool cuts_apart = false;                ///< no block has both cut and whole parameters
};

/// Blocks as `Layout` makes them: one for each unit, type, trained or frozen, sharded or persistent, summed over the
/// tensor-parallel ranks or not, and one for each tie. Inside of a block what decays comes first, and then what is cut.
/// @param parents of the units, the first of which is the root: -1
[[nodiscard]] constexpr ModelSizes make_model_sizes(std::span<const ParameterSizes> parameters,
                                                    std::span<const int> parents, const BlockOptions& options = {}) {
  ModelSizes model;
  std::vector<ParameterSizes> kinds;      // of each block: its first parameter
  std::vector<std::vector<int>> members;  // of each block: places in the list
  for (const int parent : parents) model.units.push_back({{}, parent});
  const auto persistent = [&](const ParameterSizes& p) { return p.elements < options.persistence_threshold; };
  const auto key = [&](const ParameterSizes& p) {
    return std::tuple(p.unit, p.element_bytes, p.frozen, persistent(p), p.summed_over_tp, options.cuts_apart && p.cut);
  };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSizes& p = parameters[i];
    if (p.elements == 0) continue;
    const auto same = [&](const ParameterSizes& q) { return q.tie == p.tie && (p.tie >= 0 || key(q) == key(p)); };
    const auto block = std::find_if(kinds.begin(), kinds.end(), same) - kinds.begin();
    const bool is_new = block == static_cast<std::ptrdiff_t>(kinds.size());
    if (is_new) {
      kinds.push_back(p);
      members.emplace_back();
      model.blocks.push_back(
          {{}, p.element_bytes, p.frozen, persistent(p), options.cuts_apart && p.cut, p.summed_over_tp});
    }
    if (is_new || p.tie < 0) members[static_cast<std::size_t>(block)].push_back(static_cast<int>(i));
    std::vector<int>& uses = model.units[static_cast<std::size_t>(p.unit)].blocks;
    if (std::find(uses.begin(), uses.end(), static_cast<int>(block)) == uses.end()) {
      uses.push_back(static_cast<int>(block));
    }
  }
  for (std::size_t block = 0; block < members.size(); ++block) {
    for (const auto& [decay, cut] : {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
      for (const int i : members[block]) {
        const ParameterSizes& p = parameters[static_cast<std::size_t>(i)];
        if (p.decay == decay && p.cut == cut) model.blocks[block].parameters.push_back(p.elements);
      }
    }
  }
  return model;
}

/// One pass through a unit and those inside of it, forward or backward.
struct UnitPass {
  GatherUse use;          ///< which unit, and until when
  bool backward = false;  ///< it computes gradients
};

/// The order in which a step uses units: each micro-batch runs forward, then backward in the opposite order. What is
/// recomputed inside of a unit needs nothing that is not there.
[[nodiscard]] constexpr std::vector<UnitPass> step_order(const ModelSizes& model, int microbatches) {
  std::vector<std::vector<int>> inside(model.units.size());
  for (std::size_t u = 1; u < model.units.size(); ++u) {
    inside[static_cast<std::size_t>(model.units[u].parent)].push_back(static_cast<int>(u));
  }
  std::vector<UnitPass> order;
  const auto run = [&](const auto& self, int unit, bool backward) -> void {
    const std::size_t at = order.size();
    order.push_back({{unit, 0}, backward});
    const std::vector<int>& inner = inside[static_cast<std::size_t>(unit)];
    for (std::size_t i = 0; i < inner.size(); ++i) self(self, inner[backward ? inner.size() - 1 - i : i], backward);
    order[at].use.until = static_cast<int>(order.size());
  };
  for (int m = 0; m < microbatches; ++m) {
    run(run, 0, false);
    run(run, 0, true);
  }
  return order;
}

/// The blocks in the order in which forward uses them: those that are trained, then the frozen ones.
[[nodiscard]] constexpr std::vector<int> blocks_in_order(const ModelSizes& model) {
  std::vector<int> order;
  for (const bool frozen : {false, true}) {
    for (const UnitSizes& unit : model.units) {
      std::vector<int> used;
      for (const int b : unit.blocks) {
        if (model.blocks[static_cast<std::size_t>(b)].frozen == frozen &&
            std::find(order.begin(), order.end(), b) == order.end()) {
          used.push_back(b);
        }
      }
      std::sort(used.begin(), used.end());
      order.insert(order.end(), used.begin(), used.end());
    }
  }
  return order;
}

}  // namespace smp
