// A pipeline: any schedule over any number of ranks and micro-batches computes what one rank computes.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <smp/io/parameters.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::Group, smp::Purpose, smp::StepOptions, smp::comm::Operation;

using T = double;
using Layer = Dense<T>;
using Tied = Dense<T, "wt">;
using Net = smp::Sequential<Tied, smp::Repeat<Layer>, Tied>;
using Model = smp::Pipeline<smp::Schedule::Runtime, Net>;
constexpr std::int64_t width = 4;

/// Eight layers, of which the first and the last share their weight.
Net net() {
  return Net(Tied(width, width), smp::Repeat<Layer>(6, [](std::size_t) { return Layer(width, width); }),
             Tied(width, width));
}

struct Run {
  std::string schedule = "interleaved";
  int chunks = 1;
  int pp = 1;
  int microbatches = 1;
  std::int64_t batch = 16;  // of all ranks
  int steps = 3;
  smp::PipelineOptions options{};
  smp::AnyStrategyOptions strategy = smp::DataParallelOptions{.clip = 0.05};
  int sdp = 1;
  bool counted = false;  // ranks may have different numbers of samples
  int passes = 1;        // of a step
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  friend bool operator==(const Result&, const Result&) = default;
};

template <class World>
Result train(World& world, const Run& run) {
  const smp::DynamicTopology topology(
      smp::degrees_for(world.size(), {.pp = run.pp, .rdp = smp::dynamic, .sdp = run.sdp}));
  smp::Worker worker(world, topology, 7);
  auto ctx = worker.context();
  smp::AnyStrategy trainer(ctx, Model(ctx, net(), run.options, smp::Schedule::Runtime::named(run.schedule, run.chunks)),
                           smp::optim::AdamW({.weight_decay = 0.1}), run.strategy);
  Result result;
  const int copies = worker.groups()[Group::rdp].size(), copy = worker.groups()[Group::rdp].rank();
  for (int s = 0; s < run.steps; ++s) {
    const std::int64_t first = s * run.batch + copy * run.batch / copies;
    const std::int64_t last = s * run.batch + (copy + 1) * run.batch / copies;
    const auto x = samples(worker.memory(), first, last, width, 0), y = samples(worker.memory(), first, last, width, 1);
    double sum = 0;
    for (int pass = 0; pass < run.passes; ++pass) {
      const StepOptions options{.microbatches = run.microbatches, .passes = run.passes, .pass = pass};
      const smp::SampleRange part = smp::microbatch(last - first, run.passes, pass);
      const auto in = smp::batch_slice(x, part), out = smp::batch_slice(y, part);
      const auto loss = run.counted ? smp::step(ctx, trainer, SquaredError<T>{}, in, out, options, smp::CountSamples{})
                                    : smp::step(ctx, trainer, SquaredError<T>{}, in, out, options);
      sum += loss.mean() / run.passes;
    }
    result.losses.push_back(sum);
    result.norms.push_back(trainer.step(ctx, 0.01));
    // An evaluation in between, of another batch: the same loss on all ranks, and nothing else changes.
    const auto other = smp::evaluate(ctx, trainer, SquaredError<T>{}, x, y, 2);
    result.losses.push_back(other.mean());
  }
  std::string order;
  smp::io::for_each_whole<T>(ctx, trainer, [&](const std::string& name, std::span<const T> values) {
    CHECK(order < name);
    result.weights[order = name].assign(values.begin(), values.end());
  });
  CHECK(worker.memory()[smp::MemoryUse::activation].live == 0);
  // It is the strategy that was asked for.
  const auto reductions = [&](Operation operation) {
    std::uint64_t calls = 0;
    for (const auto& row : worker.counters().rows()) {
      calls += row.operation == operation && row.purpose == Purpose::gradient ? row.count.calls : 0;
    }
    return calls;
  };
  CHECK((reductions(Operation::reduce_scatter) > 0) == std::holds_alternative<smp::ShardedOptions>(run.strategy));
  CHECK((reductions(Operation::reduce_scatter_v) > 0) ==
        std::holds_alternative<smp::ShardedOptimizerOptions>(run.strategy));
  return result;
}

/// On a rank of `world` by itself, over the same kind of communicator: one instantiation of everything.
template <class World>
Result alone(World& world, const Run& run) {
  auto self = world.split(world.rank(), 0, "ALONE");
  return train(self, {.microbatches = run.microbatches, .batch = run.batch, .steps = run.steps});
}

/// With the chunks of a rank.
constexpr std::array schedules{std::pair("simple", 1),      std::pair("interleaved", 1),
                               std::pair("looped", 2),      std::pair("looped_breadth", 2),
                               std::pair("zero_bubble", 1), std::pair("zero_bubble_v", 2),
                               std::pair("dual_pipe_v", 2)};

void check_close(const Result& found, const Result& expected) {
  REQUIRE(found.losses.size() == expected.losses.size());
  for (std::size_t s = 0; s < found.losses.size(); ++s) {
    CHECK(std::abs(found.losses[s] - expected.losses[s]) <= 1e-12 * std::abs(expected.losses[s]));
  }
  for (std::size_t s = 0; s < found.norms.size(); ++s) {
    CHECK(std::abs(found.norms[s] - expected.norms[s]) <= 1e-12 * expected.norms[s]);
  }
  CHECK(found.weights.size() == expected.weights.size());
  for (const auto& [name, values] : found.weights) {
    CAPTURE(name);
    REQUIRE(expected.weights.contains(name));
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      worst = std::max(worst, std::abs(values[i] - expected.weights.at(name)[i]));
    }
    CHECK(worst <= 1e-12 * largest + 1e-13);
  }
}

}  // namespace

TEST_CASE("every schedule computes what one rank computes") {
  on_ranks({1, 2, 3, 4}, [](auto& world) {
    for (const auto& [name, chunks] : schedules) {
      const auto schedule = smp::Schedule::Runtime::named(name, chunks);
      for (const int microbatches : {1, 2, 4, 8, 16}) {
        const smp::PipelineShape shape = smp::shape_of(schedule, {.ranks = world.size(), .microbatches = microbatches});
        if (!smp::microbatch_rule(schedule, shape).allows(microbatches)) continue;
        CAPTURE(name);
        CAPTURE(microbatches);
        const Run run{.schedule = name,
                      .chunks = chunks,
                      .pp = world.size(),
                      .microbatches = microbatches,
                      .steps = full() ? 20 : 3};
        check_close(train(world, run), alone(world, run));
      }
    }
  });
}

TEST_CASE("the same bits, again and in another schedule that adds in the same order") {
  on_ranks({2, 4}, [](auto& world) {
    const Run run{.pp = world.size(), .microbatches = 4};
    const Result once = train(world, run);
    CHECK(train(world, run) == once);
    CHECK(train(world, {.schedule = "simple", .pp = world.size(), .microbatches = 4}) == once);
    CHECK(train(world, {.schedule = "zero_bubble", .pp = world.size(), .microbatches = 4}) == once);
    CHECK(train(world, {.pp = world.size(), .microbatches = 4, .options = {.checkpointing = {.most = 2}}}) == once);
    CHECK(train(world, {.pp = world.size(), .microbatches = 4, .options = {.overlap = false}}) == once);
  });
}

TEST_CASE("batches that do not divide, or have fewer samples than micro-batches, lose no sample") {
  on_ranks({1, 2, 3, 4}, [](auto& world) {
    const int pp = world.size();
    for (const auto& [batch, microbatches] : {std::pair(15, 4), std::pair(8, 3), std::pair(7, 3), std::pair(2, 4)}) {
      const Run run{.pp = pp, .microbatches = microbatches, .batch = batch};
      check_close(train(world, run), alone(world, run));
    }
    const Run run{.pp = pp, .microbatches = 4, .batch = 15};
    const Result fifteen = alone(world, run);
    for (const auto& [name, chunks] : schedules) {
      const auto schedule = smp::Schedule::Runtime::named(name, chunks);
      Run other = run;
      other.schedule = name;
      other.chunks = chunks;
      if (smp::microbatch_rule(schedule, smp::shape_of(schedule, {.ranks = pp, .microbatches = 4})).allows(4)) {
        check_close(train(world, other), fifteen);
      } else {
        CHECK_THROWS_AS((void)train(world, other), smp::ConfigError);
      }
    }
    check_close(train(world, {.pp = pp, .microbatches = 8, .options = {.active = 1}}), alone(world, {}));
  });
}

TEST_CASE("under data parallelism of any grade a pipeline computes what one rank computes") {
  on_few_ranks({4, 8}, [](auto& world) {
    const smp::DataParallelOptions plain{.clip = 0.05, .bucket_bytes = 200};
    const smp::ShardedOptimizerOptions optimizer{.clip = 0.05, .bucket_bytes = 200};
    const smp::ShardedOptions sharded{.clip = 0.05, .persistence_threshold = 5};
    const Result expected = alone(world, {.microbatches = 4});
    check_close(train(world, {.pp = 2, .microbatches = 4, .strategy = plain}), expected);
    check_close(train(world, {.schedule = "zero_bubble", .pp = 2, .microbatches = 2, .strategy = plain}), expected);
    check_close(train(world, {.pp = 2, .microbatches = 3, .batch = 15, .strategy = plain, .counted = true}),
                alone(world, {.batch = 15}));
    check_close(train(world, {.pp = 2, .microbatches = 2, .strategy = optimizer}), expected);
    check_close(train(world, {.schedule = "looped", .chunks = 2, .pp = 2, .microbatches = 2, .strategy = optimizer}),
                expected);
    check_close(train(world, {.pp = 2, .microbatches = 2, .strategy = sharded, .sdp = 2}), expected);
    check_close(train(world, {.schedule = "zero_bubble_v",
                              .chunks = 2,
                              .pp = world.size() / 2,
                              .microbatches = 8,
                              .strategy = sharded,
                              .sdp = 2}),
                expected);
    // One layer at a time, and everything twice: in backward again, and in two passes.
    const smp::ShardedOptions least{
        .clip = 0.05, .reduce_bucket_size = 1, .persistence_threshold = 0, .max_live_parameters = 0};
    const smp::PipelineOptions again{.checkpointing = {.most = 2}};
    for (const char* schedule : {"interleaved", "zero_bubble"}) {
      check_close(train(world, {.schedule = schedule,
                                .pp = 2,
                                .microbatches = 2,
                                .options = again,
                                .strategy = least,
                                .sdp = 2,
                                .passes = 2}),
                  expected);
      check_close(
          train(
              world,
              {.schedule = schedule, .pp = 2, .microbatches = 2, .options = again, .strategy = optimizer, .passes = 2}),
          expected);
    }
  });
}
