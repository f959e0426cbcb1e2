// The names of SageMaker's library over data parallelism: the same numbers as DataParallel and step, accumulation,
// hooks, and ranks whose data ends earlier than that of others.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/optim/sgd.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/distributed_model.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using T = double;
using Values = smp::TensorOf<T>;
using Topology = smp::Topology<smp::Degrees{.rdp = smp::dynamic}>;
using Net = smp::Sequential<Dense<T>, Dense<T>>;

Net net() { return Net(Dense<T>(4, 4), Dense<T>(4, 4)); }
template <class Model>
std::vector<double> values(Model& model) {
  std::vector<double> all;
  model.local_parameters([&](auto v, auto) { all.insert(all.end(), v.begin(), v.end()); });
  return all;
}

}  // namespace

TEST_CASE("it is DataParallel and step under other names; two passes are one batch") {
  on_ranks({1, 2}, [](auto& world) {
    smp::Worker worker(world, Topology(world.size()), 9);
    const int ranks = world.size(), rank = world.rank();
    smp::DistributedModel model(worker, net(), smp::optim::Sgd{.momentum = 0.9},
                                {.microbatches = 2, .backward_passes_per_step = 2, .gradient_clipping = 0.01});
    smp::DistributedOptimizer optimizer(model, {.peak = 0.5, .warmup = 1});
    auto ctx = worker.context();
    smp::DataParallel plain(ctx, net(), smp::optim::Sgd{.momentum = 0.9}, {.clip = 0.01});
    int hooks = 0;
    auto first = model.register_post_step_hook([&] { hooks += 1; });
    {
      const auto second = model.register_post_step_hook([&] { hooks += 10; });
      CHECK_THROWS_WITH_AS(optimizer.step(),
                           "smp: the optimizer's step() comes after 2 backward passes, but there have been 0",
                           smp::ConfigError);
      for (int pass = 0; pass < 2; ++pass) {
        const int begin = (rank * 2 + pass) * 4 / ranks;
        const auto x = samples(worker.memory(), begin, begin + 4 / ranks, 4, 0);
        const auto y = samples(worker.memory(), begin, begin + 4 / ranks, 4, 1);
        CHECK(model.step(SquaredError<T>{}, x, y).mean() > 0);
        smp::step(ctx, plain, SquaredError<T>{}, x, y, {.microbatches = 2, .passes = 2, .pass = pass});
        if (pass == 1) CHECK_THROWS_AS(model.step(SquaredError<T>{}, x, y), smp::ConfigError);
      }
      CHECK(optimizer.learning_rate() == 0.25);
      const double norm = optimizer.step();
      CHECK(norm == plain.step(ctx, 0.25));
      CHECK(norm > 0.01);
    }
    CHECK(hooks == 11);
    CHECK(optimizer.learning_rate() == 0.5);
    std::vector<double> expected;
    plain.for_each_parameter([&](std::string_view name, const smp::Shape&, auto v, auto) {
      CHECK(!model.is_distributed_parameter(name));
      expected.insert(expected.end(), v.begin(), v.end());
    });
    CHECK(values(model) == expected);
    CHECK(model(samples(worker.memory(), 0, 3, 4, 0)).concat().shape() == smp::Shape{3, 4});
    first.remove();
    const auto x = samples(worker.memory(), rank, rank + 1, 4, 0);
    (void)model.step(SquaredError<T>{}, x, x);
    optimizer.zero_grad();
    (void)model.step(SquaredError<T>{}, x, x);
    (void)model.step(SquaredError<T>{}, x, x);
    optimizer.step();
    CHECK(hooks == 11);
  });
}

TEST_CASE("join: a rank whose data has ended takes part in the steps of the others") {
  on_ranks({1, 2, 4}, [](auto& world) {
    // Three steps of 8 samples. Of several ranks, the later ones have fewer batches, and rank 0 makes up for it.
    smp::Worker worker(world, Topology(world.size()), 9);
    smp::DistributedModel model(worker, net(), smp::optim::Sgd{.momentum = 0.9});
    smp::DistributedOptimizer optimizer(model, {.peak = 0.5});
    int s = 0;
    const auto next = [&]() -> std::optional<std::pair<Values, Values>> {
      const int step = s++;
      const auto sharing = std::max(1, world.size() - step);  // ranks that have a batch in this step
      if (step == 3 || world.rank() >= sharing) return {};
      const smp::SampleRange own = smp::microbatch(8, sharing, world.rank());
      const int first = 8 * step + static_cast<int>(own.first), last = 8 * step + static_cast<int>(own.last);
      return std::pair(samples(worker.memory(), first, last, 4, 0), samples(worker.memory(), first, last, 4, 1));
    };
    std::vector<double> losses;
    model.join(SquaredError<T>{}, optimizer, next, [&](double loss) { losses.push_back(loss); });
    CHECK(losses.size() == 3);
    CHECK(s == 4);

    auto ctx = worker.context();
    smp::DataParallel whole(ctx, net(), smp::optim::Sgd{.momentum = 0.9});
    for (int step = 0; step < 3; ++step) {  // every rank runs everything: the mean is the same
      const auto x = samples(worker.memory(), 8 * step, 8 * step + 8, 4, 0);
      const auto y = samples(worker.memory(), 8 * step, 8 * step + 8, 4, 1);
      const double loss = smp::step(ctx, whole, SquaredError<T>{}, x, y).mean();
      CHECK(std::abs(losses[static_cast<std::size_t>(step)] - loss) <= 1e-13);
      whole.step(ctx, 0.5);
    }
    std::size_t i = 0;
    const std::vector<double> found = values(model);
    whole.for_each_parameter([&](std::string_view, const smp::Shape&, auto v, auto) {
      for (const auto x : v) CHECK(std::abs(found.at(i++) - static_cast<double>(x)) <= 1e-13);
    });
  });
}
