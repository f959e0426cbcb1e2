// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The parameters of a model that a strategy holds, in double precision, wherever they are.

#include <map>
#include <string>
#include <vector>

#include <smp/parameter.hpp>

namespace smp::testing {

/// Values by name.
using Weights = std::map<std::string, std::vector<double>>;

/// Calls `f(segment, values)` for each parameter while it is here. All ranks call it.
template <class Ctx, class Trainer, class F>
void for_each_value(Ctx& ctx, Trainer& trainer, F f) {
  for (Block& block : trainer.layout().blocks()) {
    trainer.with_values(ctx, block, [&](const Block& here) {
      for (const auto& s : here.segments) f(s, static_cast<const double*>(here.value) + s.begin);
    });
  }
}

/// All parameters.
template <class Ctx, class Trainer>
Weights weights(Ctx& ctx, Trainer& trainer) {
  Weights all;
  for_each_value(ctx, trainer, [&](const auto& s, const double* v) { all[s.name].assign(v, v + (s.end - s.begin)); });
  return all;
}

}  // namespace smp::testing
