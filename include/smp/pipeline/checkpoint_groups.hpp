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

/// Groups of consecutive layers on one stage, of each of which only the input is kept between forward and backward.
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

/// Some consecutive layers of a stage.
struct LayerGroup {
  LayerRange layers;  ///< which
  bool checkpointed;  ///< they keep their input only
  friend constexpr bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

/// The layers of a stage in groups.
[[nodiscard]] inline std::vector<LayerGroup> group_layers(LayerRange stage, const CheckpointGroups& groups) {
  std::vector<LayerGroup> all;
  const int from = std::clamp(groups.layers.first, stage.first, stage.last);
  const int to = groups.most == 0 ? from : std::clamp(groups.layers.last, from, stage.last);
  if (stage.first < from) all.push_back({{stage.first, from}, false});
  for (int first = from; first < to;) {
    const int last = to - first <= groups.most ? to : first + groups.most;
    all.push_back({{first, last}, true});
    first = last;
  }
  if (to < stage.last) all.push_back({{to, stage.last}, false});
  return all;
}

}  // namespace smp
