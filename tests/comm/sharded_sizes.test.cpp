// SPDX-License-Identifier: Apache-2.0
// Sharded parameters whose sizes are those that other systems got wrong: buckets of a few elements, parameters without
// elements, parts of tensor-parallel ranks that do not divide.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/lifted.hpp>
#include <smp/parallel/move.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/rows.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"
#include "support/weights.hpp"

namespace {

using namespace smp::testing;
using smp::Dim, smp::GradOf, smp::Group, smp::Ids, smp::Purpose, smp::ShardedOptions, smp::comm::Operation;

using T = double;
using Values = smp::TensorOf<T>;
using Plain = Dense<T>;
template <class M, class Opt = smp::optim::AdamW>
using Sharded = smp::Sharded<M, smp::dynamic, Opt>;

smp::DynamicTopology topology(int world, int tp, int sdp) {
  return smp::DynamicTopology(smp::degrees_for(world, {.tp = tp, .rdp = smp::dynamic, .sdp = sdp}));
}

/// How often gradients are reduced in each of two steps of two micro-batches, and the shards of replicas, for ten
/// units of one parameter of 30 elements.
template <class World>
std::array<std::vector<std::uint64_t>, 2> reductions(World& world, int sdp, std::size_t bucket) {
  smp::Worker worker(world, topology(world.size(), 1, sdp), 3);
  auto ctx = worker.context();
  using Net = smp::Repeat<Plain>;
  const auto layer = [](std::size_t i) { return i % 2 == 0 ? Plain(5, 6, false, false) : Plain(6, 5, false, false); };
  Sharded<Net, smp::optim::Sgd> trainer(ctx, Net(10, layer), {},
                                        {.reduce_bucket_size = bucket, .persistence_threshold = 0});
  const auto calls = [&](const char* group, Operation operation) {
    return worker.counters().get(group, operation, Purpose::gradient).calls;
  };
  std::array<std::vector<std::uint64_t>, 2> each;
  std::array<std::uint64_t, 2> before{};
  for (int s = 0; s < 2; ++s) {
    const auto x = samples(worker.memory(), world.rank(), world.rank() + 2, 5, 0);
    smp::step(ctx, trainer, SquaredError<T>{}, x, x, {.microbatches = 2});
    trainer.step(ctx, 0.1);
    const std::array<std::uint64_t, 2> now{calls("SHARD", Operation::reduce_scatter),
                                           calls("REPLICA", Operation::all_reduce)};
    for (std::size_t i = 0; i < 2; ++i) each[i].push_back(now[i] - before[i]);
    before = now;
  }
  return each;
}

/// The values of `Rows` with these numbers of rows after three steps of AdamW on 8 samples.
template <class World>
Weights learnt(World& world, std::array<std::int64_t, 3> rows, const ShardedOptions& options) {
  smp::Worker worker(world, topology(world.size(), 1, world.size()), 3);
  auto ctx = worker.context();
  Sharded<Rows> trainer(ctx, Rows(rows), {}, options);
  const std::int64_t each = 8 / world.size(), first = each * world.rank();
  for (int s = 0; s < 3; ++s) {
    const auto x = samples(worker.memory(), first, first + each, 8, s);
    const auto y = samples(worker.memory(), first, first + each, rows[0] + rows[1] + rows[2], s + 1);
    smp::step(ctx, trainer, SquaredError<T>{}, x, y, {.microbatches = 2});
    CHECK((trainer.step(ctx, 0.1) > 0) == (rows[0] + rows[1] + rows[2] > 0));
  }
  return weights(ctx, trainer);
}

/// A linear layer of which each tensor-parallel rank has some outputs, and all of them again.
using Linear = smp::nn::Linear<T>;
using Cut = smp::Sequential<smp::TensorParallel<Linear, smp::Split::columns>,
                            smp::Move<Values, smp::Shard<Dim::features>, smp::Invariant>>;

struct Trained {
  Weights initial, learnt;                                 // this rank's part
  std::map<std::string, std::vector<std::size_t>> places;  // of its elements in the whole
};

/// Three steps of AdamW of a layer with 4 inputs.
template <class World>
Trained train_cut(World& world, std::int64_t outputs, int tp, int sdp, bool frozen) {
  smp::Worker worker(world, topology(world.size(), tp, sdp), 3);
  auto ctx = worker.context();
  const Linear whole(smp::ParameterOf<T>({outputs, 4}, {smp::Init::Kind::normal, 1}, {}, frozen),
                     smp::ParameterOf<T>({outputs}, {smp::Init::Kind::normal, 1}));
  smp::TensorParallel<Linear, smp::Split::columns> part(whole, worker.groups()[Group::tp].rank(), tp);
  Sharded<Cut> trainer(ctx, Cut(std::move(part), {}), smp::optim::AdamW({.weight_decay = 0.1}),
                       {.clip = 0.01, .persistence_threshold = 0});
  Trained result;
  const auto read = [&](Weights& to) {
    for_each_value(ctx, trainer, [&](const auto& s, const double* v) {
      to[s.name].assign(v, v + (s.end - s.begin));
      CHECK(s.declaration->frozen() == (frozen && s.name == "0.weight"));
      result.places[s.name].clear();
      for (std::size_t i = 0; i < s.end - s.begin; ++i) result.places[s.name].push_back(s.declaration->global_index(i));
    });
  };
  read(result.initial);
  const int copies = worker.groups()[Group::rdp].size();
  const std::int64_t each = 8 / copies, first = each * worker.groups()[Group::rdp].rank();
  for (int s = 0; s < 3; ++s) {
    Ids targets(worker.memory(), {each});
    for (std::int64_t i = 0; i < each; ++i) targets.data()[i] = static_cast<std::int32_t>((first + i) * 5 % outputs);
    const smp::Dist<Values> x{samples(worker.memory(), first, first + each, 4, s)};
    smp::step(ctx, trainer, smp::Lifted<smp::nn::CrossEntropy<T>, smp::Invariant>{}, x, targets,
              {.microbatches = 2, .prescaled = true});
    CHECK(trainer.step(ctx, 0.1) > 0.01);  // so it is clipped
  }
  read(result.learnt);
  return result;
}

}  // namespace

TEST_CASE("case 13: ten units of one parameter of 30 elements in buckets of 1, 100 and 1000 elements, two steps") {
  on_ranks({2, 4}, [](auto& world) {
    using Calls = std::vector<std::uint64_t>;
    const auto check = [&](int sdp, std::size_t bucket, std::uint64_t reduced, std::uint64_t replicated) {
      const auto [scattered, summed] = reductions(world, sdp, bucket);
      CHECK(scattered == Calls{reduced, reduced});
      CHECK(summed == Calls{replicated, replicated});
    };
    // In each of two micro-batches 3 + 3 + 3 + 1 units; shards of 15 elements are summed over replicas once a step.
    const std::uint64_t replicas = world.size() == 4 ? 1 : 0;
    check(2, 100, 2 * 4, 2 * replicas);
    check(2, 1, 2 * 10, 10 * replicas);
    check(2, 1000, 2 * 1, 1 * replicas);
    if (world.size() == 4) check(4, 100, 2 * 4, 0);
  });
}

TEST_CASE("case 15: sharded parameters of 8, 0 and 24 elements, 8, 24 and 0, and none at all") {
  on_ranks({1, 2, 4}, [](auto& world) {
    for (ShardedOptions options :
         {ShardedOptions{.persistence_threshold = 0}, ShardedOptions{.persistence_threshold = 10},
          ShardedOptions{.reduce_bucket_size = 1, .persistence_threshold = 0, .max_live_parameters = 0}}) {
      options.clip = 0;
      const Weights last = learnt(world, {1, 3, 0}, options);
      CHECK(last.size() == 2);
      const Weights inside = learnt(world, {1, 0, 3}, options);
      CHECK(inside.size() == 2);
      CHECK(inside.at("a") == last.at("a"));  // its samples, its target and its name are the same
      CHECK(learnt(world, {0, 0, 0}, options).empty());
    }
  });
}

TEST_CASE("case 16: parts of tensor-parallel ranks, 5 rows on 2 ranks and 3 rows on 4, frozen or not") {
  on_few_ranks({4, 8}, [](auto& world) {
    const int tp = 2, sdp = world.size() / tp;
    auto self = world.split(world.rank(), 0, "ALONE");
    for (const std::int64_t outputs : {10, 6}) {
      for (const bool frozen : {false, true}) {
        CAPTURE(outputs);
        CAPTURE(frozen);
        const Trained one = train_cut(self, outputs, 1, 1, frozen), found = train_cut(world, outputs, tp, sdp, frozen);
        for (const auto& [name, places] : found.places) {
          CAPTURE(name);
          CHECK(places.size() == one.places.at(name).size() / 2);
          for (std::size_t i = 0; i < places.size(); ++i) {
            CHECK(found.initial.at(name)[i] == one.initial.at(name)[places[i]]);  // in every bit
            CHECK(std::abs(found.learnt.at(name)[i] - one.learnt.at(name)[places[i]]) <= 1e-12);
          }
          CHECK((found.learnt.at(name) == found.initial.at(name)) == (frozen && name == "0.weight"));
        }
      }
    }
  });
}

TEST_CASE("the defaults are those of the reference") {
  const ShardedOptions options;
  CHECK(options.clip == 1.0);
  CHECK(options.reduce_bucket_size == 500'000'000);
  CHECK(options.persistence_threshold == 1'000'000);
  CHECK(options.max_live_parameters == 1'000'000'000);
  CHECK(options.gather.hierarchical);
}
