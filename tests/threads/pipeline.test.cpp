// What a pipeline is as a program: its time is the schedule's, its memory what is in flight, what fails on one rank is
// known on all, and delays anywhere change no bit.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using namespace std::chrono_literals;
using smp::ActionKind, smp::Group;
using T = double;
using Values = smp::TensorOf<T>;
constexpr std::int64_t width = 4;

/// What the calls of a module do besides: sleep, note, throw. One for a job.
struct Script {
  std::chrono::milliseconds sleep{0};
  int random_delays = 0;  ///< up to so many microseconds before each call
  std::string thrower{};  ///< "forward 3 1": in that layer, the n-th time
  std::mutex mutex{};
  std::vector<std::tuple<int, ActionKind, int>> calls{};  ///< layer, what, how often before
  std::atomic<std::uint64_t> draws{0};

  void call(int layer, ActionKind kind, int before) {
    if (sleep.count() > 0) std::this_thread::sleep_for(sleep);
    if (random_delays > 0) {
      const auto draw = smp::RandomStream{draws.fetch_add(1), 5}.uniform(0);
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(draw * random_delays)));
    }
    const char* names[] = {"forward ", "backward ", "backward_input ", "backward_params "};
    if (thrower == names[static_cast<int>(kind)] + std::to_string(layer) + " " + std::to_string(before)) {
      throw std::runtime_error("as told in " + thrower);
    }
    const std::lock_guard lock(mutex);
    calls.emplace_back(layer, kind, before);
  }
};

/// A layer that follows a script, of values that are equal on all tensor-parallel ranks.
struct Scripted {
  using Input = smp::Dist<Values, smp::Invariant>;
  using Output = Input;
  using Saved = Dense<T>::Saved;
  Dense<T> dense{width, width};
  Script* script = nullptr;
  int layer = 0;
  bool communicates = false;  // with the other tensor-parallel ranks, in each call
  mutable std::array<int, 4> counts{};
  static constexpr auto fields() { return smp::fields(smp::field("dense", &Scripted::dense)); }

  void call(auto& ctx, ActionKind kind) const {
    script->call(layer, kind, counts[static_cast<std::size_t>(kind)]++);
    if (communicates) ctx.groups()[Group::tp].barrier(ctx.stream());
  }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    call(ctx, ActionKind::forward);
    return {dense.forward(ctx, x.local, saved)};
  }
  Input backward(auto& ctx, const Output& dy, Saved& saved) {
    call(ctx, ActionKind::backward);
    return {dense.backward(ctx, dy.local, saved)};
  }
  Input backward_input(auto& ctx, const Output& dy, Saved& saved) {
    call(ctx, ActionKind::backward_input);
    return {dense.backward_input(ctx, dy.local, saved)};
  }
  void backward_params(auto& ctx, Saved& saved) {
    call(ctx, ActionKind::backward_params);
    dense.backward_params(ctx, saved);
  }
};

using Net = smp::Sequential<smp::Repeat<Scripted>>;
using Model = smp::Pipeline<smp::Schedule::Runtime, Net>;

struct Run {
  std::string schedule = "interleaved";
  int chunks = 1, pp = 2, layers = 2, microbatches = 4, steps = 1;
  std::int64_t samples = 8;
  int active = 0;
  int tp = 1;
  bool communicates = false;
  bool overlap = true;
};

/// What one rank has seen.
struct Seen {
  std::vector<double> losses{}, values{};
  std::size_t activations = 0;           ///< most bytes at a time
  std::chrono::duration<double> time{};  ///< of the last step
};

Seen train(World& world, const Run& run, Script& script) {
  smp::Worker worker(
      world, smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = run.pp, .tp = run.tp, .rdp = smp::dynamic})),
      7);
  auto ctx = worker.context();
  smp::Repeat<Scripted> layers(static_cast<std::size_t>(run.layers), [&](std::size_t i) {
    return Scripted{.script = &script, .layer = static_cast<int>(i), .communicates = run.communicates};
  });
  smp::DataParallel trainer(ctx,
                            Model(ctx, Net(std::move(layers)), {.active = run.active, .overlap = run.overlap},
                                  smp::Schedule::Runtime::named(run.schedule, run.chunks)),
                            smp::optim::AdamW{});
  Values x(worker.memory(), {run.samples, width}, smp::MemoryUse::buffer);
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(static_cast<double>(i));
  Seen seen;
  for (int s = 0; s < run.steps; ++s) {
    world.barrier(ctx.stream());
    const auto begin = smp::Clock::now();
    seen.losses.push_back(smp::step(ctx, trainer, InvariantSquaredError<T>{}, {x}, x,
                                    {.microbatches = run.microbatches, .prescaled = true})
                              .mean());
    seen.time = smp::Clock::now() - begin;
    trainer.step(ctx, 0.01);
  }
  seen.activations = worker.memory()[smp::MemoryUse::activation].peak;
  trainer.for_each_parameter([&](auto, const auto&, auto values, auto) {
    seen.values.insert(seen.values.end(), values.begin(), values.end());
  });
  return seen;
}

/// By rank.
std::vector<Seen> train(const Run& run, Script& script, int ranks) {
  std::vector<Seen> all(static_cast<std::size_t>(ranks));
  smp::comm::launch(ranks,
                    [&](World& world) { all[static_cast<std::size_t>(world.rank())] = train(world, run, script); });
  return all;
}

}  // namespace

TEST_CASE("a step takes the time that the schedule takes") {
  for (const auto& [name, chunks, pp, microbatches] :
       {std::tuple("interleaved", 1, 2, 4), std::tuple("simple", 1, 4, 4), std::tuple("zero_bubble", 1, 3, 6)}) {
    Script script{.sleep = 20ms};
    const auto schedule = smp::Schedule::Runtime::named(name, chunks);
    const auto plan = smp::make_pipeline_plan(schedule, {.ranks = pp, .microbatches = microbatches});
    const double simulated = smp::simulate(plan, smp::ActionTimes{0.02, 0.02, 0.02, 0.02}).makespan;
    CAPTURE(name);
    // The machine may have other things to do now and then.
    double best = 1e9;
    for (int attempt = 0; attempt < 8 && best > 1.03 * simulated; ++attempt) {
      double longest = 0;
      for (const Seen& rank :
           train({.schedule = name, .pp = pp, .layers = pp, .microbatches = microbatches, .steps = 2}, script, pp)) {
        CHECK(rank.time.count() >= simulated);
        longest = std::max(longest, rank.time.count());
      }
      best = std::min(best, longest);
    }
    CHECK(best <= (sanitized ? 1.3 : 1.03) * simulated);
  }
}

TEST_CASE("activations are what the schedule has in flight, times those of one micro-batch") {
  Script script;
  for (const char* name : {"simple", "interleaved"}) {
    const Run run{.schedule = name, .pp = 4, .layers = 4, .microbatches = 8, .samples = 256};
    const auto plan = smp::make_pipeline_plan(smp::Schedule::Runtime::named(name), {.ranks = 4, .microbatches = 8});
    const auto simulated = smp::simulate(plan);
    const auto seen = train(run, script, 4);
    const double one = 32 * width * sizeof(T);  // a tensor of a micro-batch
    for (int rank = 0; rank < 4; ++rank) {
      CAPTURE(name);
      CAPTURE(rank);
      const double held = static_cast<double>(seen[static_cast<std::size_t>(rank)].activations) / one;
      // A layer keeps its output and its input, which on the first rank is the batch itself. Besides, there is what
      // comes, what goes, and what a layer or the loss is working on.
      const int each = rank == 0 ? 1 : 2;
      CHECK(held >= each * simulated.peak_in_flight[rank]);
      CHECK(held <= each * simulated.peak_in_flight[rank] + 6);
    }
  }
}

TEST_CASE("of a split backward, gradients of parameters wait until forwards have gone ahead") {
  Script script;
  (void)train({.schedule = "zero_bubble", .pp = 4, .layers = 4, .microbatches = 8}, script, 4);
  bool waits = false;
  for (auto params = script.calls.begin(); params != script.calls.end(); ++params) {
    const auto& [layer, kind, microbatch] = *params;
    if (kind != ActionKind::backward_params) continue;
    const auto forward =
        std::find(script.calls.begin(), script.calls.end(), std::tuple(layer, ActionKind::forward, microbatch + 1));
    waits = waits || forward < params;
  }
  CHECK(waits);
}

TEST_CASE("an exception in any call of any layer reaches all ranks, and none of them waits for ever") {
  const int layers = 3, microbatches = 3;
  for (const char* schedule : {"interleaved", "zero_bubble"}) {
    std::vector<const char*> kinds{"forward ", "backward "};
    if (std::string(schedule) == "zero_bubble") kinds = {"backward_input ", "backward_params "};
    for (const char* kind : kinds) {
      for (int layer = 0; layer < layers; ++layer) {
        for (int m = 0; m < microbatches; ++m) {
          Script script;
          script.thrower = kind + std::to_string(layer) + " " + std::to_string(m);
          std::array<std::string, 3> told;
          const auto begin = smp::Clock::now();
          CHECK_THROWS_WITH(
              smp::comm::launch(3,
                                [&](World& world) {
                                  try {
                                    (void)train(
                                        world,
                                        {.schedule = schedule, .pp = 3, .layers = layers, .microbatches = microbatches},
                                        script);
                                  } catch (const std::exception& e) {
                                    told[static_cast<std::size_t>(world.rank())] = e.what();
                                    throw;
                                  }
                                }),
              doctest::Contains("as told in"));
          CHECK(smp::Clock::now() - begin < (sanitized ? 20s : 5s));
          for (const std::string& each : told) CHECK(each.find("as told in " + script.thrower) != std::string::npos);
        }
      }
    }
  }
}

TEST_CASE("an exception on one tensor-parallel rank reaches all ranks, whether its layers communicate or not") {
  const int layers = 3, microbatches = 3;
  for (const char* kind : {"forward ", "backward ", "backward_input ", "backward_params "}) {
    const bool split = std::string(kind).find('_') != std::string::npos;
    for (int call = 0; call < 3 * layers * microbatches; ++call) {
      const int layer = call / 3 / microbatches, m = call / 3 % microbatches;
      const Run run{.schedule = split ? "zero_bubble" : "interleaved",
                    .pp = 2 + (layer + m) % 2,
                    .layers = layers,
                    .microbatches = microbatches,
                    .tp = 2,
                    .communicates = call % 3 > 0,
                    .overlap = call % 3 == 1};
      const int thrower = m % 2;
      Script script, calm;
      script.thrower = kind + std::to_string(layer) + " " + std::to_string(m);
      std::vector<std::string> told(static_cast<std::size_t>(2 * run.pp));
      CAPTURE(script.thrower);
      const auto begin = smp::Clock::now();
      const auto body = [&](World& world) {
        try {
          (void)train(world, run, world.rank() % 2 == thrower ? script : calm);
        } catch (const std::exception& e) {
          told[static_cast<std::size_t>(world.rank())] = e.what();
          throw;
        }
      };
      CHECK_THROWS_WITH(smp::comm::launch(2 * run.pp, body, {.timeout = 20s}), doctest::Contains("as told in"));
      CHECK(smp::Clock::now() - begin < (sanitized ? 20s : 5s));
      for (const std::string& each : told) CHECK(each.find("as told in " + script.thrower) != std::string::npos);
    }
  }
}

TEST_CASE("delays of up to 5 ms at any call change no bit and hang nobody") {
  Script calm;
  std::array<Run, 2> runs;
  for (Run& run : runs) run = {.schedule = "looped", .chunks = 2, .layers = 4, .microbatches = 4, .steps = 2};
  runs[1].tp = 2;
  const std::array expected{train(runs[0], calm, 4), train(runs[1], calm, 4)};
  for (int repeat = 0; repeat < (full() ? 1000 : sanitized ? 10 : 50); ++repeat) {
    Script script{.random_delays = 5000};
    script.draws = static_cast<std::uint64_t>(repeat) * 1000;
    const auto which = static_cast<std::size_t>(repeat % 2);
    const auto found = train(runs[which], script, 4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK(found[rank].losses == expected[which][rank].losses);
      CHECK(found[rank].values == expected[which][rank].values);
    }
  }
}
