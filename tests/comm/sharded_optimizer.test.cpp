// An optimizer whose state is cut over the ranks gives the bits of DataParallel, keeps its share of the state, and
// sends what it must.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/linear.hpp>
#include <smp/optim/adam.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::Purpose, smp::StepOptions, smp::comm::Operation;

using T = double;
using Values = smp::TensorOf<T>;
using Plain = Dense<T>;
using Tied = Dense<T, "wt">;

/// Changes nothing; its backward throws if it is told so.
struct Fuse {
  using Input = Values;
  using Output = Values;
  struct Saved {};
  std::shared_ptr<bool> lit;
  static constexpr auto fields() { return smp::fields(); }
  Output forward(auto&, const Input& x, Saved&) const { return x; }
  smp::GradOf<Input> backward(auto&, const smp::GradOf<Output>& dy, Saved&) {
    if (*lit) throw std::runtime_error("a fuse has blown");
    return dy;
  }
};

using Net = smp::Sequential<Tied, Fuse, smp::Repeat<Plain>, Plain, Tied>;
using Topology = smp::Topology<smp::Degrees{.rdp = smp::dynamic}>;
constexpr std::int64_t width = 5;

/// A tied first and last layer, two repeated ones, a frozen one.
Net net(std::shared_ptr<bool> lit) {
  return Net(Tied(width, width), Fuse{std::move(lit)},
             smp::Repeat<Plain>(2, [](std::size_t) { return Plain(width, width); }), Plain(width, width, true, false),
             Tied(width, width));
}
/// Parameters that are learnt: 5 x 5 tied once, two layers, the biases of the tied layers.
constexpr std::size_t learnt = 25 + 2 * (25 + 5) + 2 * 5;
constexpr std::size_t states = 2;  // of AdamW

struct Run {
  double clip = 0;
  std::size_t bucket_bytes = 130;
  StepOptions step{};
  bool overlap = true;
  bool checked = false;
  smp::HostStream::Mode mode = smp::HostStream::Mode::at_once;
  int discarded = -1;  // step before which a pass is forgotten, and another one throws
  int steps = 4;
  std::int64_t batch = 12;  // of all ranks
  int tp = 1;               // of which the model knows nothing
};

struct Result {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> weights;
  std::size_t optimizer_bytes = 0, buckets = 0;
  std::vector<std::uint64_t> sent;  // bytes of gradients and of values, by all ranks
  std::uint64_t all_reduces = 0;
};

/// @tparam Strategy DataParallel or ShardedOptimizer
template <template <class, class> class Strategy, class Options, class World>
Result train(World& world, const Run& run) {
  const smp::DynamicTopology topology(smp::degrees_for(world.size(), {.tp = run.tp, .rdp = smp::dynamic}));
  smp::Worker worker(world, topology, 7, run.mode);
  auto ctx = worker.context();
  const auto lit = std::make_shared<bool>(false);
  Strategy<Net, smp::optim::AdamW> trainer(ctx, net(lit), smp::optim::AdamW({.weight_decay = 0.1}),
                                           Options{.clip = run.clip,
                                                   .bucket_bytes = run.bucket_bytes,
                                                   .overlap = run.overlap,
                                                   .checked = run.checked,
                                                   .compare_initial_values = run.checked});
  Result result;
  const std::int64_t each = run.batch / (world.size() * run.step.passes);
  const auto pass = [&](int s, int p) {
    StepOptions options = run.step;
    options.pass = p;
    const std::int64_t first = s * run.batch + (world.rank() * run.step.passes + p) * each;
    const auto x = samples(worker.memory(), first, first + each, width, 0),
               y = samples(worker.memory(), first, first + each, width, 1);
    return smp::step(ctx, trainer, SquaredError<T>{}, x, y, options).mean() / run.step.passes;
  };
  for (int s = 0; s < run.steps; ++s) {
    if (s == run.discarded) {
      (void)pass(s + 10, run.step.passes - 1);
      trainer.discard(ctx);
      *lit = true;  // behind some reductions, before others
      CHECK_THROWS_AS(pass(s + 10, run.step.passes - 1), std::runtime_error);
      *lit = false;
      trainer.discard(ctx);
    }
    double loss = 0;
    for (int p = 0; p < run.step.passes; ++p) loss += pass(s, p);
    result.losses.push_back(loss);
    result.norms.push_back(trainer.step(ctx, 0.01));
  }
  trainer.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
    result.weights[std::string(name)].assign(values.begin(), values.end());
  });
  result.optimizer_bytes = worker.memory()[smp::MemoryUse::optimizer].live;
  result.buckets = trainer.buckets();
  const auto& counters = worker.counters();
  result.sent = {counters.get("DP", Operation::reduce_scatter_v, Purpose::gradient).bytes,
                 counters.get("DP", Operation::all_gather_v, Purpose::parameter).bytes,
                 counters.get("DP", Operation::reduce_scatter_v, Purpose::gradient).calls,
                 counters.get("DP", Operation::all_gather_v, Purpose::parameter).calls};
  result.all_reduces = counters.get("DP", Operation::all_reduce, Purpose::gradient).calls;
  return result;
}
template <class World>
Result whole(World& world, const Run& run) {
  return train<smp::DataParallel, smp::DataParallelOptions>(world, run);
}
template <class World>
Result cut(World& world, const Run& run) {
  return train<smp::ShardedOptimizer, smp::ShardedOptimizerOptions>(world, run);
}

}  // namespace

TEST_CASE("the bits of DataParallel: buckets, passes, streams; also after passes that were forgotten") {
  on_ranks({1, 2, 3, 4}, [](auto& world) {
    const auto same = [&](const Run& run) {
      CAPTURE(run.bucket_bytes);
      const Result expected = whole(world, run), found = cut(world, run);
      CHECK(found.losses == expected.losses);
      CHECK(found.weights == expected.weights);
      for (std::size_t s = 0; s < found.norms.size(); ++s) {
        CHECK(std::abs(found.norms[s] - expected.norms[s]) <= 1e-15 * expected.norms[s]);
      }
    };
    same({});
    same({.bucket_bytes = 1});
    same({.bucket_bytes = 25 << 20});
    same({.step = {.microbatches = 2}, .checked = true});
    if (world.size() != 4) same({.step = {.passes = 2}, .overlap = false});
    same({.discarded = 2});
    if (world.size() % 2 == 0) same({.tp = 2});
    if (smp::comm::works_in_any_thread(world)) same({.mode = smp::HostStream::Mode::worker, .discarded = 1});
  });
}

TEST_CASE("clipping: the norm of all elements, once, with the same bits on all ranks") {
  on_ranks({2, 3, 4}, [](auto& world) {
    const Run run{.clip = 0.05};
    const Result expected = whole(world, run), found = cut(world, run);
    for (std::size_t s = 0; s < found.norms.size(); ++s) {
      CHECK(expected.norms[s] > 0.05);
      CHECK(std::abs(found.norms[s] - expected.norms[s]) <= 1e-15 * expected.norms[s]);
    }
    for (const auto& [name, values] : expected.weights) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(std::abs(found.weights.at(name)[i] - values[i]) <= 1e-15);
      }
    }
    smp::HostStream stream;
    std::vector<double> all(static_cast<std::size_t>(world.size()));
    world.all_gather(stream, std::vector<double>{found.norms.back()}, all);
    CHECK(all == std::vector<double>(all.size(), found.norms.back()));
  });
}

TEST_CASE("twenty steps that are clipped, in one pass or three, are those of one rank") {
  on_few_ranks({2, 4, 8}, [](auto& world) {
    auto self = world.split(world.rank(), 0, "ALONE");
    const Result one = whole(self, {.clip = 0.05, .steps = 20, .batch = 48});
    for (const int passes : {1, 3}) {
      const Result found = cut(world, {.clip = 0.05, .step = {.passes = passes}, .steps = 20, .batch = 48});
      for (std::size_t s = 0; s < found.norms.size(); ++s) {
        CHECK(std::abs(found.losses[s] - one.losses[s]) <= 1e-12 * one.losses[s]);
        CHECK(std::abs(found.norms[s] - one.norms[s]) <= 1e-12 * one.norms[s]);
      }
      for (const auto& [name, values] : one.weights) {
        CAPTURE(name);
        double largest = 0, worst = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          largest = std::max(largest, std::abs(values[i]));
          worst = std::max(worst, std::abs(found.weights.at(name)[i] - values[i]));
        }
        CHECK(worst <= 1e-12 * largest + 1e-13);
      }
    }
  });
}

TEST_CASE("state is kept once, and a step sends (d-1)/d of the gradients and of the values") {
  on_ranks({1, 2, 3, 4}, [](auto& world) {
    const auto ranks = static_cast<std::uint64_t>(world.size());
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{130}, std::size_t{25} << 20}) {
      CAPTURE(bucket_bytes);
      Result result = cut(world, {.bucket_bytes = bucket_bytes});
      CHECK(result.all_reduces == 0);
      const auto share = static_cast<double>(states * learnt * sizeof(T)) / static_cast<double>(ranks);
      CHECK(static_cast<double>(result.optimizer_bytes) <=
            share + static_cast<double>(states * sizeof(T) * result.buckets));
      const std::uint64_t steps = result.losses.size();
      const std::uint64_t calls = ranks > 1 ? steps * result.buckets : 0;
      CHECK(result.sent[2] == calls);
      CHECK(result.sent[3] == calls);
      result.sent.push_back(result.optimizer_bytes);
      smp::HostStream stream;
      world.all_reduce(stream, result.sent, result.sent, smp::sum);
      CHECK(result.sent[0] == steps * (ranks - 1) * learnt * sizeof(T));
      CHECK(result.sent[1] == result.sent[0]);
      CHECK(result.sent[4] == states * learnt * sizeof(T));
    }
  });
}

TEST_CASE("case 31: weight decay of a matrix, not of biases and norms, wherever their range is cut") {
  on_few_ranks({1, 2, 3, 4, 8}, [](auto& world) {
    smp::Worker worker(world, Topology(world.size()), 7);
    auto ctx = worker.context();
    using Layers = smp::Sequential<smp::nn::Linear<T>, smp::nn::LayerNorm<T>>;
    smp::ShardedOptimizer trainer(ctx, Layers(smp::nn::Linear<T>(3, 3), smp::nn::LayerNorm<T>(3)),
                                  smp::optim::AdamW({.weight_decay = 0.1}));
    std::map<std::string, std::vector<double>> before;
    const auto each = [&](auto&& f) {
      trainer.for_each_parameter(
          [&](std::string_view name, const smp::Shape&, auto values, auto) { f(std::string(name), values); });
    };
    each([&](const std::string& name, auto values) {
      for (auto& v : values) v += v == 0;  // biases begin with 0
      before[name].assign(values.begin(), values.end());
    });
    CHECK(trainer.step(ctx, 1) == 0);
    CHECK(before.size() == 4);
    each([&](const std::string& name, auto values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (name == "0.weight") {
          CHECK(std::abs(values[i] - 0.9 * before[name][i]) <= 1e-16);
        } else {
          CHECK(values[i] == before[name][i]);
        }
      }
    });
  });
}
