// Faults that other systems had with data parallelism, with the right values: bucket sizes, parameters without
// elements, parameters that are not used, uneven batches, losses that are means over tokens.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/optim/sgd.hpp>
#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/rows.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::AsUnit, smp::GradOf, smp::CountSamples, smp::CountTargets, smp::Ids, smp::Purpose, smp::comm::Operation;

using T = double;
using Values = smp::TensorOf<T>;
using Topology = smp::Topology<smp::Degrees{.rdp = smp::dynamic}>;
using Weights = std::map<std::string, std::vector<double>>;

template <class Trainer>
Weights weights(Trainer& trainer) {
  Weights all;
  trainer.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
    all[std::string(name)].assign(values.begin(), values.end());
  });
  return all;
}

void check_close(const Weights& found, const Weights& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(found.at(name)[i] - values[i]) <= 1e-13);
  }
}

/// y = x + b, with as many elements as a row has.
struct Shift {
  using Input = Values;
  using Output = Values;
  struct Saved {};
  smp::ParameterOf<T> b{{30}, {smp::Init::Kind::normal, 1}};
  static constexpr auto fields() { return smp::fields(smp::field("b", &Shift::b)); }
  Output forward(auto& ctx, const Input& x, Saved&) const {
    Values y(ctx.memory(), x.shape());
    ctx.stream().enqueue([x = x.data(), b = b.value().data(), y = y.data(), n = x.size()] {
      for (std::size_t i = 0; i < n; ++i) y[i] = x[i] + b[i % 30];
    });
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved&) {
    ctx.stream().enqueue([dy = dy.data(), db = b.grad().data(), n = dy.size()] {
      for (std::size_t i = 0; i < n; ++i) db[i % 30] += dy[i];
    });
    return dy;
  }
};

/// Two heads of which a micro-batch uses one: another at each step, or another for each eight samples.
struct Heads {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Dense<T>::Saved trunk, head;
    bool second = false;
  };
  Dense<T> trunk{4, 4};
  AsUnit<Dense<T>> left{Dense<T>(4, 4)}, right{Dense<T>(4, 4)};
  bool by_sample = false;
  static constexpr auto fields() {
    return smp::fields(smp::field("trunk", &Heads::trunk), smp::field("left", &Heads::left),
                       smp::field("right", &Heads::right));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s.second = (by_sample ? ctx.position.first_sample % 16 / 8 : ctx.position.step % 2) == 1;
    const auto h = trunk.forward(ctx, x, s.trunk);
    return (s.second ? right : left).forward(ctx, h, s.head);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return trunk.backward(ctx, (s.second ? right : left).backward(ctx, dy, s.head), s.trunk);
  }
};

/// y = w x, and a loss that is the mean of the y whose target is not -100.
struct Scale {
  using Input = Values;
  using Output = Values;
  using Saved = Values;
  smp::ParameterOf<T> w{{1}, {smp::Init::Kind::ones}};
  static constexpr auto fields() { return smp::fields(smp::field("w", &Scale::w)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    Values y(ctx.memory(), x.shape());
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = w.value().data()[0] * x.data()[i];
    saved = x;
    return y;
  }
  GradOf<Input> backward(auto&, const GradOf<Output>& dy, Saved& saved) {
    for (std::size_t i = 0; i < dy.size(); ++i) w.grad().data()[0] += dy.data()[i] * saved.data()[i];
    return dy;
  }
};
struct MeanOfValid {
  using Input = std::tuple<Values, Ids>;
  using Output = Values;
  using Saved = Input;
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto& [y, targets] = x;
    Values loss(ctx.memory(), {});
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) total += targets.data()[i] != -100 ? y.data()[i] : 0;
    *loss.data() = total / CountTargets{}(targets);
    saved = x;
    return loss;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dl, Saved& saved) {
    const auto& [y, targets] = std::as_const(saved);
    Values dy(ctx.memory(), y.shape());
    for (std::size_t i = 0; i < y.size(); ++i) {
      dy.data()[i] = targets.data()[i] != -100 ? *dl.data() / CountTargets{}(targets) : 0;
    }
    return {dy, smp::NoGrad{}};
  }
};

/// A layer in single and one in double precision.
struct Mixed {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Dense<float>::Saved a;
    Dense<T>::Saved b;
  };
  AsUnit<Dense<float>> a{Dense<float>(4, 4)};
  AsUnit<Dense<T>> b{Dense<T>(4, 4)};
  static constexpr auto fields() { return smp::fields(smp::field("a", &Mixed::a), smp::field("b", &Mixed::b)); }
  template <class To, class From>
  static smp::TensorOf<To> as(smp::Memory& memory, const smp::TensorOf<From>& x) {
    smp::TensorOf<To> y(memory, x.shape());
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = static_cast<To>(x.data()[i]);
    return y;
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return b.forward(ctx, as<T>(ctx.memory(), a.forward(ctx, as<float>(ctx.memory(), x), s.a)), s.b);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return as<T>(ctx.memory(), a.backward(ctx, as<float>(ctx.memory(), b.backward(ctx, dy, s.b)), s.a));
  }
};

/// `steps` steps of momentum on 16 samples, cut over the ranks as `share(rank)` says.
template <template <class, class> class Strategy = smp::DataParallel, class World, class M, class Share,
          class Count = smp::EqualSamples>
Weights train(World& world, M model, std::int64_t in, std::int64_t out, Share share, smp::StepOptions options = {},
              const Count& count = {}, bool overlap = true) {
  smp::Worker worker(world, Topology(world.size()), 3);
  auto ctx = worker.context();
  Strategy<M, smp::optim::Sgd> trainer(ctx, std::move(model), {.momentum = 0.9},
                                       {.bucket_bytes = 300, .overlap = overlap});
  for (int s = 0; s < 4; ++s) {
    const smp::SampleRange own = share(world.rank());
    options.first_sample = static_cast<std::uint64_t>(16 * s + own.first);
    const auto x = samples(worker.memory(), 16 * s + own.first, 16 * s + own.last, in, 0);
    const auto y = samples(worker.memory(), 16 * s + own.first, 16 * s + own.last, out, 1);
    smp::step(ctx, trainer, SquaredError<T>{}, x, y, options, count);
    trainer.step(ctx, 0.1);
  }
  return weights(trainer);
}
/// How many reductions of gradients each of two steps needs for ten parameters of 30 elements.
template <template <class, class> class Strategy, class World>
std::vector<std::uint64_t> reductions(World& world, std::size_t bucket_elements) {
  smp::Worker worker(world, Topology(world.size()), 3);
  auto ctx = worker.context();
  using Shifts = smp::Repeat<Shift>;
  Strategy<Shifts, smp::optim::Sgd> trainer(ctx, Shifts(10, [](std::size_t) { return Shift{}; }), {},
                                            {.bucket_bytes = bucket_elements * sizeof(T)});
  std::vector<std::uint64_t> each;
  std::uint64_t before = 0;
  for (int s = 0; s < 2; ++s) {
    const auto x = samples(worker.memory(), world.rank(), world.rank() + 1, 30, 0);
    smp::step(ctx, trainer, SquaredError<T>{}, x, x);
    trainer.step(ctx, 0.1);
    const std::uint64_t now = worker.counters().get("DP", Operation::all_reduce, Purpose::gradient).calls +
                              worker.counters().get("DP", Operation::reduce_scatter_v, Purpose::gradient).calls;
    each.push_back(now - before);
    before = now;
  }
  return each;
}
template <class World, class M>
Weights alone(World& world, M model, std::int64_t in, std::int64_t out, smp::StepOptions options = {}) {
  auto self = world.split(world.rank(), 0, "ALONE");  // over the same kind of communicator: one instantiation
  return train(
      self, std::move(model), in, out,
      [](int) {
        return smp::SampleRange{0, 16};
      },
      options);
}
auto even(int ranks) {
  return [ranks](int rank) { return smp::SampleRange{16 / ranks * rank, 16 / ranks * (rank + 1)}; };
}

}  // namespace

TEST_CASE("case 13: ten parameters of 30 elements in buckets of 0, 1 and 100 elements, two steps") {
  on_ranks({2, 4}, [](auto& world) {
    using Calls = std::vector<std::uint64_t>;
    const auto whole = [&](std::size_t elements) { return reductions<smp::DataParallel>(world, elements); };
    const auto cut = [&](std::size_t elements) { return reductions<smp::ShardedOptimizer>(world, elements); };
    const char* refused = "smp: bucket_bytes is 0: a bucket of gradients must have room for something";
    CHECK_THROWS_WITH_AS(whole(0), refused, smp::ConfigError);
    CHECK_THROWS_WITH_AS(cut(0), refused, smp::ConfigError);
    CHECK(whole(1) == Calls{10, 10});
    CHECK(cut(1) == Calls{10, 10});
    CHECK(whole(100) == Calls{4, 4});
    CHECK(cut(100) == Calls{4, 4});
  });
}

TEST_CASE("case 15: parameters without elements keep their shape and change nothing") {
  on_ranks({1, 2}, [](auto& world) {
    const auto run = [&](std::array<std::int64_t, 3> rows) {
      return train(world, Rows(rows), 8, rows[0] + rows[1] + rows[2], even(world.size()));
    };
    const Weights full = run({1, 3, 0});  // a has 8, b 24, c no elements
    CHECK(full.size() == 2);
    const Weights inside = run({1, 0, 3});
    CHECK(inside.size() == 2);
    CHECK(inside.at("a") == full.at("a"));  // its samples, its target and its name are the same
    CHECK(run({0, 0, 0}).empty());
  });
}

TEST_CASE("case 19: heads that some steps, or some ranks, do not use") {
  on_ranks({1, 2, 4}, [](auto& world) {
    const Weights by_step = train(world, Heads{}, 4, 4, even(world.size()));
    check_close(by_step, alone(world, Heads{}, 4, 4));
    Heads heads;
    heads.by_sample = true;
    const Weights by_rank =
        train(world, heads, 4, 4, even(world.size()), {.microbatches = 3 - std::min(world.size(), 2)});
    check_close(by_rank, alone(world, heads, 4, 4, {.microbatches = 2}));
    CHECK(by_rank.at("left.weight") != by_step.at("left.weight"));
    CHECK(train<smp::ShardedOptimizer>(world, Heads{}, 4, 4, even(world.size())) == by_step);
  });
}

TEST_CASE("parameters of two types: two arrays, one order of reductions") {
  on_ranks({1, 2}, [](auto& world) {
    const Weights found = train(world, Mixed{}, 4, 4, even(world.size())), expected = alone(world, Mixed{}, 4, 4);
    for (const auto& [name, values] : expected) {
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(found.at(name)[i] - values[i]) <= 1e-6);
    }
    CHECK(train(world, Mixed{}, 4, 4, even(world.size()), {}, smp::EqualSamples{}, false) == found);
    CHECK(train<smp::ShardedOptimizer>(world, Mixed{}, 4, 4, even(world.size())) == found);
  });
}

TEST_CASE("ranks with different numbers of samples, or none, are one batch if the samples are counted") {
  on_ranks({2, 4}, [](auto& world) {
    const auto uneven = [&](int rank) {
      constexpr std::array<std::int64_t, 5> ends{0, 9, 13, 13, 16};
      return world.size() == 2
                 ? smp::SampleRange{11 * rank, 11 + 5 * rank}
                 : smp::SampleRange{ends[static_cast<std::size_t>(rank)], ends[static_cast<std::size_t>(rank) + 1]};
    };
    const Dense<T> model(4, 4);
    const Weights one = alone(world, model, 4, 4);
    check_close(train(world, model, 4, 4, uneven, {}, CountSamples{}), one);
    check_close(train(world, model, 4, 4, uneven, {.microbatches = 3}, CountSamples{}), one);
    check_close(train(world, model, 4, 4, even(world.size()), {}, CountSamples{}), one);
    if (world.size() == 4) return;  // where a rank without samples cannot know that the others wait for it
    // Without overlap: an exception drops reductions that one rank has begun and the other has not.
    CHECK_THROWS_WITH_AS(train(world, model, 4, 4, uneven, {}, smp::EqualSamples{}, false),
                         "smp: the ranks have batches of different sizes: 16.000000 samples on 2 ranks; count them "
                         "(smp::CountSamples)",
                         smp::ConfigError);
  });
}

TEST_CASE("case 25: 3 tokens of loss 1 and 1 token of loss 5 are 2 by tokens and 3 by samples") {
  on_ranks({1, 2}, [](auto& world) {
    const auto run = [&](const auto& count) {
      smp::Worker worker(world, Topology(world.size()), 3);
      auto ctx = worker.context();
      smp::DataParallel trainer(ctx, Scale{}, smp::optim::Sgd{});
      Values x(worker.memory(), {2, 3});
      Ids targets(worker.memory(), {2, 3});
      for (int i = 0; i < 6; ++i) {
        x.data()[i] = i < 3 ? 1 : 5;
        targets.data()[i] = i < 4 ? 1 : -100;
      }
      const smp::SampleRange own = smp::microbatch(2, world.size(), world.rank());
      const auto loss = smp::step(ctx, trainer, MeanOfValid{}, smp::batch_slice(x, own), smp::batch_slice(targets, own),
                                  {.microbatches = 2}, count);
      const double evaluated = smp::evaluate(ctx, trainer, MeanOfValid{}, smp::batch_slice(x, own),
                                             smp::batch_slice(targets, own), 2, CountTargets{})
                                   .mean();
      CHECK(evaluated == 2);
      const double norm = trainer.step(ctx, 1);
      return std::array<double, 3>{loss.mean(), norm, weights(trainer).at("w")[0]};
    };
    CHECK(run(CountTargets{}) == std::array<double, 3>{2, 2, -1});
    CHECK(run(smp::EqualSamples{}) == std::array<double, 3>{3, 3, -2});
    CHECK(run(CountSamples{}) == std::array<double, 3>{3, 3, -2});
  });
}

TEST_CASE("ranks that begin with different values are told so") {
  on_ranks({2}, [](auto& world) {
    smp::Worker worker(world, Topology(world.size()), static_cast<std::uint64_t>(world.rank()));
    auto ctx = worker.context();
    const auto make = [&] {
      smp::DataParallel trainer(ctx, Dense<T>(4, 4), smp::optim::Sgd{}, {.compare_initial_values = true});
    };
    CHECK_THROWS_WITH_AS(
        make(),
        "smp: rank 1 of the RDP group has other parameters than rank 0: names, shapes, seed and values "
        "must be equal on all ranks",
        smp::ConfigError);
  });
}
