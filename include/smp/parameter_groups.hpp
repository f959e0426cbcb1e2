// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Parameters that are updated in another way than the rest: at another learning rate, or without weight decay. Groups
/// go by the names of parameters, so they hold for parts and shards of them, too, wherever those are cut.

#include <string>

#include <fnmatch.h>

namespace smp {

/// What an update does to some parameters, beside what the optimizer does to all.
struct UpdateRule {
  bool decay = true;  ///< weight decay applies
  double rate = 1;    ///< the learning rate is multiplied by it
  friend constexpr bool operator==(const UpdateRule&, const UpdateRule&) = default;
};

/// Some parameters by name. The first group with a name is the one that counts.
///
///     smp::DataParallel trainer(ctx, Net{}, smp::optim::AdamW{}, {.groups = {{.names = "h.*", .rate = 0.1}}});
struct ParameterGroup {
  std::string
      names;        ///< paths in the whole model, or names of ties: `*` stands for anything, dots too, `?` for a letter
  double rate = 1;  ///< the learning rate is multiplied by it; 0: the parameters stay as they are
  bool decay = true;  ///< false: without weight decay; true: as the module says

  /// Whether a parameter is one of them.
  [[nodiscard]] bool has(const std::string& name) const { return ::fnmatch(names.c_str(), name.c_str(), 0) == 0; }
};

}  // namespace smp
