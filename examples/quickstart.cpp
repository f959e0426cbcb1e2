// SPDX-License-Identifier: Apache-2.0
// A small GPT learns a text, README.md or the file that you name, on two ranks: quickstart [FILE [STEPS]]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include <smp/smp.hpp>

// [readme-begin]
namespace nn = smp::nn;
using Block = smp::Checkpointed<nn::TransformerBlock<>>;  // keeps its input only; backward computes the rest again
using Model =
    smp::Sequential<nn::Embedding<>, nn::PositionEmbedding<>, smp::Repeat<Block>, nn::LayerNorm<>, nn::LmHead<>>;

int main(int argc, char** argv) {
  static constexpr int seq = 64, width = 64, heads = 4, layers = 2, samples = 8;
  std::ifstream file(argc > 1 ? argv[1] : "README.md");
  std::vector<std::int32_t> text;
  for (char c; file.get(c);) text.push_back(static_cast<unsigned char>(c));
  const int steps = argc > 2 ? std::atoi(argv[2]) : 300;
  if (text.size() <= seq) return std::puts("quickstart [FILE [STEPS]]: a text of more than 64 bytes"), 2;

  smp::comm::launch(2, [&](smp::comm::Threads& world) {  // two ranks, as threads
    smp::Worker worker(world, smp::Topology<smp::Degrees{.rdp = 2}>(), /*seed*/ 1);
    auto ctx = worker.context();
    const auto block = [](std::size_t) { return Block({width, heads}); };
    Model model({256, width}, {seq, width}, {layers, block}, nn::LayerNorm<>(width), {width, 256});
    smp::DataParallel trainer(ctx, std::move(model), smp::optim::AdamW{}, {.clip = 1});

    for (int step = 1; step <= steps; ++step) {
      smp::Ids inputs(worker.memory(), {samples, seq}), targets(worker.memory(), {samples, seq});
      for (int i = 0; i < samples; ++i) {  // windows of the text at random places, other ones on each rank
        const smp::RandomStream random{worker.seed(), static_cast<std::uint64_t>(step)};
        const auto number = static_cast<std::uint64_t>(world.rank() * samples + i);
        const std::int32_t* window = text.data() + random.bits(number) % (text.size() - seq);
        std::copy_n(window, seq, inputs.data() + i * seq);
        std::copy_n(window + 1, seq, targets.data() + i * seq);
      }
      const double loss = smp::step(ctx, trainer, nn::CrossEntropy<>(), inputs, targets, {.microbatches = 2}).mean();
      trainer.step(ctx, /*learning rate*/ 3e-3);
      if (world.rank() == 0 && step % std::min(steps, 50) == 0) std::printf("step %3d  loss %.3f\n", step, loss);
    }
  });
}
// [readme-end]
