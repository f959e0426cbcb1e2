// Faults that people met in pipelines of other systems, and what of the reference's documentation can be counted.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/tensor_parallel.hpp>
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
using smp::Group, smp::Ids, smp::Purpose, smp::comm::Operation;
using Values = smp::TensorOf<float>;

smp::DynamicTopology stages(int ranks) {
  return smp::DynamicTopology(smp::degrees_for(ranks, {.pp = ranks, .rdp = smp::dynamic}));
}

/// y = x + w, with w = 0 that is not learnt, for values of any shape; the ids that come with them pass through.
struct Pass {
  using Input = std::tuple<Values, Ids>;
  using Output = Input;
  struct Saved {};
  smp::ParameterOf<float> weight{{1}, {}, {}, true};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Pass::weight)); }
  Output forward(auto& ctx, const Input& x, Saved&) const {
    Values y(ctx.memory(), std::get<0>(x).shape());
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = std::get<0>(x).data()[i] + weight.value().data()[0];
    return {y, std::get<1>(x)};
  }
  smp::GradOf<Input> backward(auto&, const smp::GradOf<Output>& dy, Saved&) { return dy; }
};

/// The largest difference of values and ids from their labels.
struct Differences {
  using Input = std::tuple<Pass::Output, Values>;
  using Output = Values;
  using Saved = Values;
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto& [y, ids] = std::get<0>(x);
    const Values& labels = std::get<1>(x);
    REQUIRE(y.shape() == labels.shape());
    REQUIRE(ids.shape() == smp::Shape{y.shape()[0]});
    Values most(ctx.memory(), {});
    most.data()[0] = 0;
    const std::size_t width = y.size() / ids.size();
    for (std::size_t i = 0; i < y.size(); ++i) {
      most.data()[0] = std::max(most.data()[0], std::abs(y.data()[i] - labels.data()[i]));
      most.data()[0] = std::max(most.data()[0], std::abs(static_cast<float>(ids.data()[i / width]) - labels.data()[i]));
    }
    saved = y;
    return most;
  }
  smp::GradOf<Input> backward(auto&, const Values&, Saved& saved) { return {{saved, smp::NoGrad{}}, Values()}; }
};

using Row = smp::Sequential<smp::Repeat<Pass>>;
using Through = smp::Pipeline<smp::Schedule::Interleaved, Row>;

/// A batch whose values are the numbers of their samples.
std::tuple<Values, Ids> numbered(smp::Memory& memory, std::int64_t rows, std::int64_t width, int first) {
  Values values(memory, {rows, width});
  Ids ids(memory, {rows});
  for (std::int64_t r = 0; r < rows; ++r) {
    ids.data()[r] = first + static_cast<int>(r);
    for (std::int64_t c = 0; c < width; ++c) values.data()[r * width + c] = static_cast<float>(first + r);
  }
  return {values, ids};
}

/// Half of the squared distance, the mean over the samples.
struct Squares {
  using Input = std::tuple<Values, Values>;
  using Output = Values;
  using Saved = Input;
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const auto& [y, target] = x;
    Values loss(ctx.memory(), {});
    loss.data()[0] = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float d = y.data()[i] - target.data()[i];
      loss.data()[0] += d * d / 2 / static_cast<float>(y.shape()[0]);
    }
    saved = x;
    return loss;
  }
  smp::GradOf<Input> backward(auto& ctx, const Values& dl, Saved& saved) {
    const auto& [y, target] = std::as_const(saved);
    Values dy(ctx.memory(), y.shape());
    for (std::size_t i = 0; i < y.size(); ++i) {
      dy.data()[i] = dl.data()[0] * (y.data()[i] - target.data()[i]) / static_cast<float>(y.shape()[0]);
    }
    return {dy, Values()};
  }
};

}  // namespace

TEST_CASE("each output meets its own label, whatever shapes come after one another (case 51)") {
  on_ranks({2, 3}, [](World& world) {
    smp::Worker worker(world, stages(world.size()), 1);
    auto ctx = worker.context();
    const Row row(smp::Repeat<Pass>(4, [](std::size_t) { return Pass(); }));
    smp::DataParallel<Through> trainer(ctx, Through(ctx, row));
    int first = 1;
    for (const auto& [rows, width, microbatches] :
         {std::tuple(2, 16, 2), std::tuple(8, 16, 4), std::tuple(2, 7, 1), std::tuple(7, 3, 3), std::tuple(2, 16, 4)}) {
      const auto batch = numbered(worker.memory(), rows, width, first);
      const auto loss =
          smp::step(ctx, trainer, Differences{}, batch, std::get<0>(batch), {.microbatches = microbatches});
      CHECK(loss.mean() == 0);
      CHECK(loss.microbatches.size() == static_cast<std::size_t>(std::min(rows, microbatches)));
      trainer.step(ctx, 0.1);
      // Evaluation of another shape in between; outputs are on every rank.
      const auto other = numbered(worker.memory(), 5, 2, first + 100);
      CHECK(smp::evaluate(ctx, trainer, Differences{}, other, std::get<0>(other), 2).mean() == 0);
      const auto [values, ids] = smp::predict(ctx, trainer, other, 2).concat();
      CHECK(values.shape() == smp::Shape{5, 2});
      CHECK(values.data()[9] == static_cast<float>(first + 104));
      CHECK(ids.data()[0] == first + 100);
      first += rows;
    }
  });
}

TEST_CASE("where no sum changes its order, stages have the bits of one rank") {
  on_ranks({3}, [](World& world) {
    using Net = smp::Sequential<smp::Repeat<smp::nn::Linear<float>>>;
    using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
    const auto train = [](World ranks) {
      smp::Worker worker(ranks, stages(ranks.size()), 1);
      auto ctx = worker.context();
      const Net net(smp::Repeat<smp::nn::Linear<float>>(3, [](std::size_t) { return smp::nn::Linear<float>(4, 4); }));
      smp::DataParallel<Model> trainer(ctx, Model(ctx, net));
      const auto x = std::get<0>(numbered(worker.memory(), 7, 4, 1));
      for (int s = 0; s < 5; ++s) {
        (void)smp::step(ctx, trainer, Squares{}, x, x, {.microbatches = 3});
        trainer.step(ctx, 0.01);
      }
      std::map<std::string, std::vector<float>> learnt;
      trainer.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
        for (const auto each : values) learnt[std::string(name)].push_back(static_cast<float>(each));
      });
      return learnt;
    };
    const auto expected = train(world.split(world.rank(), 0, "ALONE")), found = train(world);
    CHECK(expected.size() == 6);
    CHECK(found.size() == 2);
    for (const auto& [name, values] : found) {
      CAPTURE(name);
      REQUIRE(expected.contains(name));
      CHECK(values == expected.at(name));
    }
  });
}

TEST_CASE("layers that are computed again drop what they dropped before, or something else if that is said") {
  on_ranks({2}, [](World& world) {
    using Linear = smp::nn::Linear<float>;
    using Net = smp::Sequential<Linear, smp::nn::Dropout<float>, Linear>;
    using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
    const auto train = [&](const char* checkpointing, bool same_randomness) {
      smp::Worker worker(world, stages(2), 1);
      auto ctx = worker.context();
      smp::PipelineOptions options{.partition = {2, 1}, .checkpointing = smp::CheckpointGroups::named(checkpointing)};
      options.checkpointing.same_randomness = same_randomness;
      smp::DataParallel<Model> trainer(
          ctx, Model(ctx, Net(Linear(8, 8), smp::nn::Dropout<float>(0.5), Linear(8, 8)), options));
      const auto x = std::get<0>(numbered(worker.memory(), 6, 8, 1));
      (void)smp::step(ctx, trainer, Squares{}, x, x, {.microbatches = 3});
      trainer.step(ctx, 0.01);
      std::vector<float> learnt;
      trainer.for_each_parameter([&](std::string_view, const smp::Shape&, auto values, auto) {
        for (const auto each : values) learnt.push_back(static_cast<float>(each));
      });
      return learnt;
    };
    const auto expected = train("none", true);
    CHECK(train("contiguous", true) == expected);
    CHECK(train("none", false) == expected);
    CHECK((train("contiguous", false) == expected) == (world.rank() == 1));  // what is behind it has seen the first
  });
}

TEST_CASE("an evaluation has one loss on all stages, keeps nothing, and does not change what is learnt (case 50)") {
  on_ranks({3}, [](World& world) {
    using Layer = smp::nn::Linear<float>;
    using Net = smp::Sequential<smp::Repeat<Layer>>;
    using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
    std::vector<std::vector<float>> learnt;
    std::vector<double> losses;
    for (const bool evaluates : {false, true}) {
      smp::Worker worker(world, stages(3), 1);
      auto ctx = worker.context();
      const Net net(smp::Repeat<Layer>(3, [](std::size_t) { return Layer(4, 4); }));
      smp::DataParallel<Model> trainer(ctx, Model(ctx, net));
      const auto x = std::get<0>(numbered(worker.memory(), 8, 4, 1));
      for (int s = 0; s < 3; ++s) {
        const auto trained = smp::step(ctx, trainer, Squares{}, x, x, {.microbatches = 4});
        CHECK(trained.microbatches.stack().shape() == smp::Shape{4});  // on every rank
        CHECK(trained.microbatches.reduce_mean().data()[0] == doctest::Approx(trained.mean()).epsilon(1e-6));
        const std::size_t live = worker.memory()[smp::MemoryUse::activation].live;
        if (evaluates) {
          losses.push_back(smp::evaluate(ctx, trainer, Squares{}, x, x, 2).mean());
          const Values y = smp::predict(ctx, trainer, x, 2).concat();
          double mean = 0;  // over all samples
          for (std::size_t i = 0; i < y.size(); ++i) mean += std::pow(y.data()[i] - x.data()[i], 2) / 2 / 8;
          CHECK(losses.back() == doctest::Approx(mean).epsilon(1e-6));
        }
        CHECK(worker.memory()[smp::MemoryUse::activation].live <= live);
        trainer.step(ctx, 0.01);
      }
      auto& values = learnt.emplace_back();
      trainer.for_each_parameter([&](std::string_view, const smp::Shape&, auto v, auto gradients) {
        for (const auto each : v) values.push_back(static_cast<float>(each));
        for (const auto g : gradients) CHECK(g == 0);
      });
    }
    CHECK(learnt[0] == learnt[1]);
    smp::HostStream now;
    std::vector<double> most = losses, least = losses;
    world.all_reduce(now, most, most, smp::maximum);
    world.all_reduce(now, least, least, smp::minimum);
    CHECK(most == least);  // equal bits
    CHECK(losses[2] < losses[0]);
  });
}

TEST_CASE("sharded layers are gathered once a step or for each micro-batch, as max_live allows; the schedule reduces") {
  on_ranks({4}, [](World& world) {
    using Layer = smp::nn::Linear<float>;
    using Net = smp::Sequential<smp::Repeat<Layer>>;
    using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
    struct Calls {
      std::uint64_t gathers, reductions;
    };
    // Calls of the third step: four layers on each of two stages, which two ranks hold together; four micro-batches.
    const auto train = [&](std::size_t max_live, std::size_t bucket) {
      const smp::Degrees degrees{.pp = 2, .rdp = 2, .sdp = 2};
      smp::Worker worker(world, smp::DynamicTopology(degrees), 1);
      auto ctx = worker.context();
      const Net net(smp::Repeat<Layer>(8, [](std::size_t) { return Layer(4, 4); }));
      smp::Sharded<Model, 2> trainer(ctx, Model(ctx, net), smp::optim::AdamW{},
                                     {.reduce_bucket_size = bucket,
                                      .persistence_threshold = 0,
                                      .max_live_parameters = max_live,
                                      .merge_gathers_below = 0});
      const auto calls = [&] {
        return Calls{worker.counters().get("SHARD", Operation::all_gather, Purpose::parameter).calls,
                     worker.counters().get("SHARD", Operation::reduce_scatter, Purpose::gradient).calls};
      };
      Calls before{};
      for (int s = 0; s < 3; ++s) {
        before = calls();
        const auto x = std::get<0>(numbered(worker.memory(), 4, 4, 1));
        (void)smp::step(ctx, trainer, Squares{}, x, x, {.microbatches = 4});
        trainer.step(ctx, 0.01);
      }
      const Calls after = calls();
      return Calls{after.gathers - before.gathers, after.reductions - before.reductions};
    };
    const bool first = smp::DynamicTopology(smp::Degrees{.pp = 2, .rdp = 2}).coordinate(world.rank()).pp == 0;
    // Of two stages the first one runs F0 F1 B0 F2 B1 F3 B2 B3; the last one F0 B0 F1 B1 F2 B2 F3 B3.
    const Calls all = train(1000, 1000), one = train(0, 1);
    CHECK(all.gathers == 4);
    CHECK(all.reductions == 4);  // of what a backward of a micro-batch has collected
    // Eight times four layers, but for the one that is there when forward turns to backward, or backward to forward.
    CHECK(one.gathers == (first ? 32 - 5 : 32 - 7));
    CHECK(one.reductions == 4 * 4);
  });
}

namespace {

using Batch = smp::Shard<smp::Dim::batch>;
using Wide = smp::TensorOf<double>;

/// The mean of the squares of a rank's own samples.
struct OwnSquares {
  using Input = std::tuple<smp::Dist<Wide, Batch>, Wide>;
  using Output = smp::Dist<Wide, smp::Varying>;
  using Saved = Wide;
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const Wide& y = std::get<0>(x).local;
    Wide loss(ctx.memory(), {});
    loss.data()[0] = 0;
    for (const double v : y) loss.data()[0] += v * v / 2 / static_cast<double>(y.shape()[0]);
    saved = y;
    return {loss};
  }
  smp::GradOf<Input> backward(auto& ctx, const smp::GradOf<Output>& dl, Saved& saved) {
    Wide dy(ctx.memory(), saved.shape());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      dy.data()[i] =
          std::as_const(dl).local.data()[0] * std::as_const(saved).data()[i] / static_cast<double>(dy.shape()[0]);
    }
    return {{dy}, Wide()};
  }
};

}  // namespace

TEST_CASE("the reference's figure of four layers: 1 and 4 are summed over the DP groups, the cut ones over RDP only") {
  on_ranks({8}, [](World& world) {
    using Linear = smp::nn::Linear<double>;
    using Cut = smp::TensorParallel<Linear, smp::Split::rows, Batch>;
    using Net = smp::Sequential<Linear, Cut, Cut, Linear>;
    using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
    constexpr std::int64_t width = 4;
    const smp::DynamicTopology topology(smp::Degrees{.pp = 2, .tp = 2, .rdp = 2}, smp::Placement::dtp);
    smp::Worker worker(world, topology, 1);
    auto ctx = worker.context();
    const auto dp = topology.group(Group::dp, world.rank());
    CHECK(std::vector<int>(dp.begin(), dp.end()) ==
          (world.rank() % 2 == 0 ? std::vector<int>{0, 2, 4, 6} : std::vector<int>{1, 3, 5, 7}));
    auto& tp = worker.groups()[Group::tp];
    const Linear plain(width, width, smp::nn::Bias::no);
    smp::DataParallel<Model> trainer(
        ctx, Model(ctx, Net(plain, Cut(plain, tp.rank(), tp.size()), Cut(plain, tp.rank(), tp.size()), plain),
                   {.partition = {2, 2}}));
    Wide x(worker.memory(), {4, width});
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(static_cast<double>(i) + world.rank());
    (void)smp::step(ctx, trainer, OwnSquares{}, {x}, x, {.microbatches = 2});
    trainer.step(ctx, 0.01);
    // One whole layer of 16 numbers over four ranks, one part of 8 over two.
    const auto whole = worker.counters().get("DP", Operation::all_reduce, Purpose::gradient);
    const auto part = worker.counters().get("RDP", Operation::all_reduce, Purpose::gradient);
    CHECK(whole.calls == 1);
    CHECK(whole.bytes == 2 * 3 * 16 / 4 * sizeof(double));
    CHECK(part.calls == 1);
    CHECK(part.bytes == 2 * 1 * 8 / 2 * sizeof(double));
  });
}

TEST_CASE("plain layers that see each rank's own samples, checkpointed together on one stage or cut by the partition") {
  on_ranks({4}, [](World& world) {
    using Linear = smp::nn::Linear<double>;
    using Cut = smp::TensorParallel<Linear, smp::Split::rows, Batch>;
    using Block = smp::Sequential<Linear, smp::nn::Dropout<double>>;
    constexpr std::int64_t width = 4;
    const auto train = [&]<class Middle>(std::type_identity<Middle>, smp::PipelineOptions options) {
      using Net = smp::Sequential<Cut, Middle, Cut>;
      smp::Worker worker(world, smp::DynamicTopology(smp::Degrees{.pp = 2, .tp = 2}), 1);
      auto ctx = worker.context();
      auto& tp = worker.groups()[Group::tp];
      const Linear plain(width, width, smp::nn::Bias::no);
      const smp::Repeat<Block> blocks(3, [&](std::size_t) { return Block(plain, smp::nn::Dropout<double>(0.5)); });
      smp::DataParallel<smp::Pipeline<smp::Schedule::ZeroBubble, Net>> trainer(
          ctx, {ctx, Net(Cut(plain, tp.rank(), tp.size()), Middle(blocks), Cut(plain, tp.rank(), tp.size())), options});
      Wide x(worker.memory(), {4, width});
      for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(static_cast<double>(i) + tp.rank());
      std::vector<double> found;
      for (int s = 0; s < 3; ++s) {
        found.push_back(smp::step(ctx, trainer, OwnSquares{}, {x}, x, {.microbatches = 2}).mean());
        trainer.step(ctx, 0.01);
      }
      return found;
    };
    using Tree = smp::Checkpointed<smp::Repeat<Block>>;
    const auto expected = train(std::type_identity<smp::Repeat<Block>>(), {});
    CHECK(expected[2] < expected[0]);
    CHECK(train(std::type_identity<Tree>(), {.partition = {4, 1}}) == expected);
    std::vector<std::string> said;
    CHECK(train(std::type_identity<Tree>(), {.warnings = &said}) == expected);
    const bool named =
        !said.empty() && said[0].find("puts the layers 1.0 to 1.2 on stages 0 to 1") != std::string::npos;
    CHECK(named == (world.rank() == 0));
  });
}
