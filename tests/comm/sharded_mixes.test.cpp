// SPDX-License-Identifier: Apache-2.0
// Sharded parameters in models that mix everything: two types of values, units inside of units inside of units, a
// frozen parameter around them, one that an outer unit and a later one share; in every place of the ranks.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::GradOf, smp::ShardedOptions;

using Values = smp::TensorOf<double>;
using Floats = smp::TensorOf<float>;
using Plain = Dense<double>;
using Tied = Dense<double, "wt">;
constexpr std::int64_t width = 5, rows = 48;

/// A layer in double precision plus one in single precision.
struct Mixed {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved wide;
    Dense<float>::Saved narrow;
    bool throws = false;
  };
  Plain wide{width, width};
  Dense<float> narrow{width, width};
  bool throws = false;  // in step 1, where it is computed
  static constexpr auto fields() {
    return smp::fields(smp::field("wide", &Mixed::wide), smp::field("narrow", &Mixed::narrow));
  }

  template <class To, class From>
  static smp::TensorOf<To> as(auto& ctx, const smp::TensorOf<From>& x) {
    smp::TensorOf<To> y(ctx.memory(), x.shape());
    ctx.stream().enqueue([n = x.size(), x = x.data(), y = y.data()] {
      for (std::size_t i = 0; i < n; ++i) y[i] = static_cast<To>(x[i]);
    });
    return y;
  }
  /// a + b
  static Values sum(auto& ctx, const Values& a, const Floats& b) {
    Values y(ctx.memory(), a.shape());
    ctx.stream().enqueue([n = a.size(), a = a.data(), b = b.data(), y = y.data()] {
      for (std::size_t i = 0; i < n; ++i) y[i] = a[i] + static_cast<double>(b[i]);
    });
    return y;
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    if (throws && ctx.position.step == 1) ctx.stream().enqueue([] { throw std::runtime_error("a kernel gives up"); });
    return sum(ctx, wide.forward(ctx, x, s.wide), narrow.forward(ctx, as<float>(ctx, x), s.narrow));
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    auto dx = backward_input(ctx, dy, s);
    backward_params(ctx, s);
    return dx;
  }
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    const auto narrow_dx = narrow.backward_input(ctx, as<float>(ctx, dy), s.narrow);
    return sum(ctx, wide.backward_input(ctx, dy, s.wide), narrow_dx);
  }
  void backward_params(auto& ctx, Saved& s) {
    wide.backward_params(ctx, s.wide);
    narrow.backward_params(ctx, s.narrow);
  }
};

using Cell = smp::Sequential<Mixed, smp::Repeat<Plain>>;   // a unit of a repetition, with units inside
using Encoder = smp::Sequential<Tied, smp::Repeat<Cell>>;  // a unit with units inside, and the weight of the head
struct Net {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved frozen;
    Encoder::Saved encoder;
    Tied::Saved head;
  };
  Plain frozen{width, width, true};
  smp::AsUnit<Encoder> encoder;
  smp::AsUnit<Tied> head{Tied(width, width)};
  explicit Net(bool throws = false)
      : encoder(Encoder(Tied(width, width), smp::Repeat<Cell>(2, [&](std::size_t) {
                          Mixed mixed;
                          mixed.throws = throws;
                          return Cell(mixed, smp::Repeat<Plain>(2, [](std::size_t) { return Plain(width, width); }));
                        }))) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("frozen", &Net::frozen), smp::field("encoder", &Net::encoder),
                       smp::field("head", &Net::head));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return head.forward(ctx, encoder.forward(ctx, frozen.forward(ctx, x, s.frozen), s.encoder), s.head);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return frozen.backward(ctx, encoder.backward(ctx, head.backward(ctx, dy, s.head), s.encoder), s.frozen);
  }
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    auto d = encoder.backward_input(ctx, head.backward_input(ctx, dy, s.head), s.encoder);
    return frozen.backward_input(ctx, std::move(d), s.frozen);
  }
  void backward_params(auto& ctx, Saved& s) {
    head.backward_params(ctx, s.head);
    encoder.backward_params(ctx, s.encoder);
  }
};

/// How a model is run.
enum class How : unsigned char {
  even,      ///< ranks have as many samples each
  counted,   ///< other numbers each
  by_hand,   ///< two micro-batches are in flight
  split,     ///< and gradients of parameters are computed behind all those of inputs
  throwing,  ///< a kernel throws in step 1
};

struct Result {
  std::vector<double> norms;
  std::map<std::string, std::vector<double>> weights;
  friend bool operator==(const Result&, const Result&) = default;
};

/// Forward and backward of two micro-batches, side by side.
template <class Ctx, class Trainer>
void run_by_hand(Ctx ctx, Trainer& trainer, const Values& x, const Values& target, bool split) {
  std::array<Net::Saved, 2> saved;
  std::array<Values, 2> dy;
  const std::int64_t half = x.shape()[0] / 2;
  for (int m = 0; m < 2; ++m) {
    const smp::SampleRange range{m * half, (m + 1) * half};
    const auto y = trainer.forward(ctx, smp::batch_slice(x, range), saved[static_cast<std::size_t>(m)]);
    const auto t = smp::batch_slice(target, range);
    Values& d = dy[static_cast<std::size_t>(m)] = Values(ctx.memory(), y.shape());
    ctx.stream().enqueue([n = y.size(), y = y.data(), t = std::as_const(t).data(), d = d.data()] {
      for (std::size_t i = 0; i < n; ++i) d[i] = (y[i] - t[i]) / rows;
    });
  }
  for (std::size_t m = 0; m < 2; ++m) {
    ctx.last_microbatch = !split && m == 1;
    if (split) {
      (void)trainer.backward_input(ctx, dy[m], saved[m]);
    } else {
      (void)trainer.backward(ctx, dy[m], saved[m]);
    }
  }
  for (std::size_t m = 0; m < 2 && split; ++m) {
    ctx.last_microbatch = m == 1;
    trainer.backward_params(ctx, saved[m]);
  }
  ctx.stream().synchronize();  // `saved` is read until then
}

template <class World>
Result learn(World& world, const ShardedOptions& options, int tp = 1, int sdp = 1, How how = How::even,
             smp::Placement placement = smp::Placement::cluster,
             smp::HostStream::Mode mode = smp::HostStream::Mode::at_once) {
  smp::Worker worker(
      world,
      smp::DynamicTopology(smp::degrees_for(world.size(), {.tp = tp, .rdp = smp::dynamic, .sdp = sdp}), placement), 7,
      mode);
  auto ctx = worker.context();
  smp::Sharded<Net, smp::dynamic> trainer(ctx, Net(how == How::throwing), smp::optim::AdamW({.weight_decay = 0.1}),
                                          options);
  Result result;
  const std::int64_t r = world.rank(), n = world.size();
  const std::int64_t first = how == How::counted ? rows * r * r / (n * n) : rows * r / n;
  const std::int64_t last = how == How::counted ? rows * (r + 1) * (r + 1) / (n * n) : rows * (r + 1) / n;
  for (int s = 0; s < 3; ++s) {
    const auto x = samples(worker.memory(), rows * s + first, rows * s + last, width, 0),
               y = samples(worker.memory(), rows * s + first, rows * s + last, width, 1);
    const auto step = [&] {
      if (how == How::by_hand || how == How::split) {
        run_by_hand(ctx, trainer, x, y, how == How::split);
      } else if (how == How::counted) {
        (void)smp::step(ctx, trainer, SquaredError<double>{}, x, y, {.microbatches = 2}, smp::CountSamples{});
      } else {
        (void)smp::step(ctx, trainer, SquaredError<double>{}, x, y, {.microbatches = 2});
      }
    };
    try {
      step();
      ctx.stream().synchronize();
    } catch (const std::runtime_error&) {
      REQUIRE(how == How::throwing);
      REQUIRE(s == 1);
      how = How::even;
      for (std::size_t c = 0; c < 2; ++c) {
        trainer.module().encoder.marked().template child<1>()[c].template child<0>().throws = false;
      }
      trainer.discard(ctx);
      trainer.saved() = {};
      step();
    }
    result.norms.push_back(trainer.step(ctx, 0.01));
  }
  CHECK(how != How::throwing);
  for (smp::Block& block : trainer.layout().blocks()) {
    trainer.with_values(ctx, block, [&](const smp::Block& here) {
      for (const auto& s : here.segments) {
        auto& values = result.weights[s.name];
        const auto add = [&](const auto* v) { values.assign(v + s.begin, v + s.end); };
        if (here.element_bytes == sizeof(float)) {
          add(static_cast<const float*>(here.value));
        } else {
          add(static_cast<const double*>(here.value));
        }
      }
    });
  }
  return result;
}

/// Parts of the model compute in single precision.
void check_close(const Result& found, const Result& expected) {
  for (std::size_t s = 0; s < expected.norms.size(); ++s) {
    CHECK(found.norms[s] == doctest::Approx(expected.norms[s]).epsilon(1e-6));
  }
  REQUIRE(found.weights.size() == expected.weights.size());
  for (const auto& [name, values] : expected.weights) {
    CAPTURE(name);
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::abs(found.weights.at(name)[i] - values[i]));
    }
    CHECK(worst <= 1e-5);
  }
}

ShardedOptions sharded(std::size_t max_live, std::size_t bucket) {
  return {.clip = 0.05, .reduce_bucket_size = bucket, .persistence_threshold = 0, .max_live_parameters = max_live};
}
template <class World>
Result alone(World& world, How how = How::even) {
  auto self = world.split(world.rank(), 0, "ALONE");  // over the same kind of communicator: one instantiation
  return learn(self, sharded(0, 1), 1, 1, how);
}

}  // namespace

TEST_CASE("two, three and four ranks learn what one learns, with as many samples each or other numbers") {
  on_ranks({1, 2, 3, 4}, [](auto& world) {
    const Result one = alone(world);
    for (const How how : {How::even, How::counted}) {
      CAPTURE(static_cast<int>(how));
      for (const ShardedOptions& options : {sharded(0, 1), sharded(150, 100), sharded(10'000, 10'000)}) {
        check_close(learn(world, options, 1, world.size(), how), one);
      }
    }
  });
}

TEST_CASE("gradients of parameters behind those of inputs are those of whole passes, in every bit") {
  on_ranks({1, 2, 4}, [](auto& world) {
    for (const ShardedOptions& options : {sharded(0, 1), sharded(150, 100), sharded(10'000, 10'000)}) {
      const Result whole = learn(world, options, 1, world.size(), How::by_hand);
      CHECK(learn(world, options, 1, world.size(), How::split) == whole);
      check_close(whole, alone(world, How::by_hand));
    }
  });
}

TEST_CASE("wherever the ranks are, and whichever way gathers take, the bits are the same") {
  on_few_ranks({4, 8}, [](auto& world) {
    for (const int tp : {1, 2}) {
      const int sdp = std::min(4, world.size() / tp);
      const Result expected = learn(world, sharded(150, 100), tp, sdp);
      check_close(expected, alone(world));
      for (const int ranks_per_node : {2, 4}) {
        CAPTURE(ranks_per_node);
        ShardedOptions options = sharded(150, 100);
        options.gather.ranks_per_node = ranks_per_node;
        CHECK(learn(world, options, tp, sdp) == expected);
        if (world.size() == 8 || !smp::comm::works_in_any_thread(world)) continue;
        // The host ahead, so that a gather waits for no copy but by events (case 18).
        CHECK(learn(world, options, tp, sdp, How::even, smp::Placement::cluster, smp::HostStream::Mode::worker) ==
              expected);
      }
    }
    for (const auto placement : {smp::Placement::spread, smp::Placement::dtp}) {
      CAPTURE(to_string(placement));
      check_close(learn(world, sharded(150, 100), 2, 2, How::even, placement), alone(world));
    }
  });
}

TEST_CASE("a kernel that throws on all ranks: gradients are discarded, and training goes on as if nothing") {
  on_ranks({2, 4}, [](auto& world) {
    if (!smp::comm::works_in_any_thread(world)) return;
    const auto run = [&](How how) {
      return learn(world, sharded(150, 100), 1, 2, how, smp::Placement::cluster, smp::HostStream::Mode::worker);
    };
    CHECK(run(How::throwing) == run(How::even));
  });
}

TEST_CASE("a trainer is destroyed when the stream has done with it, or, by an exception, has dropped it") {
  on_ranks({2}, [](auto& world) {
    if (!smp::comm::works_in_any_thread(world)) return;
    smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(2, {.rdp = 2, .sdp = 2})), 7,
                       smp::HostStream::Mode::worker);
    auto ctx = worker.context();
    const auto x = samples(worker.memory(), 0, 4, width, 0);
    std::array<bool, 2> ran{};
    const auto train = [&](std::size_t i) {
      smp::Sharded<Net, smp::dynamic> trainer(ctx, Net(), smp::optim::AdamW(), sharded(150, 100));
      (void)smp::step(ctx, trainer, SquaredError<double>{}, x, x, {.microbatches = 2});
      trainer.update(ctx, 0.01);
      ctx.stream().synchronize();
      ctx.stream().enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
      ctx.stream().enqueue([&ran, i] { ran[i] = true; });
      if (i == 1) throw std::runtime_error("user code");
    };
    train(0);
    CHECK(ran[0]);
    CHECK_THROWS_AS(train(1), std::runtime_error);
    CHECK(!ran[1]);
    ctx.stream().synchronize();
    CHECK(!ran[1]);
  });
}

TEST_CASE("two models that are trained by turns do not meet in each other's messages") {
  on_ranks({2, 4}, [](auto& world) {
    if (!smp::comm::works_in_any_thread(world)) return;
    const auto train = [&](std::array<bool, 2> which) {
      smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(world.size(), {.rdp = smp::dynamic, .sdp = 2})),
                         7, smp::HostStream::Mode::worker);
      auto ctx = worker.context();
      using Trainer = smp::Sharded<Net, smp::dynamic>;
      Trainer first(ctx, Net(), smp::optim::AdamW(), sharded(150, 100));
      Trainer second(ctx, Net(), smp::optim::AdamW(), sharded(0, 1));
      const std::array<Trainer*, 2> all{&first, &second};
      std::array<double, 2> norms{};
      for (int s = 0; s < 40; ++s) {
        for (std::size_t i = 0; i < 2; ++i) {
          if (!which[i]) continue;
          const auto x =
              samples(worker.memory(), 4 * world.rank(), 4 * world.rank() + 4, width, static_cast<double>(i));
          (void)smp::step(ctx, *all[i], SquaredError<double>{}, x, x);
        }
        for (std::size_t i = 0; i < 2; ++i) {
          if (which[i]) norms[i] += all[i]->step(ctx, 0.01);
        }
      }
      return norms;
    };
    const auto both = train({true, true});
    CHECK(both[0] == train({true, false})[0]);
    CHECK(both[1] == train({false, true})[1]);
  });
}
