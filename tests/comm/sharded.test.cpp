// Sharded data parallelism: any number of ranks, shard groups and replicas computes what one rank computes, holds what
// the formulas say, and sends what they say.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"
#include "support/weights.hpp"

namespace {

using namespace smp::testing;
using smp::Group, smp::MemoryUse, smp::Purpose, smp::ShardedOptions, smp::StepOptions, smp::comm::Operation;

using T = double;
using Plain = Dense<T>;
using Tied = Dense<T, "wt">;
using Net = smp::Sequential<Tied, smp::Repeat<smp::Checkpointed<Plain, smp::dynamic>>, Plain, Tied>;
constexpr std::int64_t width = 5;
constexpr std::size_t parameters = 25 + 3 * 25 + 4 * 5;  // the frozen layer has no bias

/// A tied first and last layer, two repeated ones, a frozen one without bias.
Net net(bool checkpointed) {
  return Net(
      Tied(width, width),
      smp::Repeat<smp::Checkpointed<Plain, smp::dynamic>>(
          2, [&](std::size_t) { return smp::Checkpointed<Plain, smp::dynamic>(Plain(width, width), checkpointed); }),
      Plain(width, width, true, false), Tied(width, width));
}

struct Run {
  ShardedOptions options{.clip = 0.05, .persistence_threshold = 0};
  StepOptions step{.microbatches = 2};
  bool checkpointed = false;
  int evaluate_at = -1;  // step in whose middle the model is evaluated
  int steps = 4;
  std::int64_t batch = 16;  // of all ranks and passes
  smp::HostStream::Mode mode = smp::HostStream::Mode::at_once;
};

struct Result {
  std::vector<double> losses, norms;
  Weights weights;
  friend bool operator==(const Result&, const Result&) = default;
};

template <class Worker, class Trainer>
Result train(Worker& worker, Trainer& trainer, const Run& run) {
  auto ctx = worker.context();
  Result result;
  const std::int64_t each = run.batch / (worker.size() * run.step.passes);
  for (int s = 0; s < run.steps; ++s) {
    double loss = 0;
    for (int pass = 0; pass < run.step.passes; ++pass) {
      StepOptions options = run.step;
      options.pass = pass;
      const std::int64_t first = s * run.batch + (worker.rank() * run.step.passes + pass) * each;
      const auto x = samples(worker.memory(), first, first + each, width, 0),
                 y = samples(worker.memory(), first, first + each, width, 1);
      loss += smp::step(ctx, trainer, SquaredError<T>{}, x, y, options).mean() / run.step.passes;
      if (s == run.evaluate_at) (void)smp::evaluate(ctx, trainer, SquaredError<T>{}, x, y, 2);
    }
    result.losses.push_back(loss);
    result.norms.push_back(trainer.step(ctx, 0.01));
  }
  result.weights = smp::testing::weights(ctx, trainer);
  CHECK(worker.memory()[MemoryUse::activation].live == 0);
  return result;
}

using Topology = smp::DynamicTopology;

template <class World>
Result sharded(World& world, int sdp, const Run& run) {
  smp::Worker worker(world, Topology(smp::degrees_for(world.size(), {.rdp = smp::dynamic, .sdp = sdp})), 7, run.mode);
  auto ctx = worker.context();
  smp::Sharded<Net, smp::dynamic> trainer(ctx, net(run.checkpointed), smp::optim::AdamW({.weight_decay = 0.1}),
                                          run.options);
  const Result result = train(worker, trainer, run);
  // Nothing is gathered that every rank holds.
  const bool cut = sdp > 1 && run.options.persistence_threshold <= width * width;
  const auto shards = worker.counters().get("SHARD", Operation::reduce_scatter, Purpose::gradient).calls;
  CHECK((shards > 0) == cut);
  CHECK((worker.memory()[MemoryUse::parameter].live < parameters * sizeof(T)) == cut);
  return result;
}

template <class World>
Result data_parallel(World& world, const Run& run) {
  smp::Worker worker(world, Topology(smp::degrees_for(world.size(), {.rdp = smp::dynamic})), 7);
  auto ctx = worker.context();
  smp::DataParallel trainer(ctx, net(run.checkpointed), smp::optim::AdamW({.weight_decay = 0.1}),
                            {.clip = run.options.clip});
  return train(worker, trainer, run);
}

/// On a rank of `world` by itself, over the same kind of communicator: one instantiation of everything.
template <class World>
Result alone(World& world, const Run& run) {
  auto self = world.split(world.rank(), 0, "ALONE");
  return data_parallel(self, run);
}

void check_close(const Result& a, const Result& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t s = 0; s < a.losses.size(); ++s) {
    CHECK(std::abs(a.losses[s] - b.losses[s]) <= 1e-12 * std::abs(b.losses[s]));
    CHECK(std::abs(a.norms[s] - b.norms[s]) <= 1e-12 * b.norms[s]);
  }
  REQUIRE(a.weights.size() == b.weights.size());
  for (const auto& [name, expected] : b.weights) {
    CAPTURE(name);
    const std::vector<double>& found = a.weights.at(name);
    double largest = 0, worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      worst = std::max(worst, std::abs(found[i] - expected[i]));
    }
    CHECK(worst <= 1e-12 * largest + 1e-13);
  }
}

}  // namespace

TEST_CASE("shard groups and replicas learn what one rank learns, whatever the budgets") {
  on_few_ranks({1, 2, 4, 8}, [](auto& world) {
    const Result one = alone(world, {});
    for (const int sdp : {1, 2, 4, 8}) {
      if (world.size() % sdp != 0) continue;
      CAPTURE(sdp);
      check_close(sharded(world, sdp, {}), one);
      Run run;
      run.options.max_live_parameters = 0;
      run.options.reduce_bucket_size = 1;
      check_close(sharded(world, sdp, run), one);
      run.options.max_live_parameters = 70;
      run.options.reduce_bucket_size = 40;
      const Result small = sharded(world, sdp, run);
      check_close(small, one);
      const auto same = [&](const std::string& what) {
        CAPTURE(what);
        CHECK(sharded(world, sdp, run) == small);
      };
      run.options.overlap = false;
      same("one stream");
      run.options.checked = true;
      same("checked");
      if (!smp::comm::works_in_any_thread(world)) continue;
      run.options.overlap = true;
      run.mode = smp::HostStream::Mode::worker;
      same("checked, the host ahead");
      run.options.checked = false;
      run.options.merge_gathers_below = 0;
      same("the host ahead, small gathers by themselves");
      run.evaluate_at = 2;
      same("evaluated in the middle of a step");
    }
  });
}

TEST_CASE("twenty clipped steps of 48 samples, in one pass or three, whatever the shards, nodes and budgets") {
  on_few_ranks({8}, [](auto& world) {
    std::size_t number = 0;  // of the run; without the long tests a few of them
    for (const int passes : {1, 3}) {
      Run run{.step = {.passes = passes}, .steps = 20, .batch = 48};
      const Result one = alone(world, run);
      for (const double norm : one.norms) CHECK(norm > run.options.clip);
      for (const int sdp : {1, 2, 4, 8}) {
        for (const int ranks_per_node : {0, 2, 4, -1}) {
          if (number++ % 6 != 4 && !full()) continue;
          CAPTURE(sdp);
          CAPTURE(ranks_per_node);
          run.options = {.clip = 0.05};  // with a threshold that leaves everything whole
          if (ranks_per_node >= 0) {
            constexpr std::array<std::size_t, 4> max_live{0, 70, 100, 1'000'000}, bucket{20, 60, 1, 1'000'000};
            run.options.persistence_threshold = 0;
            run.options.max_live_parameters = max_live[number / 2 % 4];
            run.options.reduce_bucket_size = bucket[number / 2 % 4];
            run.options.gather.ranks_per_node = ranks_per_node;
          }
          check_close(sharded(world, sdp, run), one);
        }
      }
    }
  });
}

TEST_CASE("accumulation and checkpointing, with the plan of the first step or another one") {
  on_ranks({4}, [](auto& world) {
    for (const int passes : {1, 2}) {
      for (const bool checkpointed : {false, true}) {
        Run run{.step = {.microbatches = 2, .passes = passes}, .checkpointed = checkpointed};
        run.options.max_live_parameters = 100;
        check_close(sharded(world, 2, run), alone(world, run));
      }
    }
  });
}

TEST_CASE("with degree 1 it is data parallelism, in every bit") {
  on_ranks({1, 2, 4}, [](auto& world) {
    Run run;
    CHECK(sharded(world, 1, run) == data_parallel(world, run));
    run.options.reduce_bucket_size = 40;
    run.step = {.microbatches = 1, .passes = 2};
    CHECK(sharded(world, 1, run) == data_parallel(world, run));
  });
}
