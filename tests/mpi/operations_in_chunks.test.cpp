// SPDX-License-Identifier: Apache-2.0
// Every operation once more, with so small a limit on messages and so small segments that everything is cut: what
// otherwise happens from 2 GiB on.
// ranks: 1 2 3 4 8
#include <array>

#include <doctest/doctest.h>

#include "comm/operations.hpp"
#include "comm/ordered_sums.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

constexpr smp::comm::MpiOptions small_messages{.largest_message = 1000, .segment = 512};
constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};
constexpr std::array<std::size_t, 4> sizes{0, 1, 17, 4096};
using OneOfEachWidth = Types<double, float, smp::Float16, std::int8_t>;

TEST_CASE("messages cut at 1000 bytes arrive whole") {
  on_ranks(worlds, [](World& world) {
    World cut(world.handle(), small_messages);
    check_operations(cut, sizes, OneOfEachWidth());
    for (const auto& calls : all_reductions<World, OneOfEachWidth>()) check_ordered_sums(cut, 5003, calls);
  });
}

}  // namespace
