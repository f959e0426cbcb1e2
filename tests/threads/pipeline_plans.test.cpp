// Ranks that were told different things are stopped before the first step, each pair of them, with both values.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using Layer = Dense<double>;
using Net = smp::Sequential<Layer, smp::Repeat<Layer>>;
using Model = smp::Pipeline<smp::Schedule::Runtime, Net>;

/// The same layer among values that are equal on all tensor-parallel ranks; never run.
struct Tagged : Layer {
  using Layer::Layer;
  using Input = smp::Dist<smp::TensorOf<double>, smp::Invariant>;
  using Output = Input;
};

/// All that a rank can be told.
struct Told {
  int pp = 2, tp = 1, sdp = 1;
  smp::Placement placement = smp::Placement::cluster;
  std::string schedule = "interleaved";
  int chunks = 1, microbatches = 4, active = 0, samples = 8, layers = 7, width = 3;
  std::vector<int> partition{};
  smp::CheckpointGroups checkpointing{};
  bool tagged = false;
};

/// A step of what this rank was told; counts it if it begins.
void run(World& world, const Told& t, std::atomic<int>& begun) {
  smp::Worker worker(
      world,
      smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = t.pp, .tp = t.tp, .rdp = smp::dynamic, .sdp = t.sdp}),
                           t.placement),
      7);
  auto ctx = worker.context();
  const auto schedule = smp::Schedule::Runtime::named(t.schedule, t.chunks);
  if (t.tagged) {
    using Other = smp::Sequential<Tagged, smp::Repeat<Tagged>>;
    const auto other = [&](std::size_t) { return Tagged(t.width, t.width); };
    const smp::Pipeline<smp::Schedule::Runtime, Other> model(
        ctx, Other(other(0), smp::Repeat<Tagged>(static_cast<std::size_t>(t.layers), other)), {}, schedule);
    return;
  }
  const auto layer = [&](std::size_t) { return Layer(t.width, t.width); };
  smp::DataParallel trainer(
      ctx,
      Model(ctx, Net(layer(0), smp::Repeat<Layer>(static_cast<std::size_t>(t.layers), layer)),
            {.partition = t.partition, .checkpointing = t.checkpointing, .active = t.active}, schedule),
      smp::optim::AdamW{});
  smp::TensorOf<double> x(worker.memory(), {t.samples, t.width});
  std::fill(x.begin(), x.end(), 0.5);
  (void)smp::step(ctx, trainer, SquaredError<double>{}, x, x, {.microbatches = t.microbatches});
  ++begun;
  world.barrier(ctx.stream());
}

}  // namespace

TEST_CASE("each pair of ranks that were told different things stops before the first step, naming both values") {
  struct Case {
    Told told;
    std::string name, value;
  };
  const auto with = [](auto change, std::string name, std::string value) {
    Case c{{}, std::move(name), std::move(value)};
    change(c.told);
    return c;
  };
  std::vector<Case> cases;
  const auto add = [&](auto change, const char* name, std::string value) {
    cases.push_back(with(change, name, std::move(value)));
  };
  add([](Told&) {}, "", "");
  add([](Told& t) { t.pp = 4; }, "pp", "4");
  add([](Told& t) { t.pp = 1, t.tp = 2; }, "pp", "1");
  add([](Told& t) { t.tp = 2; }, "tp", "2");
  add([](Told& t) { t.sdp = 2; }, "sdp", "2");
  add([](Told& t) { t.placement = smp::Placement::spread; }, "placement", "TPD");
  add([](Told& t) { t.schedule = "simple"; }, "the schedule", "simple");
  add([](Told& t) { t.schedule = "zero_bubble"; }, "the schedule", "zero_bubble");
  add([](Told& t) { t.schedule = "looped", t.chunks = 2; }, "the schedule", "looped");
  add([](Told& t) { t.active = 2; }, "active micro-batches", "2");
  add([](Told& t) { t.layers = 8; }, "layers", "9");
  add([](Told& t) { t.width = 4; }, "bytes of layer 0", "160");
  add([](Told& t) { t.partition = {1, 7}; }, "the partition", "1,7");
  add([](Told& t) { t.checkpointing.most = 3; }, "checkpointed layers", "0-2,3-3,4-6,7-7");
  add([](Told& t) { t.checkpointing.same_randomness = false; }, "the same randomness", "no");
  add([](Told& t) { t.tagged = true; }, "tensors between stages, and those of them that cross in slices", "1/1");
  add([](Told& t) { t.microbatches = 2; }, "micro-batches", "2");
  add([](Told& t) { t.samples = 16; }, "the batch", "[16, 3] and [4, 3]");
  std::set<std::string> sentences;
  int pairs = 0;
  for (std::size_t a = 0; a < cases.size(); ++a) {
    for (std::size_t b : {std::size_t{0}, (a + 1) % cases.size(), (a + 4) % cases.size()}) {
      if (a == b) continue;
      ++pairs;
      std::atomic<int> begun{0};
      std::string found;
      try {
        smp::comm::launch(4, [&](World& world) { run(world, cases[world.rank() == 3 ? a : b].told, begun); });
      } catch (const smp::ConfigError& e) {
        found = e.what();
      }
      CAPTURE(a);
      CAPTURE(b);
      CAPTURE(found);
      CHECK(begun == 0);
      CHECK(found.find("of the ") != std::string::npos);
      CHECK(found.find("all ranks must be told the same") != std::string::npos);
      if (b == 0) {
        CHECK(found.find(cases[a].name + " = " + cases[a].value + ", but rank 0 has") != std::string::npos);
      }
      sentences.insert(found);
    }
  }
  CHECK(pairs >= 30);
  CHECK(sentences.size() >= 16);
  std::atomic<int> begun{0};
  smp::comm::launch(4, [&](World& world) { run(world, {}, begun); });
  CHECK(begun == 4);
}
