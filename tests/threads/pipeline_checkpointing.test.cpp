// A repetition that is checkpointed as a whole, as a part of the model that a pipeline cuts: on one stage, on several,
// and beside layers that are checkpointed by stage.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/dropout.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using Layer = Dense<double>;
using Values = smp::TensorOf<double>;
constexpr std::int64_t width = 4, batch = 8;
constexpr int microbatches = 4;
constexpr std::size_t value_bytes = batch / microbatches * width * sizeof(double);  // of one micro-batch

/// What has passed a `Watch`.
struct Seen {
  int forwards = 0;
  std::vector<std::size_t> live;  // bytes of activations at each backward
};

/// Hands on what it is given, and counts.
struct Watch {
  using Input = Values;
  using Output = Values;
  struct Saved {};
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  static constexpr auto fields() { return smp::fields(); }
  Output forward(auto&, const Input& x, Saved&) const {
    ++seen->forwards;
    return x;
  }
  smp::GradOf<Input> backward(auto& ctx, const smp::GradOf<Output>& dy, Saved&) {
    seen->live.push_back(ctx.memory()[smp::MemoryUse::activation].live);
    return dy;
  }
};

using Block = smp::Sequential<Watch, Layer, smp::nn::Dropout<double>>;
using Blocks = smp::Repeat<Block>;
/// The same by another name: a pipeline does not look into it.
struct OneLayer : Blocks {
  using Blocks::Blocks;
};
template <class Middle>
using NetOf = smp::Sequential<Layer, Middle, Watch, Layer>;
using Plain = NetOf<Blocks>;
using Tree = NetOf<smp::Checkpointed<Blocks>>;
using Whole = NetOf<smp::Checkpointed<OneLayer>>;
using Nested = NetOf<smp::Checkpointed<smp::Repeat<smp::Checkpointed<Block>>>>;

/// Values of which each rank has its own samples.
struct Typed {
  using Input = smp::Dist<Values, smp::Shard<smp::Dim::batch>>;
  using Output = Input;
  struct Saved {};
};
using TypedTree = smp::Sequential<Typed, smp::Checkpointed<smp::Repeat<Layer>>, smp::Checkpointed<smp::Repeat<Typed>>>;
using TypedPlain = smp::Sequential<Typed, smp::Repeat<Layer>, smp::Repeat<Typed>>;

static_assert(std::is_same_v<smp::LayersOf<TypedTree>::Value, smp::LayersOf<TypedPlain>::Value>);
static_assert(std::is_same_v<smp::LayersOf<TypedTree>::Gradient, smp::LayersOf<TypedPlain>::Gradient>);
static_assert(std::is_same_v<smp::LayersOf<Tree>::Value, smp::LayersOf<Plain>::Value>);
static_assert(std::is_same_v<smp::LayersOf<Tree>::Gradient, smp::LayersOf<Plain>::Gradient>);

/// That many blocks, wrapped as `M` says.
template <class M>
M repeated(std::size_t blocks, double dropped) {
  if constexpr (requires(M& wrapper) { wrapper.inner(); }) {
    return M(repeated<std::remove_cvref_t<decltype(std::declval<M&>().inner())>>(blocks, dropped));
  } else {
    return M(blocks, [&](std::size_t) {
      return typename M::value_type(Block(Watch(), Layer(width, width), smp::nn::Dropout<double>(dropped)));
    });
  }
}

/// A layer, some blocks, a watch and a layer: 3 + `blocks` layers with the names 0, h.0, h.1, ..., watch and last.
template <class Net>
Net net(std::size_t blocks, double dropped) {
  using Middle = std::remove_cvref_t<decltype(std::declval<Net&>().template child<1>())>;
  return Net(Layer(width, width), repeated<Middle>(blocks, dropped), Watch(), Layer(width, width))
      .named({"", "h", "watch", "last"});
}

/// What the watch in a layer has seen.
Seen& seen_in(Watch& watch) { return *watch.seen; }
Seen& seen_in(Block& block) { return *block.child<0>().seen; }
Seen& seen_in(smp::Checkpointed<Block>& block) { return seen_in(block.inner()); }
Seen& seen_in(OneLayer& blocks) { return seen_in(blocks[0]); }
Seen& seen_in(smp::Checkpointed<OneLayer>& blocks) { return seen_in(blocks.inner()); }
Seen& seen_in(Layer&) {
  thread_local Seen nothing;
  return nothing;
}

struct Run {
  std::string schedule = "interleaved";
  int chunks = 1, pp = 1, sdp = 1;
  std::size_t blocks = 6;
  double dropped = 0.25;
  smp::PipelineOptions options{};
};

struct Result {
  std::vector<double> losses{}, outputs{};
  std::map<std::string, std::vector<double>> weights{};  // of this rank
  std::vector<std::string> warnings{};
  std::vector<int> forwards{};            // of each block here, in a step
  std::vector<std::size_t> live{};        // at each backward of the watch behind the blocks, in a step
  std::vector<smp::LayerGroup> groups{};  // of the first chunk
  std::size_t peak = 0;                   // bytes of activations
};

Values wave(smp::Memory& memory, double phase) {
  Values v(memory, {batch, width});
  for (std::size_t i = 0; i < v.size(); ++i) v.data()[i] = std::sin(phase + 0.7 * static_cast<double>(i));
  return v;
}

/// @tparam sharded each parameter is cut over two ranks, and what is not here is NaN
template <class Net, bool sharded = false>
Result train(World& world, Run run) {
  using Model = smp::Pipeline<smp::Schedule::Runtime, Net>;
  using Trainer = std::conditional_t<sharded, smp::Sharded<Model, 2>, smp::DataParallel<Model>>;
  std::conditional_t<sharded, smp::ShardedOptions, smp::DataParallelOptions> how{.clip = 0};
  if constexpr (sharded) {
    how.persistence_threshold = 0;
    how.checked = true;
  }
  smp::Worker worker(
      world, smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = run.pp, .rdp = smp::dynamic, .sdp = run.sdp})),
      7);
  auto ctx = worker.context();
  Result result;
  run.options.warnings = &result.warnings;
  Trainer trainer(ctx,
                  Model(ctx, net<Net>(run.blocks, run.dropped), run.options,
                        smp::Schedule::Runtime::named(run.schedule, run.chunks)),
                  smp::optim::AdamW(), how);
  const auto x = wave(worker.memory(), 0), y = wave(worker.memory(), 1);
  auto rows = trainer.module().rows();
  for (int s = 0; s < 3; ++s) {
    rows.for_each([](const std::string&, auto& layer) { seen_in(layer) = {}; });
    worker.memory().reset_peaks();
    result.losses.push_back(
        smp::step(ctx, trainer, SquaredError<double>{}, x, y, {.microbatches = microbatches}).mean());
    result.peak = worker.memory()[smp::MemoryUse::activation].peak;
    rows.for_each([&](const std::string& name, auto& layer) {
      const Seen& seen = seen_in(layer);
      if (s == 2 && name == "watch") result.live = seen.live;
      if (s == 2 && name.starts_with("h.") && seen.forwards > 0) result.forwards.push_back(seen.forwards);
    });
    trainer.step(ctx, 0.1);
    const std::size_t live = worker.memory()[smp::MemoryUse::activation].live;
    result.losses.push_back(smp::evaluate(ctx, trainer, SquaredError<double>{}, x, y, 2).mean());
    CHECK(worker.memory()[smp::MemoryUse::activation].live == live);
    CHECK(live == x.size() * sizeof(double) * 2);  // the batch: nothing is kept between steps
  }
  const Values outputs = smp::predict(ctx, trainer, x, 2).concat();
  result.outputs.assign(outputs.begin(), outputs.end());
  if constexpr (!sharded) {
    trainer.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
      for (const auto each : values) result.weights[std::string(name)].push_back(static_cast<double>(each));
    });
  }
  result.groups = trainer.module().groups(0);
  return result;
}

/// One rank with the same layers, none of them wrapped.
Result alone(World& world, const Run& run) {
  auto self = world.split(world.rank(), 0, "ALONE");
  return train<Plain>(self, {.blocks = run.blocks, .dropped = run.dropped});
}

void check_same(const Result& found, const Result& expected) {
  CHECK(found.losses == expected.losses);
  CHECK(found.outputs == expected.outputs);
  CHECK(!found.weights.empty());
  for (const auto& [name, values] : found.weights) {
    CAPTURE(name);
    REQUIRE(expected.weights.contains(name));
    CHECK(values == expected.weights.at(name));
  }
}

void check_close(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(std::abs(found[i] - expected[i]) <= 1e-12 * std::abs(expected[i]) + 1e-13);
  }
}

constexpr std::string_view advice =
    ": put Checkpointed around each of them, or take it away and say PipelineOptions::checkpointing";

}  // namespace

TEST_CASE("layers in a checkpointed repetition have the names that they have without it; the repetition is known") {
  Tree tree = net<Tree>(3, 0);
  std::string names;
  smp::layers_of(tree).for_each([&](const std::string& name, auto&) { names += name + " "; });
  CHECK(names == "0 h.0 h.1 h.2 watch last ");
  const auto trees = smp::layers_of(tree).trees();
  REQUIRE(trees.size() == 1);
  CHECK(trees[0].name == "h");
  CHECK(trees[0].layers == smp::LayerRange{1, 4});
  Tree none = net<Tree>(0, 0);
  CHECK(smp::layers_of(none).trees().empty());
  Plain plain = net<Plain>(3, 0);
  CHECK(smp::layers_of(plain).trees().empty());

  using Chosen = smp::Sequential<Layer, smp::Checkpointed<smp::Repeat<Layer>, smp::dynamic>>;
  for (const bool enabled : {false, true}) {
    Chosen chosen(Layer(2, 2), {{2, [](std::size_t) { return Layer(2, 2); }}, enabled});
    CHECK(smp::layers_of(chosen).size() == 3);
    CHECK(smp::layers_of(chosen).trees().size() == (enabled ? 1 : 0));
  }
}

TEST_CASE("on one stage a checkpointed repetition has the bits of one rank, and nothing is said") {
  on_ranks({2, 3}, [](World& world) {
    const bool two = world.size() == 2;
    const Result expected = alone(world, {});
    for (const auto& [schedule, chunks, partition] :
         two ? std::vector<std::tuple<const char*, int, std::vector<int>>>{{"simple", 1, {7, 2}},
                                                                           {"interleaved", 1, {1, 8}},
                                                                           {"zero_bubble", 1, {7, 2}},
                                                                           {"looped", 2, {1, 6, 1, 1}},
                                                                           {"zero_bubble_v", 2, {1, 6, 1, 1}}}
             : std::vector<std::tuple<const char*, int, std::vector<int>>>{{"interleaved", 1, {1, 6, 2}},
                                                                           {"zero_bubble", 1, {1, 7, 1}}}) {
      CAPTURE(std::string(schedule));
      const Run run{.schedule = schedule, .chunks = chunks, .pp = world.size(), .options = {.partition = partition}};
      const Result found = train<Tree>(world, run);
      check_same(found, expected);
      CHECK(found.warnings.empty());
      for (const int forwards : found.forwards) CHECK(forwards == 2 * microbatches);
    }
    const Result automatic = train<Tree>(world, {.pp = world.size(), .blocks = 1, .options = {}});
    CHECK(automatic.warnings.empty());
  });
}

TEST_CASE("it keeps its input only: as many bytes as a layer that is checkpointed") {
  on_ranks({2}, [](World& world) {
    for (const int blocks : {2, 6}) {
      Run run{.schedule = "simple", .pp = 2, .blocks = static_cast<std::size_t>(blocks), .options = {.overlap = false}};
      run.options.partition = {1 + blocks + 1, 1};
      const Result tree = train<Tree>(world, run), plain = train<Plain>(world, run);
      run.options.partition = {1 + 1 + 1, 1};
      const Result layer = train<Whole>(world, run);
      check_same(tree, plain);
      check_same(layer, plain);
      CHECK(tree.live == layer.live);
      CHECK(tree.peak <= layer.peak);
      if (world.rank() != 0) continue;
      // When micro-batch i comes back to the watch: the batch, a gradient, and what the others that are under way keep:
      // the output of the first layer, which is the input of the repetition. A block that is not checkpointed keeps
      // what its layer has made, and all but the last what its dropout has made.
      REQUIRE(tree.live.size() == microbatches);
      for (std::size_t i = 0; i < microbatches; ++i) {
        const std::size_t under_way = microbatches - i;
        CHECK(tree.live[i] == 2 * batch * width * sizeof(double) + value_bytes + under_way * value_bytes);
        CHECK(plain.live[i] == tree.live[i] + under_way * (2 * static_cast<std::size_t>(blocks) - 1) * value_bytes);
      }
      CHECK(tree.groups ==
            std::vector<smp::LayerGroup>{{{0, 1}, false}, {{1, 1 + blocks}, true}, {{1 + blocks, 2 + blocks}, false}});
    }
  });
}

TEST_CASE("an automatic partition that cuts it is named once, and its layers are run as if they were not wrapped") {
  on_ranks({2, 3}, [](World& world) {
    const Result expected = alone(world, {});
    const std::string found =
        "smp: the Checkpointed around h does nothing, for the automatic partition puts the layers ";
    for (const auto& [schedule, chunks] :
         {std::pair("interleaved", 1), std::pair("zero_bubble", 1), std::pair("looped", 2)}) {
      CAPTURE(std::string(schedule));
      const Run run{.schedule = schedule, .chunks = chunks, .pp = world.size(), .options = {.overlap = false}};
      if (schedule == std::string_view("looped") && world.size() == 3) continue;
      const Result cut = train<Tree>(world, run), plain = train<Plain>(world, run);
      check_same(cut, expected);
      CHECK(cut.live == plain.live);
      CHECK(cut.groups == plain.groups);
      CHECK(plain.warnings.empty());
      for (const int forwards : cut.forwards) CHECK(forwards == microbatches);
      const std::string stages = std::to_string(world.size() * chunks - 1);
      CHECK(cut.warnings == (world.rank() == 0
                                 ? std::vector{found + "h.0 to h.5 on stages 0 to " + stages + std::string(advice)}
                                 : std::vector<std::string>{}));
    }
  });
  on_ranks({4}, [](World& world) {  // two copies of the model: one rank speaks
    CHECK(train<Tree>(world, {.pp = 2, .options = {}}).warnings.size() == (world.rank() == 0 ? 1 : 0));
  });
}

TEST_CASE("a partition that is given must not cut it") {
  on_ranks({2}, [](World& world) {
    std::string text;
    try {
      (void)train<Tree>(world, {.pp = 2, .options = {.partition = {4, 5}}});
    } catch (const smp::ConfigError& e) {
      text = e.what();
    }
    CHECK(text ==
          "smp: the partition puts the layers h.0 to h.5 on stages 0 to 1, but h is Checkpointed as a whole: "
          "give its layers to one stage, put Checkpointed around each of them, or take it away and say "
          "PipelineOptions::checkpointing");
  });
}

TEST_CASE("beside layers that are checkpointed by stage: no layer is computed three times") {
  on_ranks({2}, [](World& world) {
    const Result expected = alone(world, {});
    for (const char* strategy : {"each", "contiguous", "group_3"}) {
      CAPTURE(std::string(strategy));
      Run run{.pp = 2, .options = {.checkpointing = smp::CheckpointGroups::named(strategy)}};
      // Cut: its layers are as others, under the strategy.
      const Result cut = train<Tree>(world, run), plain = train<Plain>(world, run);
      check_same(cut, expected);
      CHECK(cut.groups == plain.groups);
      CHECK(cut.warnings.size() == (world.rank() == 0 ? 1 : 0));
      // On one stage: it is a group of its own. Its random numbers are the same again, whatever the others do.
      run.options.partition = {7, 2};
      run.options.checkpointing.same_randomness = false;
      const Result whole = train<Tree>(world, run);
      check_same(whole, expected);
      for (const int forwards : cut.forwards) CHECK(forwards == 2 * microbatches);
      for (const int forwards : whole.forwards) CHECK(forwards == 2 * microbatches);
      if (world.rank() == 0) {
        CHECK(whole.groups == std::vector<smp::LayerGroup>{{{0, 1}, true, false}, {{1, 7}, true}});
      }
      // Of others, they are not.
      CHECK(train<Plain>(world, run).losses != expected.losses);
    }
  });
}

TEST_CASE(
    "a block that is checkpointed in a repetition that is runs three times and keeps no more than the repetition") {
  on_ranks({2}, [](World& world) {
    const Result expected = alone(world, {});
    for (const char* schedule : {"simple", "zero_bubble"}) {
      const Run run{.schedule = schedule, .pp = 2, .options = {.partition = {8, 1}, .overlap = false}};
      const Result nested = train<Nested>(world, run), tree = train<Tree>(world, run);
      check_same(nested, expected);
      CHECK(nested.live == tree.live);
      CHECK(nested.peak <= tree.peak);
      for (const int forwards : nested.forwards) CHECK(forwards == 3 * microbatches);
    }
  });
}

TEST_CASE("with sharded parameters, which are gathered for the second pass as well") {
  on_ranks({4}, [](World& world) {
    const Result expected = train<Plain>(world, {.pp = 2, .options = {}});
    for (const auto& [schedule, chunks, partition] :
         {std::tuple("interleaved", 1, std::vector{7, 2}), std::tuple("zero_bubble", 1, std::vector{1, 8}),
          std::tuple("looped", 2, std::vector{1, 6, 1, 1}), std::tuple("zero_bubble", 1, std::vector<int>{})}) {
      CAPTURE(std::string(schedule));
      const Run run{.schedule = schedule, .chunks = chunks, .pp = 2, .sdp = 2, .options = {.partition = partition}};
      const Result found = train<Tree, true>(world, run);
      check_close(found.losses, expected.losses);  // sums of shards have another order
      check_close(found.outputs, expected.outputs);
      for (const int forwards : found.forwards) CHECK(forwards == (partition.empty() ? 1 : 2) * microbatches);
    }
  });
}
