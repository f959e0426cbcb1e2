// SPDX-License-Identifier: Apache-2.0
// Where gathered parameters are while nothing is planned: before the first step, in evaluations, behind a change.
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include <smp/device/memory.hpp>
#include <smp/parallel/gathered_storage.hpp>

namespace {

using smp::MemoryUse;
using Storage = smp::GatheredStorage<smp::FlatArray<std::byte>>;

/// A root of 40 bytes around units of 10, 60 and 25 + 35 bytes; then every block by itself.
Storage storage(smp::Memory& memory, std::size_t max_live) {
  return {memory,
          {{0}, {1}, {2}, {3, 4}, {0}, {1}, {2}, {3}, {4}},
          {60, 0, 0, 0, 0, 0, 0, 0, 0},
          {40, 10, 60, 25, 35},
          100,
          max_live};
}
std::size_t held(const smp::Memory& memory) { return memory[MemoryUse::buffer].peak; }

}  // namespace

TEST_CASE("what lies badly goes: nothing is held beyond the arena, whatever has been looked at before") {
  for (const bool training : {false, true}) {
    smp::Memory memory;
    Storage s = storage(memory, 0);
    for (const int first : {1, 4, 2, 5, 6, 7, 8}) {  // alone, as when parameters are read
      s.enter(first, false);
      s.leave(first, false);
      s.enter(4, false);
      s.leave(4, false);
      s.enter(0, training);
      for (const int unit : {3, 1, 2, 3, 2, 1}) {
        CAPTURE(first);
        CAPTURE(unit);
        const auto change = s.enter(unit, training);
        CHECK(s.live_bytes() <= 100);
        for (const auto& g : change.gathered) CHECK(g.place != nullptr);
        s.leave(unit, training);
      }
      s.leave(0, training);
      CHECK(held(memory) == 100);
    }
    s.end_step(true);
    CHECK(held(memory) == 100);
  }
}

TEST_CASE("a unit that the plan does not know finds room, or is given some until the end of the step") {
  smp::Memory memory;
  Storage s = storage(memory, 0);
  const auto step = [&](const std::vector<int>& units) {
    s.enter(0, true);
    for (const int unit : units) {
      s.enter(unit, true);
      for (const int b : s.blocks(unit)) REQUIRE(s.place(b) != nullptr);
      s.leave(unit, true);
    }
    s.leave(0, true);
    s.end_step(true);
    CHECK(memory[MemoryUse::buffer].live == 100);
  };
  step({1});
  step({2, 3, 1});
  step({2, 3, 1});
  step({2, 3, 1});
  CHECK(held(memory) <= 160);
}

TEST_CASE("orders have numbers: what deviates from the plan in two ways has two") {
  smp::Memory memory;
  const auto order = [&](int unit) {
    Storage s = storage(memory, 0);
    for (const int used : {1, unit}) {
      s.enter(used, true);
      s.leave(used, true);
      if (used == unit) return s.order_hash();
      s.end_step(true);
    }
    return s.order_hash();
  };
  CHECK(order(2) == order(2));
  CHECK((order(2) & 0xFFFF) != (order(3) & 0xFFFF));
}

TEST_CASE("when the shards have been written, nothing that was gathered is used again") {
  smp::Memory memory;
  Storage s = storage(memory, 1000);
  for (const int times : {1, 0}) {
    CHECK(s.enter(2, false).gathered.size() == static_cast<std::size_t>(times));
    s.leave(2, false);
  }
  s.forget();
  CHECK(s.enter(2, false).gathered.size() == 1);
}
