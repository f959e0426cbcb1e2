// SPDX-License-Identifier: Apache-2.0
// Four ranks train a model whose layers are spread over two stages; of each stage, two ranks hold one copy together.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <smp/smp.hpp>

namespace nn = smp::nn;

/// Some ids, [samples, places].
smp::Ids ids(smp::Memory& memory, int samples, int places, int words, int first) {
  smp::Ids all(memory, {samples, places});
  for (std::int32_t& id : all) id = first++ * 7 % words;
  return all;
}

// [readme-begin]
using Net = smp::Sequential<nn::Embedding<float, nn::Tie::wte>, nn::PositionEmbedding<>,
                            smp::Repeat<nn::TransformerBlock<>>, nn::LayerNorm<>, nn::LmHead<float, nn::Tie::wte>>;
using Model = smp::Pipeline<smp::Schedule::ZeroBubble, Net>;  // or Interleaved, Looped<4>, ..., or a schedule of yours

int main() {
  static constexpr int seq = 32, width = 64, heads = 4, layers = 6, words = 256;
  smp::comm::launch(4, [](smp::comm::Threads& world) {
    using Topology = smp::Topology<smp::Degrees{.pp = 2, .rdp = 2, .sdp = 2}>;
    smp::Worker worker(world, Topology(), /*seed*/ 1);
    auto ctx = worker.context();
    const auto layer = [](std::size_t) { return nn::TransformerBlock<>(width, heads); };
    Net net({words, width}, {seq, width}, {layers, layer}, nn::LayerNorm<>(width), {width, words});

    // Every rank says what the whole model is, and holds the layers of its stage: an even share, or {.partition = ...}.
    smp::Sharded<Model, 2> trainer(ctx, Model(ctx, std::move(net)), smp::optim::AdamW{}, {.clip = 1});
    double loss = 0;
    for (int step = 0; step < 2; ++step) {  // the ranks of a pipeline read the same samples
      const int copy = worker.groups()[smp::Group::rdp].rank();
      const smp::Ids inputs = ids(worker.memory(), 8, seq, words, copy);
      const smp::Ids targets = ids(worker.memory(), 8, seq, words, copy + 1);
      loss = smp::step(ctx, trainer, nn::CrossEntropy<>(), inputs, targets, {.microbatches = 4}).mean();
      trainer.step(ctx, /*learning rate*/ 1e-3);
    }

    const auto sent = worker.counters().get("PP", smp::comm::Operation::exchange, smp::Purpose::activation);
    const smp::LayerRange own = trainer.module().range(0);
    std::printf("rank %d: layers %d to %d, loss %.3f, %llu bytes of activations sent\n", world.rank(), own.first,
                own.last - 1, loss, static_cast<unsigned long long>(sent.bytes));
  });
}
// [readme-end]
