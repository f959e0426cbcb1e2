// Memory by category, and the handles that use it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/flat_storage.hpp>
#include <smp/tensor.hpp>

using smp::Memory, smp::MemoryUse, smp::Tensor;

TEST_CASE("live and peak bytes are those that were asked for, by category") {
  Memory memory;
  {
    const Tensor a(memory, {3, 5});
    CHECK(memory[MemoryUse::activation].live == 60);
    {
      const Tensor b(memory, {7}, MemoryUse::buffer);
      const Tensor c(memory, {10});
      CHECK(memory[MemoryUse::activation].live == 100);
      CHECK(memory[MemoryUse::buffer].live == 28);
    }
    CHECK(memory[MemoryUse::activation].live == 60);
  }
  CHECK(memory[MemoryUse::activation].live == 0);
  CHECK(memory[MemoryUse::activation].peak == 100);
  CHECK(memory[MemoryUse::buffer].peak == 28);
  memory.reset_peaks();
  CHECK(memory[MemoryUse::activation].peak == 0);

  memory.count(MemoryUse::parameter, 1000);
  CHECK(memory[MemoryUse::parameter].live == 1000);
  memory.uncount(MemoryUse::parameter, 1000);
  CHECK(memory[MemoryUse::parameter].live == 0);
  CHECK(memory[MemoryUse::parameter].peak == 1000);
}

TEST_CASE(
    "storage is kept: the next tensor of about the same size gets the bytes of the last, aligned to a cache line") {
  Memory memory;
  const float* first = nullptr;
  {
    const Tensor a(memory, {1000});
    first = a.data();
  }
  const Tensor b(memory, {1001});
  CHECK(b.data() == first);
  const Tensor c(memory, {1001});
  CHECK(c.data() != first);
  CHECK(reinterpret_cast<std::uintptr_t>(c.data()) % Memory::alignment == 0);
}

TEST_CASE("checked: what is released is NaN, and the next tensor lies elsewhere") {
  Memory memory;
  memory.check_released();
  const float* stale = nullptr;
  {
    Tensor a(memory, {100});
    std::fill(a.begin(), a.end(), 1.0f);
    stale = std::as_const(a).data();
  }
  CHECK(std::all_of(stale, stale + 100, [](float x) { return std::isnan(x); }));
  const Tensor b(memory, {100});
  CHECK(b.data() != stale);
  std::set<const float*> places;
  for (int i = 0; i < 10; ++i) places.insert(Tensor(memory, {100}).data());
  CHECK(places.size() == 2);  // they take turns: nothing grows
}

TEST_CASE("copies of a tensor are handles of the same elements; the last one gives the storage back") {
  Memory memory;
  Tensor a(memory, {2, 2});
  Tensor b = a;
  CHECK(b.data() == std::as_const(a).data());
  CHECK(a.handles() == 2);
  const Tensor moved = std::move(b);
  CHECK(a.handles() == 2);
  a = Tensor();
  CHECK(memory[MemoryUse::activation].live == 16);
  CHECK(moved.handles() == 1);
  Tensor& self = a;
  a = self;
  CHECK(a.empty());
}

TEST_CASE("what an assignment of {} replaces is given back at once, in a template too") {
  Memory memory;
  Tensor tensor(memory, {10});
  smp::FlatArray<float> array(memory, MemoryUse::buffer, 10);
  // Names of the template, but not of its parameter: what clang 16 gets wrong if assignment takes a value.
  const auto replace = [&](auto) { tensor = {}, array = {}; };
  replace(0);
  CHECK(memory[MemoryUse::activation].live == 0);
  CHECK(memory[MemoryUse::buffer].live == 0);

  Tensor same(memory, {10});
  Tensor& itself = same;
  same = itself;
  same = std::move(itself);
  CHECK(same.size() == 10);
}

TEST_CASE("a tensor without elements has a shape and no bytes, and one of zero rows is not empty") {
  Memory memory;
  const Tensor zero(memory, {0, 8});
  CHECK(zero.size() == 0);
  CHECK_FALSE(zero.empty());
  CHECK(zero.shape()[-1] == 8);
  CHECK(memory[MemoryUse::activation].live == 0);
  CHECK(to_string(smp::Shape{0, 8}) == "[0, 8]");
  CHECK_THROWS_WITH_AS(smp::Shape({-1}), "smp: a tensor cannot have the size -1", smp::ConfigError);
}

TEST_CASE("every tensor of a value is found, also in tuples, vectors, structs with fields and distributed values") {
  struct Pair {
    Tensor x;
    smp::Ids ids;
    int number = 7;
    static constexpr auto fields() {
      return smp::fields(smp::field("x", &Pair::x), smp::field("ids", &Pair::ids), smp::field("number", &Pair::number));
    }
  };
  Memory memory;
  std::tuple<smp::Dist<Tensor, smp::Partial>, std::vector<Pair>, smp::NoGrad> value;
  std::get<1>(value).resize(3);
  int tensors = 0;
  smp::for_each_tensor(value, [&](auto&) { ++tensors; });
  CHECK(tensors == 1 + 3 * 2);
}
