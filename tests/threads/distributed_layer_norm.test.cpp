// A norm over rows that are cut over ranks does what the whole does.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/distributed_layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/testing/check_distribution.hpp>

namespace {

using smp::Dim, smp::Dist, smp::Shape, smp::Tensor64;
using Norm = smp::nn::LayerNorm<double>;
using Cut = smp::nn::DistributedLayerNorm<double>;
using Features = smp::Shard<Dim::features>;

constexpr std::int64_t width = 24;

/// The largest differences of output, input gradient, and parameter gradients, in units of 1e-13.
std::vector<double> differences(int ranks) {
  using namespace smp::testing;
  const Shape shape{3, 2, width};
  const Results whole = results_of_whole(Norm(width), {shape});
  std::vector<double> worst(4, 0.0);
  smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
    OneRank<Cut> rank(Cut(Norm(width), world.rank(), world.size()));
    rank.randomise(0.5);
    const TpGroup groups{world};
    smp::Context<smp::HostStream, const TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    Cut::Saved saved{};
    const auto cut = [&](std::uint64_t stream) {
      return smp::move_to<Features>(ctx, Dist<Tensor64, smp::Invariant>{numbers(rank.memory, shape, stream)});
    };
    const auto y = smp::move_to<smp::Invariant>(ctx, rank.model.forward(ctx, cut(1), saved));
    const auto dx = smp::move_to<smp::Invariant>(ctx, rank.model.backward(ctx, cut(2), saved));
    if (world.rank() != ranks - 1) return;
    const auto compare = [&](std::size_t which, const std::string& name, const double* found, std::size_t first,
                             std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) {
        worst[which] = std::max(worst[which], 1e13 * std::abs(found[i] - whole.at(name)[first + i]));
      }
    };
    compare(0, "output", y.local.data(), 0, y.local.size());
    compare(1, "input gradient", dx.local.data(), 0, dx.local.size());
    const std::size_t part = width / static_cast<std::size_t>(ranks), first = width - part;
    compare(2, "weight", rank.model.weight.grad().data(), first, part);
    compare(3, "bias", rank.model.bias.grad().data(), first, part);
  });
  return worst;
}

}  // namespace

TEST_CASE("output and gradients are those of the whole norm") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    for (const double d : differences(ranks)) CHECK(d <= 1);
  }
}

TEST_CASE("it does what its types say") {
  const auto make = [](int rank, int ranks) { return Cut(Norm(width), rank, ranks); };
  for (const int ranks : {2, 3, 4}) CHECK(smp::testing::check_distribution(make, {2, 3, width}, ranks) == "");
}

TEST_CASE("between the parts of linear layers: no value is whole on any rank") {
  using Linear = smp::nn::Linear<double>;
  using Up = smp::TensorParallel<Linear, smp::Split::columns>;
  const auto make = [](int rank, int ranks) {
    return smp::Sequential<Up, Cut>(Up(Linear(12, width), rank, ranks), Cut(Norm(width), rank, ranks));
  };
  static_assert(std::is_same_v<decltype(make(0, 1))::Output, Dist<Tensor64, Features>>);
  for (const int ranks : {2, 4}) CHECK(smp::testing::check_distribution(make, {2, 3, 12}, ranks) == "");
  CHECK_THROWS_WITH_AS(Cut(Norm(width), 0, 5),
                       "smp: a parameter of shape [24] cannot be cut into 1 x 5 parts along dimension 0",
                       smp::ConfigError);
}
