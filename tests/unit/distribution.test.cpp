// What distribution types promise is a matter of types, so the compiler does the testing.
#include <cstdint>
#include <type_traits>

#include <doctest/doctest.h>

#include <smp/distribution.hpp>

namespace {

using smp::Dist;
using smp::GradOf;

struct Tensor {
  int value = 0;
};
struct Ids {};

}  // namespace

template <>
struct smp::GradOfT<Ids> {
  using type = NoGrad;
};

namespace {

template <class T, class U>
constexpr bool same = std::is_same_v<T, U>;

// Gradients: Replicated and Partial swap, all others stay, twice is the identity.
static_assert(same<smp::GradOn<smp::Invariant>, smp::Invariant> && same<smp::GradOn<smp::Varying>, smp::Varying>);
static_assert(same<smp::GradOn<smp::Replicated>, smp::Partial> && same<smp::GradOn<smp::Partial>, smp::Replicated>);
static_assert(same<smp::GradOn<smp::Shard<smp::Dim::batch>>, smp::Shard<smp::Dim::batch>>);
static_assert(!same<smp::Shard<smp::Dim::batch>, smp::Shard<smp::Dim::sequence>>);

static_assert(same<GradOf<Tensor>, Tensor>);
static_assert(same<GradOf<Dist<Tensor, smp::Partial>>, Dist<Tensor, smp::Replicated>>);
static_assert(same<GradOf<Dist<Tensor, smp::Invariant, smp::Replicated>>, Dist<Tensor, smp::Invariant, smp::Partial>>);

// What has no gradient has none in any company.
static_assert(same<GradOf<Ids>, smp::NoGrad> && same<GradOf<Dist<Ids, smp::Replicated>>, smp::NoGrad>);
static_assert(
    same<GradOf<std::tuple<Dist<Tensor, smp::Partial>, Ids>>, std::tuple<Dist<Tensor, smp::Replicated>, smp::NoGrad>>);

// A `Dist` is its value: an aggregate of the same size, without a constructor that would cost instructions.
static_assert(std::is_aggregate_v<Dist<Tensor>> && sizeof(Dist<Tensor>) == sizeof(Tensor));
static_assert(std::is_trivially_copyable_v<Dist<Tensor>>);
static_assert(smp::expect_distribution<smp::Shard<smp::Dim::sequence>, smp::Shard<smp::Dim::sequence>>());

}  // namespace

TEST_CASE("a distributed value is built in place and reads as the value") {
  const Dist<Tensor, smp::Replicated> x{{7}};
  CHECK(x.local.value == 7);
}
