// SPDX-License-Identifier: Apache-2.0
// The kernels that reduce: order of the ranks, one rounding, any part of a buffer, several outputs, outputs that are
// inputs.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/reduction.hpp>

#include "support/oracle.hpp"

namespace {

using namespace smp::testing;
using smp::Store;
using smp::comm::ReduceBuffers;
using smp::comm::reduction_of;
using smp::comm::ReductionTraits;

/// Reduces elements [offset, offset + count) of the random values of `ranks` ranks into `copies` outputs of `size`.
template <class T, class Op>
std::vector<std::vector<T>> run_kernel(std::size_t ranks, std::size_t size, std::size_t offset, std::size_t count,
                                       std::size_t copies, Store store) {
  std::vector<std::vector<T>> inputs(ranks, std::vector<T>(size));
  std::vector<std::vector<T>> outputs(copies, std::vector<T>(size, rounded<T>(99)));
  std::vector<const std::byte*> in;
  std::vector<std::byte*> out;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t i = 0; i < size; ++i) inputs[r][i] = random_value<T>(static_cast<int>(r), i);
    in.push_back(reinterpret_cast<const std::byte*>(inputs[r].data()));
  }
  for (auto& o : outputs) out.push_back(reinterpret_cast<std::byte*>(o.data()));
  reduction_of<T, Op>().kernel(ReduceBuffers{in.data(), ranks, out.data(), copies}, offset, count, store);
  return outputs;
}

template <class T, class Op>
void check_kernel(std::size_t ranks, std::size_t size, std::size_t offset, std::size_t count, Store store) {
  const auto outputs = run_kernel<T, Op>(ranks, size, offset, count, 2, store);
  CHECK(std::equal(outputs[0].begin(), outputs[0].end(), outputs[1].begin(),
                   [](T a, T b) { return bits(a) == bits(b); }));
  for (std::size_t i = 0; i < size; ++i) {
    const bool inside = i >= offset && i < offset + count;
    const T expected = inside ? reduced_random<Op, T>(static_cast<int>(ranks), i) : rounded<T>(99);
    if (bits(outputs[0][i]) != bits(expected)) FAIL_CHECK(type_name<T>(), " ", ranks, " ranks, element ", i);
  }
}

TEST_CASE("kernels reduce in rank order and round once, at the ends of their blocks as well") {
  for_each_type(AllElements(), [&]<class T>() {
    for_each_reduction<T>([&]<class Op>(Op) {
      const std::size_t block = 8192 / sizeof(typename smp::comm::ElementTraits<T>::Accumulator);
      for (const std::size_t ranks : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{8}}) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, block - 1, block, block + 1, 2 * block + 3}) {
          check_kernel<T, Op>(ranks, count, 0, count, Store::cached);
          check_kernel<T, Op>(ranks, count + 10, 7, count, Store::streaming);
        }
      }
    });
  });
}

TEST_CASE("an output may be any of the inputs") {
  for (std::size_t place = 0; place < 4; ++place) {
    std::vector<std::vector<float>> inputs(4, std::vector<float>(5000));
    std::vector<const std::byte*> in;
    for (int r = 0; r < 4; ++r) {
      auto& mine = inputs[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = random_value<float>(r, i);
      in.push_back(reinterpret_cast<const std::byte*>(mine.data()));
    }
    auto* out = reinterpret_cast<std::byte*>(inputs[place].data());
    reduction_of<float, smp::Sum>().kernel(ReduceBuffers{in.data(), 4, &out, 1}, 0, 5000, Store::streaming);
    for (std::size_t i = 0; i < 5000; ++i) {
      if (bits(inputs[place][i]) != bits(reduced_random<smp::Sum, float>(4, i))) FAIL_CHECK("element ", i);
    }
  }
}

TEST_CASE("combine and finish by their values") {
  using Sum = ReductionTraits<smp::Sum>;
  static_assert(Sum::combine<std::int8_t>(127, 1) == -128);
  static_assert(Sum::combine<std::int16_t>(-32768, -1) == 32767);
  static_assert(Sum::combine<std::int32_t>(2147483647, 1) == -2147483647 - 1);
  static_assert(Sum::combine<std::int64_t>(9223372036854775807, 1) == -9223372036854775807 - 1);
  static_assert(Sum::combine<std::uint16_t>(65535, 65535) == 65534);
  static_assert(Sum::combine<std::uint64_t>(18446744073709551615u, 2) == 1);
  static_assert(Sum::finish(7.0, 2) == 7.0);
  static_assert(ReductionTraits<smp::Average>::finish(7.0, 2) == 3.5);
  static_assert(ReductionTraits<smp::Maximum>::combine(-1, -2) == -1);
  static_assert(ReductionTraits<smp::Minimum>::combine(1u, 2u) == 1u);
}

TEST_CASE("reductions and elements have names for messages") {
  CHECK(std::string(name(reduction_of<float, smp::Sum>().op)) == "sum");
  CHECK(std::string(name(reduction_of<float, smp::Average>().op)) == "average");
  CHECK(std::string(name(reduction_of<float, smp::Maximum>().op)) == "maximum");
  CHECK(std::string(name(reduction_of<float, smp::Minimum>().op)) == "minimum");
  std::string names;
  for_each_type(AllElements(), [&]<class T>() { names += std::string(type_name<T>()) + " "; });
  CHECK(names == "float double fp16 bf16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 ");
  CHECK(std::string(type_name<std::array<int, 3>>()) == "bytes");
}

TEST_CASE("what can be reduced is a closed list") {
  using smp::comm::Reducible;
  static_assert(Reducible<float> && Reducible<smp::BFloat16> && Reducible<std::uint8_t> && Reducible<std::int64_t>);
  static_assert(!Reducible<bool> && !Reducible<char> && !Reducible<std::byte> && !Reducible<int*>);
  static_assert(!Reducible<const float> && !Reducible<std::array<float, 2>>);
}

}  // namespace
