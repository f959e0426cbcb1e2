// Over a slow network the gradients of a layer travel while those below are computed: the time of a step is that of the
// longer of the two and of the last bucket; without overlap it is their sum. So do values while the layers above those
// that they are for compute, if the ranks share the update. A matter of time, so only when the long tests are asked
// for; the order of events is tested in unit/data_parallel.
#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <string_view>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include <smp/comm/delayed.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/full.hpp"
#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using namespace std::chrono_literals;
using smp::GradOf, smp::comm::Delayed, smp::comm::Network;
using Values = smp::TensorOf<double>;

constexpr std::size_t layers = 8;
constexpr std::int64_t elements = 1000;

/// A layer whose backward takes its time, and no processor; or whose forward does, too.
struct Slow {
  using Input = Values;
  using Output = Values;
  struct Saved {};
  std::chrono::milliseconds time, forward_time;
  smp::ParameterOf<double> w{{elements}};
  explicit Slow(std::chrono::milliseconds t, std::chrono::milliseconds f = {}) : time(t), forward_time(f) {}
  static constexpr auto fields() { return smp::fields(smp::field("w", &Slow::w)); }
  Output forward(auto& ctx, const Input& x, Saved&) const {
    ctx.stream().enqueue([t = forward_time] { std::this_thread::sleep_for(t); });
    return x;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved&) {
    ctx.stream().enqueue([t = time, dw = w.grad().data()] {
      std::this_thread::sleep_for(t);
      for (int i = 0; i < elements; ++i) dw[i] += 1;
    });
    return dy;
  }
};

struct Times {
  double overlapped = 1e9;
  double sequential = 1e9;
};

/// Milliseconds of a step: the best of a few, as other programs may want the processor, too.
Times times(World& world, std::chrono::milliseconds compute, std::chrono::milliseconds bucket) {
  const double seconds = std::chrono::duration<double>(bucket).count();
  const Delayed<World> slow(world, Network{.bytes_per_second = elements * sizeof(double) / seconds});  // of two ranks
  smp::Worker worker(slow, smp::Topology<smp::Degrees{.rdp = 2}>(), 1);
  auto ctx = worker.context();
  const auto time = [&](bool overlap) {
    smp::DataParallel trainer(ctx, smp::Repeat<Slow>(layers, [&](std::size_t) { return Slow(compute); }),
                              smp::optim::Sgd{}, {.bucket_bytes = elements * sizeof(double), .overlap = overlap});
    Values x(worker.memory(), {1, 1});
    *x.data() = 1;
    const auto begin = smp::Clock::now();
    smp::step(ctx, trainer, SquaredError<double>{}, x, x);
    trainer.step(ctx, 0.1);
    trainer.for_each_parameter([](std::string_view, const smp::Shape&, auto values, auto) {
      if constexpr (std::same_as<typename decltype(values)::value_type, double>) CHECK(values[0] == -0.2);
    });
    return std::chrono::duration<double, std::milli>(smp::Clock::now() - begin).count();
  };
  Times best;
  for (int i = 0; i < 3; ++i) {
    best.overlapped = std::min(best.overlapped, time(true));
    best.sequential = std::min(best.sequential, time(false));
  }
  return best;
}

/// Milliseconds of three steps in which a layer computes for `each` in each direction, and half of one travels in that
/// time.
double shared_update(World& world, std::chrono::milliseconds each, bool overlap) {
  const double seconds = std::chrono::duration<double>(each).count();
  const Delayed<World> slow(world, Network{.bytes_per_second = elements / 2.0 * sizeof(double) / seconds});
  smp::Worker worker(slow, smp::Topology<smp::Degrees{.rdp = 2}>(), 1);
  auto ctx = worker.context();
  smp::ShardedOptimizer trainer(ctx, smp::Repeat<Slow>(layers, [&](std::size_t) { return Slow(each, each); }),
                                smp::optim::Sgd{}, {.bucket_bytes = elements * sizeof(double), .overlap = overlap});
  Values x(worker.memory(), {1, 1});
  *x.data() = 1;
  const auto begin = smp::Clock::now();
  for (int s = 0; s < 3; ++s) {
    smp::step(ctx, trainer, SquaredError<double>{}, x, x);
    trainer.step(ctx, 0.1);
  }
  trainer.for_each_parameter([](std::string_view, const smp::Shape&, auto values, auto) {
    for (const auto v : values) CHECK(v == doctest::Approx(-0.6));
  });
  return std::chrono::duration<double, std::milli>(smp::Clock::now() - begin).count();
}

/// Milliseconds of a step of a model that two ranks hold together, when its order is known: a layer computes for
/// `compute` in each direction, its parameters and its gradients travel for `travel`.
double sharded(World& world, std::chrono::milliseconds compute, std::chrono::milliseconds travel, bool overlap) {
  const double seconds = std::chrono::duration<double>(travel).count();
  const Delayed<World> slow(world, Network{.bytes_per_second = elements / 2.0 * sizeof(double) / seconds});
  smp::Worker worker(slow, smp::Topology<smp::Degrees{.rdp = 2, .sdp = 2}>(), 1,
                     overlap ? smp::HostStream::Mode::worker : smp::HostStream::Mode::at_once);
  auto ctx = worker.context();
  smp::Sharded<smp::Repeat<Slow>, 2> trainer(
      ctx, smp::Repeat<Slow>(layers, [&](std::size_t) { return Slow(compute, compute); }), smp::optim::AdamW{},
      {.reduce_bucket_size = elements,
       .persistence_threshold = 0,
       .max_live_parameters = 3 * elements,
       .merge_gathers_below = 0,
       .overlap = overlap});
  Values x(worker.memory(), {1, 1});
  *x.data() = 1;
  double best = 1e9;
  for (int s = 0; s < 4; ++s) {
    const auto begin = smp::Clock::now();
    smp::step(ctx, trainer, SquaredError<double>{}, x, x);
    trainer.step(ctx, 0.1);
    if (s > 0) best = std::min(best, std::chrono::duration<double, std::milli>(smp::Clock::now() - begin).count());
  }
  return best;
}

}  // namespace

TEST_CASE("a step takes the longer of computing and communicating, and one bucket") {
  if (!full()) return;
  on_ranks({2}, [](World& world) {
    for (const auto& [compute, bucket] : {std::pair(6ms, 6ms), std::pair(8ms, 3ms), std::pair(3ms, 8ms)}) {
      const double all_compute = static_cast<double>(layers) * static_cast<double>(compute.count());
      const double all_buckets = static_cast<double>(layers) * static_cast<double>(bucket.count());
      const auto [overlapped, sequential] = times(world, compute, bucket);
      CAPTURE(all_compute);
      CAPTURE(all_buckets);
      CHECK(overlapped <= 1.1 * std::max(all_compute, all_buckets) + static_cast<double>(bucket.count()));
      CHECK(sequential >= 0.9 * (all_compute + all_buckets));
    }
  });
}

TEST_CASE("values are gathered under the next forward") {
  if (!full()) return;
  on_ranks({2}, [](World& world) {
    constexpr auto each = 6ms;
    double overlapped = 1e9, sequential = 1e9;
    for (int i = 0; i < 3; ++i) {
      overlapped = std::min(overlapped, shared_update(world, each, true));
      sequential = std::min(sequential, shared_update(world, each, false));
    }
    // Of four times a layer two are hidden, but for those at the ends: 3 x (2 x 8 + 2) + 8 of 3 x 4 x 8.
    CHECK(overlapped <= 1.1 * 62 / 96 * sequential);
    CHECK(sequential >= 0.9 * 96 * static_cast<double>(each.count()));
  });
}

TEST_CASE(
    "sharded parameters are gathered ahead, gradients reduced behind: the longer of computing and communicating") {
  if (!full()) return;
  on_ranks({2}, [](World& world) {
    for (const auto& [compute, travel] : {std::pair(6ms, 6ms), std::pair(8ms, 3ms), std::pair(4ms, 8ms)}) {
      const double travel_ms = static_cast<double>(travel.count());
      const double all_compute = 2.0 * static_cast<double>(layers) * static_cast<double>(compute.count());
      const double gathers = (2.0 * static_cast<double>(layers) - 3) * travel_ms;  // three layers turn round without
      const double reductions = static_cast<double>(layers) * travel_ms;
      const double overlapped = sharded(world, compute, travel, true);
      const double sequential = sharded(world, compute, travel, false);
      MESSAGE("compute " << all_compute << ", gathers " << gathers << ", reductions " << reductions
                         << " ms: " << overlapped << " with overlap, " << sequential << " without");
      CHECK(overlapped <= 1.1 * std::max(all_compute, gathers + reductions) + 2 * travel_ms);
      CHECK(sequential >= 0.9 * (all_compute + gathers + reductions));
    }
  });
}
