// SPDX-License-Identifier: Apache-2.0
// Four ranks train a model of which two hold one copy together, and say what each holds.
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
using Model = smp::Sequential<nn::Embedding<>, nn::PositionEmbedding<>, smp::Repeat<nn::TransformerBlock<>>,
                              nn::LayerNorm<>, nn::LmHead<>>;

int main() {
  static constexpr int seq = 32, width = 64, heads = 4, layers = 6, words = 256;
  smp::comm::launch(4, [](smp::comm::Threads& world) {
    using Topology = smp::Topology<smp::Degrees{.rdp = 4, .sdp = 2}>;  // two replicas, each of two ranks
    smp::Worker worker(world, Topology(), /*seed*/ 1);
    auto ctx = worker.context();
    const auto layer = [](std::size_t) { return nn::TransformerBlock<>(width, heads); };
    Model model({words, width}, {seq, width}, {layers, layer}, nn::LayerNorm<>(width), {width, words});

    // Parameters with fewer elements than the threshold stay whole. Of the others two layers at a time are gathered,
    // and the gradients of one are reduced while those of the next are computed.
    smp::Sharded<Model, 2> trainer(
        ctx, std::move(model), smp::optim::AdamW{},
        {.reduce_bucket_size = 50'000, .persistence_threshold = 1000, .max_live_parameters = 100'000});
    for (int step = 0; step < 2; ++step) {
      const smp::Ids inputs = ids(worker.memory(), 4, seq, words, 0), targets = ids(worker.memory(), 4, seq, words, 1);
      smp::step(ctx, trainer, nn::CrossEntropy<>(), inputs, targets, {.microbatches = 2});
      trainer.step(ctx, /*learning rate*/ 1e-3);
    }

    const auto bytes = [&](smp::MemoryUse use) { return worker.memory()[use].live; };
    if (world.rank() == 0) {
      std::printf("parameters %zu, gradients %zu, optimizer %zu, buffers %zu bytes; a step gathers %zu times\n",
                  bytes(smp::MemoryUse::parameter), bytes(smp::MemoryUse::gradient), bytes(smp::MemoryUse::optimizer),
                  bytes(smp::MemoryUse::buffer), trainer.engine().values().storage().plan()->gathers());
    }
  });
}
// [readme-end]
