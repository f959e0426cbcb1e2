// SPDX-License-Identifier: Apache-2.0
// needs: blas
// Modules of a GPT (width 384, 6 heads, 4 samples of 128 tokens, vocabulary 8192, single precision, one thread),
// forward and backward, in turn with the floor of each: the products of matrices in it, on buffers of their own; where
// there are none, a copy of what it must read and write. `ratio` is time / floor: 1.25 is a share of 0.8 for the
// products.
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <smp/device/gemm.hpp>
#include <smp/device/gemm_threads.hpp>
#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/testing/one_rank.hpp>

#include "paired.hpp"

namespace {

using smp::Gemm, smp::Shape, smp::Tensor, smp::Transpose;
using namespace smp::nn;

constexpr std::int64_t batch = 4, sequence = 128, width = 384, heads = 6, vocabulary = 8192, tokens = batch * sequence;

/// What a module cannot do without: products, and bytes to copy.
class Floor {
 public:
  Floor() = default;
  Floor(const Floor&) = delete;
  Floor& operator=(const Floor&) = delete;

  /// The three products of a linear layer.
  Floor& linear(std::int64_t in, std::int64_t out) {
    float *x = room(tokens * in), *y = room(tokens * out), *w = room(in * out);
    float *dx = room(tokens * in), *dw = room(in * out);
    products_.push_back({.b_op = Transpose::yes,
                         .m = tokens,
                         .n = out,
                         .k = in,
                         .a = x,
                         .lda = in,
                         .b = w,
                         .ldb = in,
                         .c = y,
                         .ldc = out});
    products_.push_back({.m = tokens, .n = in, .k = out, .a = y, .lda = out, .b = w, .ldb = in, .c = dx, .ldc = in});
    products_.push_back({.a_op = Transpose::yes,
                         .m = out,
                         .n = in,
                         .k = tokens,
                         .a = y,
                         .lda = out,
                         .b = x,
                         .ldb = in,
                         .c = dw,
                         .ldc = in,
                         .beta = 1});
    return *this;
  }
  /// The six products of each head and sample.
  Floor& attention() {
    constexpr std::int64_t n = sequence, d = width / heads, stride = 3 * width;
    float *qkv = room(tokens * stride), *dqkv = room(tokens * stride), *p = room(batch * heads * n * n);
    float *y = room(tokens * width), *dp = room(n * n);
    for (std::int64_t i = 0; i < batch * heads; ++i) {
      const std::int64_t rows = i / heads * n, column = i % heads * d, at = rows * stride + column;
      float *of_head = p + i * n * n, *out = y + rows * width + column;
      const auto add = [&](Transpose a_op, Transpose b_op, std::int64_t columns, std::int64_t k, const float* a,
                           std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc) {
        products_.push_back({a_op, b_op, n, columns, k, a, lda, b, ldb, c, ldc});
      };
      add(Transpose::no, Transpose::yes, n, d, qkv + at, stride, qkv + at + width, stride, of_head, n);
      add(Transpose::no, Transpose::no, d, n, of_head, n, qkv + at + 2 * width, stride, out, width);
      add(Transpose::no, Transpose::yes, n, d, out, width, qkv + at + 2 * width, stride, dp, n);
      add(Transpose::yes, Transpose::no, d, n, of_head, n, out, width, dqkv + at + 2 * width, stride);
      add(Transpose::no, Transpose::no, d, n, dp, n, qkv + at + width, stride, dqkv + at, stride);
      add(Transpose::yes, Transpose::no, d, n, dp, n, qkv + at, stride, dqkv + at + width, stride);
    }
    return *this;
  }
  /// Copies as many numbers as are read and written.
  Floor& passes(std::int64_t numbers) {
    copied_ += numbers / 2;
    from_ = room(copied_), to_ = room(copied_);
    return *this;
  }

  /// That are copied, both ways.
  [[nodiscard]] double bytes() const { return 2.0 * static_cast<double>(copied_) * sizeof(float); }

  void run() const {
    for (const Gemm<float>& g : products_) smp::gemm(g);
    if (copied_ > 0) std::memcpy(to_, from_, static_cast<std::size_t>(copied_) * sizeof(float));
    benchmark::ClobberMemory();
  }

 private:
  float* room(std::int64_t n) {
    buffers_.emplace_back(static_cast<std::size_t>(n), 1e-3f);
    return buffers_.back().data();
  }

  std::vector<std::vector<float>> buffers_;
  std::vector<Gemm<float>> products_;
  std::int64_t copied_ = 0;
  float *from_ = nullptr, *to_ = nullptr;
};

/// Forward and backward of a module against its floor.
template <class M, class MakeInput, class MakeFloor>
void add(const char* name, M module, MakeInput make_input, MakeFloor make_floor) {
  const auto run = [=](benchmark::State& state) {
    smp::testing::OneRank rank{module};
    auto ctx = rank.context();
    const typename M::Input x = make_input(rank);
    typename M::Saved saved;
    const Tensor y = rank.model.forward(ctx, x, saved);
    const Tensor dy = rank.template random<float>(y.shape(), 1);
    const auto ours = [&] {
      (void)rank.model.forward(ctx, x, saved);
      (void)rank.model.backward(ctx, dy, saved);
      saved = {};
    };
    Floor floor;
    make_floor(floor);
    const auto same = [](bool answer) { return answer; };
    const auto rounds = smp::benchmarks::alternate(
        2, 1, [] {}, same, ours, [&] { floor.run(); });
    smp::benchmarks::report(state, rounds, floor.bytes());
  };
  benchmark::RegisterBenchmark(name, run)->UseManualTime()->Iterations(1)->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  smp::set_gemm_threads(1);
  benchmark::AddCustomContext("gemm", smp::gemm_kernel<float>());
  const auto hidden = [](auto& rank) { return rank.template random<float>({batch, sequence, width}); };
  const auto ids = [](auto& rank) { return rank.random_ids({batch, sequence}, vocabulary); };
  constexpr std::int64_t state = tokens * width;
  add("LayerNorm", LayerNorm<float>(width), hidden, [=](Floor& f) { f.passes(7 * state); });
  add("PositionEmbedding", PositionEmbedding<float>(sequence, width), hidden, [=](Floor& f) { f.passes(3 * state); });
  add("Embedding", Embedding<float>(vocabulary, width), ids, [=](Floor& f) { f.passes(5 * state); });
  add("Dropout", Dropout<float>(0.1), hidden, [=](Floor& f) { f.passes(4 * state); });
  for (const auto& [name, kind] : {std::pair("Activation/gelu_tanh", ActivationKind::gelu_tanh),
                                   std::pair("Activation/gelu_erf", ActivationKind::gelu_erf),
                                   std::pair("Activation/relu", ActivationKind::relu)}) {
    const auto inner = [](auto& rank) { return rank.template random<float>({batch, sequence, 4 * width}); };
    add(name, Activation<float>{kind}, inner, [=](Floor& f) { f.passes(5 * 4 * state); });
  }
  add("Linear", Linear<float>(width, 4 * width), hidden, [=](Floor& f) { f.linear(width, 4 * width); });
  add("Attention", Attention<float>(width, heads), hidden,
      [=](Floor& f) { f.linear(width, 3 * width).attention().linear(width, width); });
  add("Mlp", Mlp<float>(width), hidden, [=](Floor& f) { f.linear(width, 4 * width).linear(4 * width, width); });
  const auto block = [](Floor& f) {
    f.linear(width, 3 * width).attention().linear(width, width).linear(width, 4 * width).linear(4 * width, width);
  };
  add("TransformerBlock", TransformerBlock<float>(width, heads), hidden, block);
  add("TransformerBlock/dropout", TransformerBlock<float>(width, heads, {.dropout = 0.1}), hidden, block);
  add("LmHead", LmHead<float>(width, vocabulary), hidden, [=](Floor& f) { f.linear(width, vocabulary); });
  const auto logits = [](auto& rank) {
    return CrossEntropy<float>::Input{rank.template random<float>({batch, sequence, vocabulary}),
                                      rank.random_ids({batch, sequence}, vocabulary)};
  };
  add("CrossEntropy", CrossEntropy<float>{}, logits, [=](Floor& f) { f.passes(3 * tokens * vocabulary); });
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
