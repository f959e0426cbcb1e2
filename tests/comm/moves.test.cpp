// Every legal move between distributions, by the adjoint test: <Mv, g> = <v, M*g>, where M* is the derived dual.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/parallel/move.hpp>
#include <smp/random.hpp>

#include "support/ranks.hpp"

namespace {

using smp::Dim, smp::Dist, smp::GradOn, smp::Group, smp::Shape, smp::Tensor64;
using smp::testing::World;

/// A communicator that is the tp group.
struct TpOnly {
  World& tp;
  World& operator[](Group) const noexcept { return tp; }
};
using Ctx = smp::Context<smp::HostStream, const TpOnly>;

constexpr bool cut(smp::SpreadOn on) { return on.kind == smp::Spread::shard || on.kind == smp::Spread::varying; }
constexpr bool same(smp::SpreadOn on) { return on == smp::Invariant::on || on == smp::Replicated::on; }

const Shape whole{12, 24, 12};

/// A value distributed as `D`: equal on all ranks where the type says so, its own on each rank elsewhere.
template <class D>
Dist<Tensor64, D> value(Ctx& ctx, std::uint64_t stream) {
  World& world = ctx.groups()[Group::tp];
  const Shape shape = cut(D::on) ? smp::slice_shape(whole, smp::cut_dim(D::on), world.size()) : whole;
  Tensor64 t(ctx.memory(), shape);
  const smp::RandomStream random{1, same(D::on) ? stream : stream + 100 * static_cast<unsigned>(world.rank() + 1)};
  for (std::size_t i = 0; i < t.size(); ++i) t.data()[i] = 2 * random.uniform(i) - 1;
  return {t};
}

/// The pairing of a value distributed as `D` with a gradient: what is counted once is divided, the rest is summed.
template <class D>
double pairing(Ctx& ctx, const Dist<Tensor64, D>& x, const Dist<Tensor64, GradOn<D>>& g) {
  World& world = ctx.groups()[Group::tp];
  std::vector<double> sum(1);
  for (std::size_t i = 0; i < x.local.size(); ++i) sum[0] += x.local.data()[i] * g.local.data()[i];
  world.all_reduce(ctx.stream(), sum, sum, smp::sum);
  return D::on == smp::Invariant::on ? sum[0] / world.size() : sum[0];
}

template <class D>
bool equal_on_all_ranks(Ctx& ctx, const Dist<Tensor64, D>& x) {
  World& world = ctx.groups()[Group::tp];
  std::vector<double> all(x.local.size() * static_cast<std::size_t>(world.size()));
  world.all_gather(ctx.stream(), x.local, all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != x.local.data()[i % x.local.size()]) return false;
  }
  return true;
}

/// How far the two sides of the adjoint test are apart, relative to the terms.
template <class From, class To>
double adjoint_error(Ctx& ctx) {
  const auto v = value<From>(ctx, 1);
  const auto g = value<GradOn<To>>(ctx, 2);
  const auto y = smp::move_to<To>(ctx, v);
  const auto dx = smp::move_to<GradOn<From>>(ctx, g);
  if (same(To::on)) CHECK(equal_on_all_ranks(ctx, y));
  if (same(GradOn<From>::on)) CHECK(equal_on_all_ranks(ctx, dx));
  return std::abs(pairing<To>(ctx, y, g) - pairing<From>(ctx, v, dx)) / static_cast<double>(whole.elements());
}

using All = std::tuple<smp::Invariant, smp::Replicated, smp::Partial, smp::Varying, smp::Shard<Dim::batch>,
                       smp::Shard<Dim::sequence>, smp::Shard<Dim::features>>;

template <std::size_t I>
int check_pair(Ctx& ctx) {
  using From = std::tuple_element_t<I / 7, All>;
  using To = std::tuple_element_t<I % 7, All>;
  if constexpr (smp::move_kind(From::on, To::on) != smp::MoveKind::illegal) {
    CAPTURE(I / 7);
    CAPTURE(I % 7);
    CHECK(adjoint_error<From, To>(ctx) <= 1e-13);
    return 1;
  }
  return 0;
}

}  // namespace

TEST_CASE("the gradient of each legal move is the move of the gradient") {
  smp::testing::on_ranks({1, 2, 3, 4}, [](World& world) {
    smp::HostStream stream;
    smp::Memory memory;
    const TpOnly groups{world};
    Ctx ctx(stream, memory, groups, 1);
    const int pairs = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (check_pair<I>(ctx) + ...);
    }(std::make_index_sequence<49>{});
    CHECK(pairs == 46);  // all but Replicated to Invariant, and whole values to summands

    // Control: Replicated as Invariant with nothing done counts the gradient once per rank.
    const auto v = value<smp::Replicated>(ctx, 1);
    const auto g = value<smp::Invariant>(ctx, 2);
    const double forward = pairing<smp::Invariant>(ctx, {v.local}, g);
    const double backward = pairing<smp::Replicated>(ctx, v, {g.local});
    CHECK(backward == doctest::Approx(world.size() * forward).epsilon(1e-12));
    CHECK(memory[smp::MemoryUse::activation].live == (v.local.size() + g.local.size()) * sizeof(double));
  });
}

TEST_CASE("a slice is where the words say, and joined slices are the whole") {
  smp::testing::on_ranks({1, 2, 4}, [](World& world) {
    smp::HostStream stream;
    smp::Memory memory;
    const TpOnly groups{world};
    Ctx ctx(stream, memory, groups, 1);
    const Dist<Tensor64, smp::Invariant> x{Tensor64(memory, {4, 2, 4})};
    for (std::size_t i = 0; i < 32; ++i) Dist<Tensor64>{x}.local.data()[i] = static_cast<double>(i);
    const int n = world.size(), r = world.rank();
    const auto rows = smp::move_to<smp::Shard<Dim::batch>>(ctx, x);
    CHECK(rows.local.shape() == Shape{4 / n, 2, 4});
    CHECK(rows.local.data()[0] == r * 32 / n);
    const auto columns = smp::move_to<smp::Shard<Dim::features>>(ctx, x);
    CHECK(columns.local.shape() == Shape{4, 2, 4 / n});
    CHECK(std::as_const(columns).local.data()[static_cast<std::size_t>(4 / n)] == 4 + r * 4 / n);
    for (const auto& joined : {smp::move_to<smp::Invariant>(ctx, rows), smp::move_to<smp::Invariant>(ctx, columns),
                               smp::move_to<smp::Invariant>(ctx, smp::move_to<smp::Shard<Dim::features>>(ctx, rows)),
                               smp::move_to<smp::Invariant>(ctx, smp::move_to<smp::Shard<Dim::batch>>(ctx, columns))}) {
      CHECK(std::vector<double>(joined.local.begin(), joined.local.end()) ==
            std::vector<double>(x.local.begin(), x.local.end()));
    }
    if (n == 4) {
      const Dist<Tensor64, smp::Invariant> odd{Tensor64(memory, {3, 2})};
      CHECK_THROWS_WITH_AS((void)smp::move_to<smp::Shard<Dim::batch>>(ctx, odd),
                           "smp: a tensor of shape [3, 2] cannot be cut into 4 equal slices along dimension 0",
                           smp::ConfigError);
    }
  });
}
