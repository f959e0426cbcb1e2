// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which layers of a stage keep their input together instead of their activations. The strategies are those of
/// SageMaker's `checkpoint_sequential`.

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <smp/error.hpp>

namespace smp {

/// Layers `first` to `last - 1` of a model.
struct LayerRange {
  int first = 0, last = 0;  ///< `last` is the first layer after the range
  friend constexpr bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// Groups of consecutive layers on one stage, of each of which only the input is kept between forward and backward. No
/// layer is in two of them: what is in a `CheckpointedTree` already is left to that. A layer that is `Checkpointed`
/// itself keeps its input only in the second pass as well, for a third.
struct CheckpointGroups {
  static constexpr int all = std::numeric_limits<int>::max();  ///< as many as there are

  int most = 0;                 ///< layers of a group; 0: nothing is computed twice
  LayerRange layers{0, all};    ///< of the model; layers outside keep their activations
  bool same_randomness = true;  ///< what is drawn in the second pass is what was drawn in the first

  /// "none", "each" (groups of one), "contiguous" (all layers on a stage are one group) or "group_3" (of up to three).
  /// @throws ConfigError for another word
  [[nodiscard]] static CheckpointGroups named(std::string_view word) {
    CheckpointGroups groups;
    constexpr std::string_view group = "group_";
    if (word == "none") return groups;
    if (word == "each") groups.most = 1;
    if (word == "contiguous") groups.most = all;
    if (word.starts_with(group)) {
      const char* const end = word.data() + word.size();
      const auto [stop, error] = std::from_chars(word.data() + group.size(), end, groups.most);
      if (error != std::errc{} || stop != end) groups.most = 0;
    }
    if (groups.most < 1) {
      throw ConfigError("a checkpointing strategy is none, each, contiguous or group_ with a number from 1, as in " +
                        std::string("group_3; found \"") + std::string(word) + "\"");
    }
    return groups;
  }
};

/// A child of the model that is checkpointed as a whole.
struct CheckpointedTree {
  std::string name;   ///< in the model
  LayerRange layers;  ///< what it consists of; not empty
};

/// Some consecutive layers of a stage.
struct LayerGroup {
  LayerRange layers;            ///< which
  bool checkpointed;            ///< they keep their input only
  bool same_randomness = true;  ///< if so, in both passes
  friend constexpr bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

/// Adds some layers of a stage, as `groups` says.
inline void append_groups(std::vector<LayerGroup>& all, LayerRange some, const CheckpointGroups& groups) {
  const int from = std::clamp(groups.layers.first, some.first, some.last);
  const int to = groups.most == 0 ? from : std::clamp(groups.layers.last, from, some.last);
  if (some.first < from) all.push_back({{some.first, from}, false});
  for (int first = from; first < to;) {
    const int last = to - first <= groups.most ? to : first + groups.most;
    all.push_back({{first, last}, true, groups.same_randomness});
    first = last;
  }
  if (to < some.last) all.push_back({{to, some.last}, false});
}

/// The layers of a stage in groups: each tree that lies in it as a whole is one, with the same random numbers in both
/// passes; all other layers, those of a tree that is cut among them, are grouped as `groups` says.
[[nodiscard]] inline std::vector<LayerGroup> group_layers(LayerRange stage, const CheckpointGroups& groups,
                                                          const std::vector<CheckpointedTree>& trees = {}) {
  std::vector<LayerGroup> all;
  for (const CheckpointedTree& tree : trees) {
    if (tree.layers.first < stage.first || tree.layers.last > stage.last) continue;
    append_groups(all, {stage.first, tree.layers.first}, groups);
    all.push_back({tree.layers, true});
    stage.first = tree.layers.last;
  }
  append_groups(all, stage, groups);
  return all;
}

}  // namespace smp
