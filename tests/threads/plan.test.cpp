// SPDX-License-Identifier: Apache-2.0
// What strategies hold and send is what the planner says, to the byte.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/plan_of.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/parallel/sharded_optimizer.hpp>
#include <smp/plan/flat_plan.hpp>
#include <smp/plan/sharded_plan.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::Collective, smp::Group, smp::MemoryUse, smp::comm::Operation;

using T = double;
using Tied = Dense<T, "wt">;
constexpr std::int64_t width = 5;
constexpr int microbatches = 3;

/// A unit with a unit inside of it.
struct Pair {
  using Input = smp::TensorOf<T>;
  using Output = Input;
  struct Saved {
    Dense<T>::Saved first, second;
  };
  Dense<T> first{width, 3};
  smp::AsUnit<Dense<T>> second{Dense<T>(3, width)};
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &Pair::first), smp::field("second", &Pair::second));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return second.forward(ctx, first.forward(ctx, x, s.first), s.second);
  }
  Output backward(auto& ctx, const Output& dy, Saved& s) {
    return first.backward(ctx, second.backward(ctx, dy, s.second), s.first);
  }
};

/// Around units of different sizes, one of them frozen, a parameter that is used in the root and in a unit.
struct Net {
  using Layers = smp::Sequential<Dense<T>, Dense<T>>;
  using Input = smp::TensorOf<T>;
  using Output = Input;
  struct Saved {
    Tied::Saved first, last;
    smp::Repeat<Pair>::Saved pairs;
    Layers::Saved layers;
  };
  Tied first{width, width};
  smp::Repeat<Pair> pairs{2, [](std::size_t) { return Pair{}; }};
  Layers layers{Dense<T>(width, 9), Dense<T>(9, width, true)};
  smp::AsUnit<Tied> last{Tied(width, width)};
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &Net::first), smp::field("pairs", &Net::pairs),
                       smp::field("layers", &Net::layers), smp::field("last", &Net::last));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    const auto middle = layers.forward(ctx, pairs.forward(ctx, first.forward(ctx, x, s.first), s.pairs), s.layers);
    return last.forward(ctx, middle, s.last);
  }
  Output backward(auto& ctx, const Output& dy, Saved& s) {
    const auto middle = layers.backward(ctx, last.backward(ctx, dy, s.last), s.layers);
    return first.backward(ctx, pairs.backward(ctx, middle, s.pairs), s.first);
  }
};

/// A layer that looks at what is held whenever it runs: behind all gathers.
struct Watched : Dense<T> {
  const std::function<void()>* look;
  Watched(std::int64_t in, std::int64_t out, const std::function<void()>& l) : Dense<T>(in, out), look(&l) {}
  smp::TensorOf<T> forward(auto& ctx, const smp::TensorOf<T>& x, Saved& s) const {
    (*look)();
    return Dense<T>::forward(ctx, x, s);
  }
  smp::TensorOf<T> backward(auto& ctx, const smp::TensorOf<T>& dy, Saved& s) {
    (*look)();
    return Dense<T>::backward(ctx, dy, s);
  }
};
using WatchedPair = smp::Sequential<Watched, Watched>;

/// 20 parameters in the root, and units of 31, 49 and 31.
struct WatchedNet {
  using Input = smp::TensorOf<T>;
  using Output = smp::TensorOf<T>;
  struct Saved {
    Watched::Saved first;
    smp::Repeat<WatchedPair>::Saved pairs;
  };
  Watched first;
  smp::Repeat<WatchedPair> pairs;
  explicit WatchedNet(const std::function<void()>& look)
      : first(4, 4, look), pairs(3, [&](std::size_t i) {
          const std::int64_t inside = i == 1 ? 5 : 3;
          return WatchedPair(Watched(4, inside, look), Watched(inside, 4, look));
        }) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &WatchedNet::first), smp::field("pairs", &WatchedNet::pairs));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return pairs.forward(ctx, first.forward(ctx, x, s.first), s.pairs);
  }
  Output backward(auto& ctx, const Output& dy, Saved& s) {
    return first.backward(ctx, pairs.backward(ctx, dy, s.pairs), s.first);
  }
};

using Counts = std::vector<smp::GroupTraffic>;

/// What has been counted of what a plan foretells, in the order of `plan`, and whatever it does not know behind it.
Counts counted(const smp::comm::Counters& counters, const smp::RankPlan& plan) {
  const auto collective = [](Operation o) {
    return o == Operation::all_reduce                                   ? Collective::all_reduce
           : o == Operation::all_gather || o == Operation::all_gather_v ? Collective::all_gather
                                                                        : Collective::reduce_scatter;
  };
  smp::RankPlan found;
  for (const auto& t : plan.traffic) found.add(t.group, t.collective, 0, 0);
  for (const auto& row : counters.rows()) {
    if (row.purpose != smp::Purpose::gradient && row.purpose != smp::Purpose::parameter) continue;
    for (const Group kind : smp::all_groups) {
      if (to_string(kind) == row.group) found.add(kind, collective(row.operation), row.count.calls, row.count.bytes);
    }
  }
  return found.traffic;
}

/// Runs three steps; checks the last one, and what is held behind it.
template <class Worker, class Trainer>
void check(Worker& worker, Trainer& trainer, const smp::RankPlan& plan) {
  auto ctx = worker.context();
  const auto run = [&] {
    smp::TensorOf<T> x(worker.memory(), {6, width}), y(worker.memory(), {6, width});
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = y.data()[i] = 0.1 * static_cast<double>(i);
    (void)smp::step(ctx, trainer, SquaredError<T>{}, x, y, {.microbatches = microbatches});
    trainer.step(ctx, 0.01);
  };
  run();
  run();
  const Counts before = counted(worker.counters(), plan);
  run();
  Counts after = counted(worker.counters(), plan);
  REQUIRE(after.size() == before.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i].calls -= before[i].calls;
    after[i].bytes -= before[i].bytes;
    CAPTURE(to_string(after[i].group));
    CAPTURE(to_string(after[i].collective));
    REQUIRE(i < plan.traffic.size());
    CHECK(after[i].calls == plan.traffic[i].calls);
    CHECK(after[i].bytes == plan.traffic[i].bytes);
  }
  CHECK(worker.memory()[MemoryUse::parameter].live == plan.parameter);
  CHECK(worker.memory()[MemoryUse::gradient].live == plan.gradient);
  CHECK(worker.memory()[MemoryUse::optimizer].live == plan.optimizer);
  CHECK(worker.memory()[MemoryUse::buffer].live == plan.buffer);
}

template <class F>
void on_worker(int ranks, int sdp, F&& f) {
  smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(ranks, {.rdp = smp::dynamic, .sdp = sdp})), 7);
    f(worker, smp::GroupPlaces::of(worker.topology(), world.rank()));
  });
}

}  // namespace

TEST_CASE("DataParallel and ShardedOptimizer hold and send what is planned") {
  for (const int ranks : {1, 2, 4}) {
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{400}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bucket_bytes);
      const smp::ReductionOptions planned{.bucket_bytes = bucket_bytes, .plain = true};
      on_worker(ranks, 1, [&](auto& worker, const smp::GroupPlaces& places) {
        auto ctx = worker.context();
        smp::DataParallel trainer(ctx, Net{}, smp::optim::AdamW{}, {.bucket_bytes = bucket_bytes});
        check(worker, trainer, plan_data_parallel(smp::model_sizes(trainer.layout()), places, planned));
      });
      on_worker(ranks, 1, [&](auto& worker, const smp::GroupPlaces& places) {
        auto ctx = worker.context();
        smp::ShardedOptimizer trainer(ctx, Net{}, smp::optim::AdamW{}, {.bucket_bytes = bucket_bytes});
        check(worker, trainer, plan_sharded_optimizer(smp::model_sizes(trainer.layout()), places, planned));
      });
    }
  }
}

TEST_CASE("Sharded holds and sends what is planned, whatever the budgets") {
  const auto with = [](std::size_t persistence, std::size_t max_live, std::size_t bucket, std::size_t merge) {
    for (const int ranks : {2, 4}) {
      for (const int sdp : {1, 2, 4}) {
        if (ranks % sdp != 0) continue;
        CAPTURE(ranks);
        CAPTURE(sdp);
        CAPTURE(max_live);
        CAPTURE(bucket);
        on_worker(ranks, sdp, [&](auto& worker, const smp::GroupPlaces& places) {
          auto ctx = worker.context();
          smp::Sharded<Net, smp::dynamic> trainer(ctx, Net{}, smp::optim::AdamW{},
                                                  {.reduce_bucket_size = bucket,
                                                   .persistence_threshold = persistence,
                                                   .max_live_parameters = max_live,
                                                   .merge_gathers_below = merge});
          const auto plan = plan_sharded(smp::model_sizes(trainer.layout()), places,
                                         {.reduce_bucket_size = bucket,
                                          .max_live_parameters = max_live,
                                          .merge_gathers_below = merge,
                                          .microbatches = microbatches,
                                          .plain = true});
          check(worker, trainer, plan.rank);
          const smp::GatherPlan* const replayed = trainer.engine().values().storage().plan();
          if (sdp > 1) {
            REQUIRE(replayed != nullptr);
            CHECK(replayed->gathered == plan.gathers.gathered);
            CHECK(replayed->released == plan.gathers.released);
          }
        });
      }
    }
  };
  with(0, 0, 1, 0);
  with(0, 100, 60, 0);
  with(0, 150, 100, 60);
  with(10, 80, 40, 100);
  with(0, 1'000'000, 1'000'000, 1'000'000);
}

TEST_CASE("from construction on a rank holds its share, what is in use, and two slots of the largest unit") {
  constexpr std::size_t root = 20, largest = 5 * 5 + 6 * 4;        // elements
  constexpr std::size_t all = 20 + 2 * (5 * 3 + 4 * 4) + largest;  // a block of a unit is padded to an even number
  constexpr std::size_t share = 10 + 16 + 25 + 16, needed = root + largest + 1;
  for (const std::size_t max_live : {std::size_t{0}, needed + 1, std::size_t{110}, std::size_t{1000}}) {
    CAPTURE(max_live);
    on_worker(2, 2, [&](auto& worker, const smp::GroupPlaces&) {
      auto ctx = worker.context();
      std::function<void()> look = [] {};
      smp::Sharded<WatchedNet, smp::dynamic> trainer(ctx, WatchedNet(look), smp::optim::AdamW{},
                                                     {.reduce_bucket_size = 1,
                                                      .persistence_threshold = 0,
                                                      .max_live_parameters = max_live,
                                                      .merge_gathers_below = 0});
      const auto& storage = trainer.engine().values().storage();
      const std::size_t live = std::min(std::max(max_live, needed), all + 3) * sizeof(T);
      std::size_t most = 0;
      look = [&] {
        most = std::max(most, storage.live_bytes());
        CHECK(storage.live_bytes() <= live);
      };
      const auto check = [&](std::size_t arena) {
        const smp::Memory& m = worker.memory();
        CHECK(m[MemoryUse::parameter].peak == share * sizeof(T));
        CHECK(m[MemoryUse::gradient].peak == share * sizeof(T));
        CHECK(m[MemoryUse::optimizer].peak == 2 * share * sizeof(T));
        CHECK(m[MemoryUse::buffer].peak == arena + 2 * (largest + 1) * sizeof(T));
      };
      check(needed * sizeof(T));
      smp::TensorOf<T> x(worker.memory(), {4, 4});
      for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = 0.1 * static_cast<double>(i);
      WatchedNet::Saved saved;
      for (int s = 0; s < 3; ++s) {
        for (const int microbatch : {-1, 0, 1}) {  // an evaluation first
          ctx.training = microbatch >= 0;
          ctx.last_microbatch = microbatch == 1;
          const smp::TensorOf<T> y = trainer.forward(ctx, x, saved);
          if (ctx.training) (void)trainer.backward(ctx, y, saved);
        }
        if (s == 0) check(needed * sizeof(T));
        trainer.step(ctx, 0.01);
        CHECK(most <= live);
      }
      CHECK(most >= std::min(live, needed * sizeof(T)));
      check(std::max(storage.plan()->arena, needed * sizeof(T)));
      CHECK(storage.plan()->arena <= live);
    });
  }
}
