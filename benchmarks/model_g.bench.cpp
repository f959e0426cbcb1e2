// SPDX-License-Identifier: Apache-2.0
// One training step of model G on one core: GPT-2's shape, 6 layers, width 384, 6 heads, sequence 128, vocabulary 8192
// tied, batch 4, f32, AdamW, clip 1. The step, its products of matrices timed alone, and the share that they have.
//   model_g           Google Benchmark
//   model_g --serve [RANKS [STRATEGY]]   a step for each line of the standard input, answered with its milliseconds
//                             (against_torch.py); of several thread ranks, each of which has a batch and a core;
//                             data_parallel, sharded_optimizer or sharded (over all of them, nothing persistent)
// needs: blas
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/comm/launch.hpp>
#include <smp/comm/self.hpp>
#include <smp/device/gemm.hpp>
#include <smp/device/gemm_threads.hpp>
#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/topology.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

namespace {

constexpr std::int64_t layers = 6, width = 384, heads = 6, places = 128, vocabulary = 8192, batch = 4;
constexpr std::int64_t tokens = batch * places;

using Clock = std::chrono::steady_clock;
double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// The step of one rank.
template <class Comm>
class ModelG {
  using Block = smp::nn::TransformerBlock<float>;
  using Model =
      smp::Sequential<smp::nn::Embedding<float, smp::nn::Tie::wte>, smp::nn::PositionEmbedding<float>,
                      smp::Repeat<Block>, smp::nn::LayerNorm<float>, smp::nn::LmHead<float, smp::nn::Tie::wte>>;

 public:
  explicit ModelG(const Comm& world, std::string_view strategy = "data_parallel")
      : worker_(world, topology(world.size(), strategy), 1),
        context_(worker_.context()),
        trainer_(context_, model(), smp::optim::AdamW({.weight_decay = 0.1}), options(strategy)),
        ids_(worker_.memory(), {batch, places}),
        next_(worker_.memory(), {batch, places}) {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      ids_.data()[i] = static_cast<std::int32_t>(i * 2654435761u % vocabulary);
      next_.data()[i] = static_cast<std::int32_t>((i + 1) * 2654435761u % vocabulary);
    }
  }
  void step() {
    (void)smp::step(context_, trainer_, smp::nn::CrossEntropy<float>(), ids_, next_);
    (void)trainer_.step(context_, 1e-4);
  }

 private:
  static Model model() {
    return Model({vocabulary, width}, {places, width},
                 {layers, [](std::size_t) { return Block(width, heads, {.layers = layers}); }},
                 smp::nn::LayerNorm<float>(width), {width, vocabulary});
  }

  static smp::DynamicTopology topology(int ranks, std::string_view strategy) {
    const int sdp = strategy == "sharded" ? ranks : 1;
    return smp::DynamicTopology(smp::degrees_for(ranks, {.rdp = smp::dynamic, .sdp = sdp}));
  }
  static smp::AnyStrategyOptions options(std::string_view strategy) {
    if (strategy == "sharded_optimizer") return smp::ShardedOptimizerOptions{.clip = 1};
    if (strategy != "sharded") return smp::DataParallelOptions{.clip = 1};
    constexpr std::size_t layer = 12 * width * width + 13 * width;
    return smp::ShardedOptions{.reduce_bucket_size = layer, .persistence_threshold = 0};
  }

  using Worker = smp::Worker<Comm, smp::DynamicTopology>;
  Worker worker_;
  typename Worker::Context context_;
  smp::AnyStrategy<Model> trainer_;
  smp::Ids ids_, next_;
};

/// The products of matrices of one step, on memory of their sizes: of each linear layer y = x W^T, dx = dy W and
/// dW += dy^T x; of each head, scores and values, and their four gradients.
class Products {
 public:
  void step() {
    for (std::int64_t l = 0; l < layers; ++l) {
      linear(width, 3 * width);
      linear(width, width);
      linear(width, 4 * width);
      linear(4 * width, width);
      for (std::int64_t h = 0; h < batch * heads; ++h) head();
    }
    linear(width, vocabulary);
  }

 private:
  static constexpr auto T = smp::Transpose::yes;
  void linear(std::int64_t in, std::int64_t out) {
    smp::gemm(smp::Gemm<float>{.b_op = T,
                               .m = tokens,
                               .n = out,
                               .k = in,
                               .a = x_.data(),
                               .lda = in,
                               .b = w_.data(),
                               .ldb = in,
                               .c = y_.data(),
                               .ldc = out});
    smp::gemm(smp::Gemm<float>{.m = tokens,
                               .n = in,
                               .k = out,
                               .a = y_.data(),
                               .lda = out,
                               .b = w_.data(),
                               .ldb = in,
                               .c = x_.data(),
                               .ldc = in});
    smp::gemm(smp::Gemm<float>{.a_op = T,
                               .m = out,
                               .n = in,
                               .k = tokens,
                               .a = y_.data(),
                               .lda = out,
                               .b = x_.data(),
                               .ldb = in,
                               .c = w_.data(),
                               .ldc = in,
                               .beta = 0});
  }
  void head() {
    constexpr std::int64_t d = width / heads, row = 3 * width;
    float *q = x_.data(), *s = y_.data();
    const auto scores = [&](smp::Transpose a, smp::Transpose b, std::int64_t n, std::int64_t k, const float* left,
                            std::int64_t lda, const float* right, std::int64_t ldb, float* out, std::int64_t ldc) {
      smp::gemm(smp::Gemm<float>{.a_op = a,
                                 .b_op = b,
                                 .m = places,
                                 .n = n,
                                 .k = k,
                                 .a = left,
                                 .lda = lda,
                                 .b = right,
                                 .ldb = ldb,
                                 .c = out,
                                 .ldc = ldc});
    };
    const auto no = smp::Transpose::no;
    scores(no, T, places, d, q, row, q + width, row, s, places);                 // q k^T
    scores(no, no, d, places, s, places, q + 2 * width, row, w_.data(), width);  // p v
    scores(T, no, d, places, s, places, w_.data(), width, q, row);               // dv
    scores(no, T, places, d, w_.data(), width, q, row, s, places);               // dp
    scores(no, no, d, places, s, places, q, row, w_.data(), row);                // dq
    scores(T, no, d, places, s, places, q, row, w_.data(), row);                 // dk
  }

  std::vector<float> x_ = std::vector<float>(tokens * 4 * width, 0.01f);
  std::vector<float> w_ = std::vector<float>(vocabulary * width, 0.01f);
  std::vector<float> y_ = std::vector<float>(tokens * vocabulary, 0.01f);
};

void share_of_products(benchmark::State& state) {
  ModelG model{smp::comm::Self()};
  Products products;
  model.step();
  products.step();
  std::vector<double> steps, alone, shares;
  for (auto _ : state) {
    auto begin = Clock::now();
    model.step();
    steps.push_back(milliseconds_since(begin));
    begin = Clock::now();
    products.step();
    alone.push_back(milliseconds_since(begin));
    shares.push_back(alone.back() / steps.back());
  }
  const auto middle = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  };
  state.counters["step_ms"] = middle(steps);
  state.counters["products_ms"] = middle(alone);
  state.counters["share"] = middle(shares);
  state.SetLabel(smp::gemm_kernel<float>());
}
BENCHMARK(share_of_products)->Unit(benchmark::kMillisecond)->Iterations(20);

/// A step of all ranks for each line; a time ends when the last rank is done.
void serve(int ranks, std::string_view strategy) {
  smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
    ModelG model(world, strategy);
    smp::HostStream stream;
    for (std::string line;;) {
      int go = 0;
      if (world.rank() == 0) go = std::getline(std::cin, line) ? 1 : 0;
      world.broadcast(stream, std::span(&go, 1), 0);
      if (go == 0) return;
      const auto begin = Clock::now();
      model.step();
      world.barrier(stream);
      if (world.rank() == 0) std::cout << milliseconds_since(begin) << std::endl;
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  smp::set_gemm_threads(1);
  if (argc > 1 && std::string_view(argv[1]) == "--serve") {
    serve(argc > 2 ? std::stoi(argv[2]) : 1, argc > 3 ? argv[3] : "data_parallel");
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
