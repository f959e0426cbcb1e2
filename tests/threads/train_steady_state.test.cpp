// A training step allocates nothing once it is under way: tensors, what modules save, buckets, losses, tasks.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include <doctest/doctest.h>

#include <smp/optim/any.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/allocations.hpp"
#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using Layer = Dense<float>;
using Net = smp::Sequential<smp::Repeat<Layer>, smp::Repeat<smp::Checkpointed<Layer>>>;

Net net() {
  return Net(
      smp::Repeat<Layer>(2, [](std::size_t) { return Layer(8, 8); }),
      smp::Repeat<smp::Checkpointed<Layer>>(2, [](std::size_t) { return smp::Checkpointed<Layer>(Layer(8, 8)); }));
}

/// A layer of values that are equal on all tensor-parallel ranks.
struct Shared {
  using Input = smp::Dist<smp::TensorOf<float>, smp::Invariant>;
  using Output = Input;
  using Saved = Layer::Saved;
  Layer layer{8, 8};
  static constexpr auto fields() { return smp::fields(smp::field("layer", &Shared::layer)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return {layer.forward(ctx, x.local, saved)}; }
  Input backward(auto& ctx, const Output& dy, Saved& saved) { return {layer.backward(ctx, dy.local, saved)}; }
};

/// @param make the model, of a context
template <class Loss = SquaredError<float>, class Make>
void check(World& world, smp::HostStream::Mode mode, const smp::AnyStrategyOptions& options, int pp, Make make,
           int tp = 1) {
  const int sdp = std::holds_alternative<smp::ShardedOptions>(options) ? world.size() : 1;
  smp::Worker worker(
      world,
      smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = pp, .tp = tp, .rdp = smp::dynamic, .sdp = sdp})), 3,
      mode);
  auto ctx = worker.context();
  smp::AnyStrategy trainer(ctx, make(ctx), smp::optim::Any(smp::optim::AdamW()), options);
  smp::TensorOf<float> x(worker.memory(), {6, 8});
  for (float& v : x) v = 0.5f;
  double sum = 0;
  const auto train = [&](int steps) {
    for (int s = 0; s < steps; ++s) {
      sum += smp::step(ctx, trainer, Loss{}, {x}, x, {.microbatches = 4, .passes = 2, .prescaled = true}).mean();
      sum += smp::step(ctx, trainer, Loss{}, {x}, x, {.microbatches = 4, .passes = 2, .pass = 1, .prescaled = true})
                 .mean();
      sum += trainer.step(ctx, 0.01);
      sum += smp::evaluate(ctx, trainer, Loss{}, {x}, x, 2).mean();
    }
  };
  // Other ranks' allocations are counted as well, so all have to be inside.
  train(2);
  world.barrier(worker.stream());
  worker.stream().synchronize();
  const long before = allocations;
  world.barrier(worker.stream());
  worker.stream().synchronize();
  train(3);
  world.barrier(worker.stream());
  worker.stream().synchronize();
  const long after = allocations;
  world.barrier(worker.stream());
  worker.stream().synchronize();
  CHECK(after - before == 0);
  CHECK(sum > 0);
}

}  // namespace

TEST_CASE("steps of training and evaluation allocate nothing") {
  for (const smp::AnyStrategyOptions& options :
       {smp::AnyStrategyOptions(smp::DataParallelOptions{.clip = 0.1, .bucket_bytes = 300}),
        smp::AnyStrategyOptions(smp::ShardedOptimizerOptions{.clip = 0.1, .bucket_bytes = 300}),
        smp::AnyStrategyOptions(smp::ShardedOptions{
            .clip = 0.1, .reduce_bucket_size = 75, .persistence_threshold = 20, .max_live_parameters = 200})}) {
    const auto whole = [](auto&) { return net(); };
    on_ranks({1, 2, 4}, [&](World& world) { check(world, smp::HostStream::Mode::at_once, options, 1, whole); });
    on_ranks({1, 2}, [&](World& world) { check(world, smp::HostStream::Mode::worker, options, 1, whole); });
  }
}

TEST_CASE("nor do those of a pipeline") {
  using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
  // Beside the computation, how much is under way at a time depends on who is faster, and a first time may come late.
  const auto spread = [](auto& ctx) {
    return Model(ctx, net(), {.checkpointing = {.most = 2, .layers = {0, 2}}, .overlap = false});
  };
  on_ranks({2, 4}, [&](World& world) {
    check(world, smp::HostStream::Mode::at_once, smp::DataParallelOptions{.clip = 0.1, .bucket_bytes = 300}, 2, spread);
  });
  on_ranks({2}, [&](World& world) {
    check(world, smp::HostStream::Mode::worker, smp::DataParallelOptions{.clip = 0.1}, 2, spread);
  });
  // Of 16 or 8 elements, three tensor-parallel ranks have slices of 6, 6 and 4, or of 3, 3 and 2.
  using Row = smp::Sequential<smp::Repeat<Shared>>;
  const auto in_slices = [](auto& ctx) {
    Row row(smp::Repeat<Shared>(4, [](std::size_t) { return Shared(); }));
    return smp::Pipeline<smp::Schedule::Interleaved, Row>(ctx, std::move(row), {.overlap = false});
  };
  for (const auto mode : {smp::HostStream::Mode::at_once, smp::HostStream::Mode::worker}) {
    on_ranks({6}, [&](World& world) {
      check<InvariantSquaredError<float>>(world, mode, smp::DataParallelOptions{.clip = 0.1}, 2, in_slices, 3);
    });
  }
}
