// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Whether parameters that every tensor-parallel rank has whole are still equal on all of them: if a gradient were
/// summed over the wrong ranks, they would drift apart.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parameter.hpp>
#include <smp/random.hpp>
#include <smp/topology.hpp>

namespace smp {

/// Compares, by a hash of their bits, the parameters of `model`, a strategy, that are not cut with those of the other
/// tensor-parallel ranks. All ranks of the group call it; waits for the result.
/// @throws ConfigError on all ranks, naming the first parameter that differs
template <class Ctx, class Strategy>
void expect_equal_copies(Ctx& ctx, Strategy& model) {
  auto& tp = ctx.groups()[Group::tp];
  std::vector<std::string> names;
  std::vector<std::uint64_t> own;
  for (Block& block : model.layout().blocks()) {
    model.with_values(ctx, block, [&](const Block& here) {
      for (const Block::Segment& s : here.segments) {
        if (s.declaration->cut().parts > 1) continue;
        const auto* bytes = static_cast<const char*>(here.value) + s.begin * here.element_bytes;
        names.push_back(s.name);
        own.push_back(stream_of(std::string_view(bytes, (s.end - s.begin) * here.element_bytes)));
      }
    });
  }
  std::vector<std::uint64_t> all(own.size() * static_cast<std::size_t>(tp.size()));
  tp.all_gather(ctx.stream(), own, all, Purpose::control);
  ctx.stream().synchronize();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % own.size()]) continue;
    throw ConfigError("rank " + std::to_string(i / own.size()) + " of the TP group has other values of " +
                      names[i % own.size()] + " than rank 0: all have this parameter whole, and must have it equal");
  }
}

}  // namespace smp
