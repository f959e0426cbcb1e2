// Data parallelism over models that are cut over tensor-parallel ranks: several steps of AdamW with clipping, in both
// layouts, with samples of one's own or shared ones, with the optimizer's state on all ranks or cut over them, against
// one rank.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/vocabulary_cross_entropy.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"

namespace {

using smp::Dim, smp::Ids, smp::Split;
using smp::testing::World;
using namespace smp::nn;

constexpr std::int64_t vocabulary = 7, width = 8, places = 4, batch = 8;

template <class At>
using Model = smp::Sequential<
    smp::TensorParallel<Embedding<double, Tie::wte>, Split::rows, At>, LayerNorm<double>,
    smp::Residual<smp::Sequential<LayerNorm<double>, smp::TensorParallel<Mlp<double>, Split::usual, At>>>,
    LayerNorm<double>, smp::TensorParallel<LmHead<double, Tie::wte>, Split::usual, At>>;

template <class At>
Model<At> make(int rank, int ranks) {
  using Norm = LayerNorm<double>;
  using Feed = smp::TensorParallel<Mlp<double>, Split::usual, At>;
  return Model<At>({{vocabulary, width, {smp::Init::Kind::normal, 0.5}}, rank, ranks}, Norm(width),
                   smp::Residual<smp::Sequential<Norm, Feed>>(
                       smp::Sequential<Norm, Feed>(Norm(width), {Mlp<double>(width, {.dropout = 0.25}), rank, ranks})),
                   Norm(width), {{width, vocabulary}, rank, ranks});
}

struct Trained {
  std::vector<double> losses;                              // with the norms
  std::map<std::string, std::vector<double>> values;       // this rank's part
  std::map<std::string, std::vector<std::size_t>> places;  // of its elements in the whole
  std::size_t learnt = 0, optimizer_bytes = 0;             // of this rank
};

/// Three steps; every rank reads its samples of the same global batch.
template <class At, class Topo>
Trained train(World world, const Topo& topology, bool prescaled, const smp::AnyStrategyOptions& options) {
  // Own samples are gathered: with a worker the host must not read them before they are there.
  const bool ahead = !prescaled && smp::comm::works_in_any_thread(world);
  smp::Worker worker(std::move(world), topology, 3,
                     ahead ? smp::HostStream::Mode::worker : smp::HostStream::Mode::at_once);
  if (prescaled) worker.overlap_communication();  // beside the reductions of gradients, which are beside it, too
  auto ctx = worker.context();
  auto& tp = worker.groups()[smp::Group::tp];
  auto& rdp = worker.groups()[smp::Group::rdp];
  smp::AnyStrategy trainer(ctx, make<At>(tp.rank(), tp.size()), smp::optim::AdamW({.weight_decay = 0.1}), options);
  const int feeds = prescaled ? rdp.size() : rdp.size() * tp.size();
  const int feed = prescaled ? rdp.rank() : rdp.rank() * tp.size() + tp.rank();
  const std::int64_t own = batch / feeds;
  Trained result;
  for (std::int64_t s = 0; s < 3; ++s) {
    Ids ids(ctx.memory(), {own, places}), targets(ctx.memory(), {own, places});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i) + feed * own * places + s * batch * places;
      ids.data()[i] = static_cast<std::int32_t>(at * at % vocabulary);
      targets.data()[i] = static_cast<std::int32_t>((at * 5 + 1) % vocabulary);
    }
    const auto loss = smp::step(ctx, trainer, VocabularyCrossEntropy<double>{vocabulary}, ids, targets,
                                {.microbatches = 2, .prescaled = prescaled});
    result.losses.push_back(loss.mean());
    result.losses.push_back(trainer.step(ctx, 0.01));
  }
  for (smp::Block& block : trainer.layout().blocks()) {
    trainer.with_values(ctx, block, [&](const smp::Block& b) {
      for (const auto& s : b.segments) {
        const auto* v = static_cast<const double*>(b.value);
        result.values[s.name].assign(v + s.begin, v + s.end);
        for (std::size_t i = 0; i < s.end - s.begin; ++i) {
          result.places[s.name].push_back(s.declaration->global_index(i));
        }
        if (s.declaration->cut().parts > 1 || tp.rank() == 0) result.learnt += s.end - s.begin;
      }
    });
  }
  result.optimizer_bytes = worker.memory()[smp::MemoryUse::optimizer].live;
  return result;
}

void same(const Trained& one, const Trained& many) {
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    CHECK(many.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-12));
  }
  REQUIRE(many.values.size() == one.values.size());
  for (const auto& [name, expected] : one.values) {
    double largest = 0, worst = 0;
    for (const double v : expected) largest = std::max(largest, std::abs(v));
    for (std::size_t i = 0; i < many.values.at(name).size(); ++i) {
      worst = std::max(worst, std::abs(many.values.at(name)[i] - expected[many.places.at(name)[i]]));
    }
    CAPTURE(name);
    CHECK(worst <= 1e-12 * largest + 1e-13);
  }
}

/// The state of the optimizer is nowhere twice, and the numbers are those of data parallelism, which clips nothing.
void same_bits(World& world, int copies, const Trained& whole, const Trained& cut) {
  CHECK(cut.values == whole.values);
  std::vector<std::uint64_t> sums{cut.learnt, cut.optimizer_bytes};
  smp::HostStream stream;
  world.all_reduce(stream, sums, sums, smp::sum);
  CHECK(sums[1] * static_cast<std::uint64_t>(copies) == sums[0] * 2 * sizeof(double));
}

template <class At>
void compare(World& world, const Trained& one, const smp::DynamicTopology& topology, bool prescaled) {
  const auto run = [&](const smp::AnyStrategyOptions& options) {
    return train<At>(world.split(0, world.rank(), "COPY"), topology, prescaled, options);
  };
  same(one, run(smp::DataParallelOptions{.clip = 0.3, .bucket_bytes = 256}));
  same(one, run(smp::ShardedOptimizerOptions{.clip = 0.3, .bucket_bytes = 256}));
  same_bits(world, topology.degrees().rdp, run(smp::DataParallelOptions{.bucket_bytes = 700}),
            run(smp::ShardedOptimizerOptions{.bucket_bytes = 700}));
}

template <int Tp>
void compare(World& world) {
  if (world.size() % Tp != 0) return;
  World alone = world.split(world.rank(), 0, "ALONE");
  const Trained one = train<smp::Invariant>(std::move(alone), smp::Topology<smp::Degrees{}>(), true,
                                            smp::DataParallelOptions{.clip = 0.3});
  const smp::DynamicTopology topology(smp::degrees_for(world.size(), {.tp = Tp, .rdp = smp::dynamic}));
  for (const bool prescaled : {true, false}) {
    CAPTURE(prescaled);
    compare<smp::Invariant>(world, one, topology, prescaled);
    compare<smp::Shard<Dim::sequence>>(world, one, topology, prescaled);
  }
}

/// Shards of the parts that ranks with equal parts hold together, nodes of two or four ranks, and two budgets.
template <class At>
void compare_sharded(World& world, const Trained& one, int tp, int sdp, bool prescaled) {
  CAPTURE(sdp);
  CAPTURE(prescaled);
  const smp::DynamicTopology topology(smp::degrees_for(world.size(), {.tp = tp, .rdp = smp::dynamic, .sdp = sdp}));
  smp::ShardedOptions options{.clip = 0.3, .reduce_bucket_size = 50, .persistence_threshold = 0};
  options.max_live_parameters = prescaled ? 0 : 1'000'000;
  options.gather.ranks_per_node = prescaled ? 2 : 4;
  same(one, train<At>(world.split(0, world.rank(), "COPY"), topology, prescaled, options));
}

}  // namespace

TEST_CASE("cut models learn what one rank learns: tp 1, 2, 4 x copies, both layouts, own or shared samples") {
  smp::testing::on_ranks({1, 2, 4, 8}, [](World& world) {
    compare<1>(world);
    compare<2>(world);
    compare<4>(world);
  });
}

TEST_CASE("cut models whose parts are sharded learn what one rank learns: tp 2 x sdp 1, 2, 4, both layouts") {
  smp::testing::on_few_ranks({2, 4, 8}, [](World& world) {
    const Trained one = train<smp::Invariant>(world.split(world.rank(), 0, "ALONE"), smp::Topology<smp::Degrees{}>(),
                                              true, smp::DataParallelOptions{.clip = 0.3});
    CHECK(one.losses[1] > 0.3);  // so it is clipped
    for (int sdp = 1; 2 * sdp <= world.size(); sdp *= 2) {
      for (const bool prescaled : {true, false}) {
        compare_sharded<smp::Invariant>(world, one, 2, sdp, prescaled);
        compare_sharded<smp::Shard<Dim::sequence>>(world, one, 2, sdp, prescaled);
      }
    }
  });
}
