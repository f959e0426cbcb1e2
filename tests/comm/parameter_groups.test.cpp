// SPDX-License-Identifier: Apache-2.0
// Groups of parameters with learning rates of their own, and without weight decay, under every strategy.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/optim/adam.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"
#include "support/weights.hpp"

namespace {

using namespace smp::testing;
using smp::ParameterGroup;

using T = double;
using Plain = Dense<T>;
using Net = smp::Sequential<Plain, Dense<T, "tie">, Plain, Dense<T, "tie">>;
using Groups = std::vector<ParameterGroup>;

Net net() { return Net(Plain(3, 3), Dense<T, "tie">(3, 3), Plain(3, 3), Dense<T, "tie">(3, 3)); }

/// All strategies; a shard is at most five elements, and cuts through parameters.
std::vector<smp::AnyStrategyOptions> strategies(const Groups& groups) {
  return {smp::DataParallelOptions{.groups = groups, .bucket_bytes = 100},
          smp::ShardedOptimizerOptions{.groups = groups, .bucket_bytes = 100},
          smp::ShardedOptions{.clip = 0, .groups = groups, .persistence_threshold = 0}};
}

/// What one update adds to each parameter; the gradients are those of a batch, or zero.
template <class World, class Opt>
Weights changes(World& world, const smp::AnyStrategyOptions& options, const Opt& optimizer, bool gradients) {
  const smp::DynamicTopology topology(
      smp::degrees_for(world.size(), {.rdp = smp::dynamic, .sdp = world.size() > 2 ? world.size() / 2 : world.size()}));
  smp::Worker worker(world, topology, 3);
  auto ctx = worker.context();
  smp::AnyStrategy trainer(ctx, net(), optimizer, options);
  const Weights before = weights(ctx, trainer);
  if (gradients) {
    smp::TensorOf<T> x(worker.memory(), {2, 3}), y(worker.memory(), {2, 3});
    for (std::size_t i = 0; i < x.size(); ++i) {
      x.data()[i] = std::sin(0.7 * static_cast<double>(i) + world.rank());
      y.data()[i] = 0.1 * static_cast<double>(i);
    }
    smp::step(ctx, trainer, SquaredError<T>{}, x, y);
  }
  trainer.step(ctx, 1.0);
  Weights after = weights(ctx, trainer);
  for (auto& [name, values] : after) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
  }
  return after;
}

}  // namespace

TEST_CASE("each parameter learns at the rate of its first group, whatever the strategy cuts through") {
  on_few_ranks({1, 2, 4, 8}, [](auto& world) {
    const Groups groups{{.names = "0.bias", .rate = 0}, {.names = "*.bias", .rate = 0.5}, {.names = "t?e", .rate = 2}};
    const std::map<std::string, double> rates{{"0.weight", 1}, {"0.bias", 0},   {"tie", 2},     {"1.bias", 0.5},
                                              {"2.weight", 1}, {"2.bias", 0.5}, {"3.bias", 0.5}};
    const auto plain = strategies({}), grouped = strategies(groups);
    for (std::size_t s = 0; s < plain.size(); ++s) {
      CAPTURE(s);
      const Weights all = changes(world, plain[s], smp::optim::Sgd({.momentum = 0.9}), true);
      const Weights found = changes(world, grouped[s], smp::optim::Sgd({.momentum = 0.9}), true);
      REQUIRE(found.size() == rates.size());
      for (const auto& [name, values] : found) {
        CAPTURE(name);
        for (std::size_t i = 0; i < values.size(); ++i) {
          CHECK(all.at(name)[i] != 0);
          CHECK(std::abs(values[i] - rates.at(name) * all.at(name)[i]) <= 1e-13);
        }
      }
    }
  });
}

TEST_CASE("case 31: decay follows the rate of a group, and a group can be without it") {
  on_few_ranks({1, 2, 4, 8}, [](auto& world) {
    const smp::optim::AdamW optimizer({.weight_decay = 0.1});
    const Groups groups{{.names = "0.weight", .rate = 0.5}, {.names = "2.*", .rate = 3, .decay = false}};
    const auto plain = strategies({}), grouped = strategies(groups);
    for (std::size_t s = 0; s < plain.size(); ++s) {
      CAPTURE(s);
      const Weights all = changes(world, plain[s], optimizer, false),
                    found = changes(world, grouped[s], optimizer, false);
      for (const auto& [name, values] : found) {
        CAPTURE(name);
        const double expected = name == "0.weight" ? 0.5 : name == "tie" ? 1 : 0;  // of -0.1 w; biases do not decay
        for (std::size_t i = 0; i < values.size(); ++i) {
          CHECK((all.at(name)[i] != 0) == (name.find("bias") == std::string::npos));
          CHECK(std::abs(values[i] - expected * all.at(name)[i]) <= 1e-16);
        }
      }
    }
  });
}

TEST_CASE("a group without parameters, or with a rate that is none, is refused on all ranks") {
  on_few_ranks({1, 2, 4}, [](auto& world) {
    smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(world.size(), {.rdp = smp::dynamic})), 3);
    auto ctx = worker.context();
    for (const auto& options : strategies({{.names = "0.*"}, {.names = "?.weights"}})) {
      CHECK_THROWS_WITH_AS(
          smp::AnyStrategy(ctx, net(), smp::optim::Sgd{}, options),
          "smp: no parameter of the model is called \"?.weights\", or all that are belong to an earlier "
          "group: this parameter group has none",
          smp::ConfigError);
    }
    for (const auto& options : strategies({{.names = "0.*", .rate = -1}})) {
      CHECK_THROWS_WITH_AS(smp::AnyStrategy(ctx, net(), smp::optim::Sgd{}, options),
                           "smp: the parameter group \"0.*\" multiplies the learning rate by -1.000000: expected a "
                           "number from 0",
                           smp::ConfigError);
    }
  });
}
