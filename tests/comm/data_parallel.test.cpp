// Data parallelism: any number of ranks computes what one rank computes, reduces what the plan says and when it says,
// and treats frozen, tied, unused and empty parameters as one rank does.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/optim/any.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::DataParallelOptions, smp::Group, smp::Purpose, smp::StepOptions, smp::comm::Operation;

using T = double;
using Plain = Dense<T>;
using Tied = Dense<T, "wt">;
using Net = smp::Sequential<Tied, smp::Repeat<Plain>, Plain, Tied>;
using Topology = smp::Topology<smp::Degrees{.rdp = smp::dynamic}>;
constexpr std::int64_t width = 5;

/// A tied first and last layer, two repeated ones, a frozen one without bias.
Net net() {
  return Net(Tied(width, width), smp::Repeat<Plain>(2, [](std::size_t) { return Plain(width, width); }),
             Plain(width, width, true, false), Tied(width, width));
}
/// Parameters that are learnt: 5 x 5 tied once, two layers, the biases of the tied layers.
constexpr std::size_t learnt = 25 + 2 * (25 + 5) + 2 * 5;

struct Run {
  DataParallelOptions options{.clip = 0.05};
  StepOptions step{};
  std::int64_t batch = 16;  // of all ranks and passes
  int steps = 4;
  smp::HostStream::Mode mode = smp::HostStream::Mode::at_once;
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  smp::comm::Counters::Count gradients;
  std::size_t buckets = 0;
  friend bool operator==(const Result& a, const Result& b) {
    return a.losses == b.losses && a.norms == b.norms && a.weights == b.weights;
  }
};

template <class World>
Result train(World& world, const Run& run) {
  smp::Worker worker(world, Topology(world.size()), 7, run.mode);
  auto ctx = worker.context();
  smp::DataParallel trainer(ctx, net(), smp::optim::AdamW({.weight_decay = 0.1}), run.options);
  Result result;
  const std::int64_t each = run.batch / (world.size() * run.step.passes);
  for (int s = 0; s < run.steps; ++s) {
    double loss = 0;
    for (int pass = 0; pass < run.step.passes; ++pass) {
      StepOptions options = run.step;
      options.pass = pass;
      const std::int64_t first = s * run.batch + (world.rank() * run.step.passes + pass) * each;
      const auto x = samples(worker.memory(), first, first + each, width, 0),
                 y = samples(worker.memory(), first, first + each, width, 1);
      loss += smp::step(ctx, trainer, SquaredError<T>{}, x, y, options).mean() / run.step.passes;
    }
    result.losses.push_back(loss);
    result.norms.push_back(trainer.step(ctx, 0.01));
  }
  trainer.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
    result.weights[std::string(name)].assign(values.begin(), values.end());
  });
  result.gradients = worker.counters().get("DP", Operation::all_reduce, Purpose::gradient);
  result.buckets = trainer.buckets();
  CHECK(worker.memory()[smp::MemoryUse::activation].live == 0);
  CHECK(worker.memory()[smp::MemoryUse::parameter].live == (learnt + 25) * sizeof(T));
  CHECK(worker.memory()[smp::MemoryUse::gradient].live == learnt * sizeof(T));
  CHECK(worker.memory()[smp::MemoryUse::optimizer].live == 2 * learnt * sizeof(T));
  return result;
}

/// On a rank of `world` by itself, over the same kind of communicator: one instantiation of everything.
template <class World>
Result alone(World& world, const Run& run) {
  auto self = world.split(world.rank(), 0, "ALONE");
  return train(self, run);
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

TEST_CASE("one rank learns, clips, keeps frozen values, and one tied parameter has one name") {
  on_ranks({1}, [](auto& world) {
    const Result result = train(world, {.steps = 60});
    CHECK(result.losses.back() < 0.8 * result.losses.front());
    CHECK(result.norms.front() > 0.05);
    const Result start = train(world, {.steps = 0});
    std::string names;
    for (const auto& [name, values] : result.weights) names += name + " ";
    CHECK(names == "0.bias 1.0.bias 1.0.weight 1.1.bias 1.1.weight 2.weight 3.bias wt ");
    CHECK(result.weights.at("2.weight") == start.weights.at("2.weight"));
    CHECK(result.weights.at("wt") != start.weights.at("wt"));
    CHECK(result.gradients == smp::comm::Counters::Count{});  // nothing to reduce
  });
}

TEST_CASE("2, 4 and 8 ranks learn what one rank learns; overlap, streams and checks change no bit") {
  on_ranks({1, 2, 4, 8}, [](auto& world) {
    const Result one = alone(world, {});
    const Result overlapped = train(world, {});
    check_close(overlapped, one);
    CHECK(train(world, {}) == overlapped);
    CHECK(train(world, {.options = {.clip = 0.05, .overlap = false}}) == overlapped);
    CHECK(train(world, {.options = {.clip = 0.05, .bucket_bytes = 1}}) == overlapped);
    CHECK(train(world, {.options = {.clip = 0.05, .checked = true, .compare_initial_values = true}}) == overlapped);
    if (!smp::comm::works_in_any_thread(world)) return;
    CHECK(train(world, {.options = {.clip = 0.05, .bucket_bytes = 100}, .mode = smp::HostStream::Mode::worker}) ==
          overlapped);
  });
}

TEST_CASE("micro-batches and accumulation are a larger batch, divisible or not") {
  on_ranks({1, 2}, [](auto& world) {
    const Result one = alone(world, {});
    check_close(train(world, {.step = {.microbatches = 2}}), one);
    check_close(train(world, {.step = {.microbatches = 3}}), one);   // 8 or 16 samples into 3
    check_close(train(world, {.step = {.microbatches = 40}}), one);  // more than there are samples
    check_close(train(world, {.step = {.microbatches = 3, .passes = 2}}), one);
    check_close(train(world, {.step = {.passes = 4}}), one);
  });
}

TEST_CASE("gradients are reduced once a step, in the buckets of the plan") {
  on_ranks({2, 4}, [](auto& world) {
    const auto n = static_cast<std::uint64_t>(world.size());
    // In the order of backward, in bytes: 40 (3.bias), 40, 200 (1.1), 40, 200 (1.0), 40 (0.bias), 200 (tied, used first
    // by layer 0).
    const auto counts = [&](std::size_t bucket_bytes, StepOptions step) {
      const Run run{.options = {.bucket_bytes = bucket_bytes}, .step = step, .steps = 3};
      const Result result = train(world, run);
      CHECK(result.gradients.calls == 3 * result.buckets);
      std::vector<std::uint64_t> bytes{result.gradients.bytes};
      smp::HostStream stream;
      world.all_reduce(stream, bytes, bytes, smp::sum);
      CHECK(bytes.front() == 3 * 2 * (n - 1) * learnt * sizeof(T));
      return result.buckets;
    };
    CHECK(counts(25 << 20, {}) == 1);
    CHECK(counts(1, {}) == 7);
    CHECK(counts(280, {.microbatches = 2}) == 3);
    CHECK(counts(250, {.passes = 2}) == 4);
  });
}
