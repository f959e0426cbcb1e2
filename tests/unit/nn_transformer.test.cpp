// Mlp, TransformerBlock, LmHead: names, gradients, the bytes that a block keeps, and that nothing is allocated.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/embedding.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/testing/gradient_check.hpp>

#include "support/allocations.hpp"

using smp::Ids, smp::MemoryUse, smp::Shape, smp::Tensor, smp::testing::OneRank;
using namespace smp::nn;

static_assert(smp::SplitBackward<Mlp<float>, smp::testing::Context>);
static_assert(smp::SplitBackward<TransformerBlock<float>, smp::testing::Context>);
static_assert(smp::SplitBackward<TransformerBlock<float, KeyMask::given>, smp::testing::Context>);
static_assert(smp::SplitBackward<LmHead<float>, smp::testing::Context>);

TEST_CASE("names of parameters are GPT-2's; matrices decay, biases and norms do not; without bias there is none") {
  for (const Bias bias : {Bias::yes, Bias::no}) {
    OneRank rank{TransformerBlock<float>(4, 2, {.bias = bias, .layers = 8})};
    std::vector<std::string> decaying, others;
    for (const auto& s : rank.layout().blocks().front().segments) (s.rule.decay ? decaying : others).push_back(s.name);
    CHECK(decaying ==
          std::vector<std::string>{"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"});
    CHECK(others == (bias == Bias::yes
                         ? std::vector<std::string>{"ln_1.weight", "ln_1.bias", "attn.c_attn.bias", "attn.c_proj.bias",
                                                    "ln_2.weight", "ln_2.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"}
                         : std::vector<std::string>{"ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"}));
    CHECK(rank.model.mlp.c_fc.weight.shape() == Shape{16, 4});
    CHECK(rank.model.mlp.c_fc.weight.init().scale == 0.02);
    CHECK(rank.model.mlp.c_proj.weight.init().scale == 0.005);  // 0.02 / sqrt(2 * 8)
    CHECK(rank.model.attn.c_proj.weight.init().scale == 0.005);
  }
}

TEST_CASE("gradients of Mlp with each activation, in one part or two") {
  for (const auto kind : {ActivationKind::gelu_tanh, ActivationKind::gelu_erf, ActivationKind::relu}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 2, 5}, Shape{2, 18}}) {
      OneRank rank{Mlp<double>(shape[-1], {.activation = kind, .dropout = 0.2, .inner = 9})};
      rank.randomise(0.5);
      const auto x = rank.random<double>(shape);
      const auto found = smp::testing::check_gradients(rank, x);
      CHECK_MESSAGE(found.relative <= 1e-7, found.where);
      CHECK(smp::testing::split_backward_agrees(rank, x));
    }
  }
}

TEST_CASE("gradients of TransformerBlock: norms before and after, with dropout, in one part or two") {
  for (const NormPlacement norm : {NormPlacement::before, NormPlacement::after}) {
    for (const Shape& shape : {Shape{1, 1, 2}, Shape{2, 3, 6}, Shape{1, 2, 9}}) {
      const std::int64_t heads = shape[-1] == 9 ? 3 : 2;
      OneRank rank{TransformerBlock<double>(shape[-1], heads, {.norm = norm, .dropout = 0.2})};
      rank.randomise(0.4);
      const auto x = rank.random<double>(shape);
      const auto found = smp::testing::check_gradients(rank, x);
      CHECK_MESSAGE(found.relative <= 1e-7, found.where);
      CHECK(smp::testing::split_backward_agrees(rank, x));
    }
  }
}

TEST_CASE("gradients of TransformerBlock with a mask of keys, which is passed on") {
  for (const Shape& shape : {Shape{1, 1, 2}, Shape{2, 3, 4}, Shape{1, 2, 9}}) {
    OneRank rank{TransformerBlock<double, KeyMask::given>(shape[-1], shape[-1] == 9 ? 3 : 2,
                                                          {.causal = false, .bias = Bias::no, .inner = 5})};
    rank.randomise(0.4);
    Ids mask = rank.random_ids({shape[0], shape[1]}, 2);
    if (shape[0] == 2) std::fill_n(mask.data() + 3, 3, 0);  // a sample of which all is hidden
    const TransformerBlock<double, KeyMask::given>::Input x{rank.random<double>(shape), mask};
    const auto found = smp::testing::check_gradients(rank, x);
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, x));
    auto ctx = rank.context();
    TransformerBlock<double, KeyMask::given>::Saved saved;
    CHECK(std::get<1>(rank.model.forward(ctx, x, saved)).data() == std::as_const(mask).data());
  }
}

namespace {

// The formulas, one number at a time: rows of C numbers in a vector.
using Rows = std::vector<double>;

Rows norm(const Rows& x, const LayerNorm<double>& m) {
  const auto C = static_cast<std::size_t>(m.weight.shape()[0]);
  Rows y(x.size());
  for (std::size_t r = 0; r < x.size(); r += C) {
    double mean = 0, variance = 0;
    for (std::size_t c = 0; c < C; ++c) mean += x[r + c] / static_cast<double>(C);
    for (std::size_t c = 0; c < C; ++c) variance += (x[r + c] - mean) * (x[r + c] - mean) / static_cast<double>(C);
    for (std::size_t c = 0; c < C; ++c) {
      y[r + c] = (x[r + c] - mean) / std::sqrt(variance + 1e-5) * m.weight.value().data()[c] + m.bias.value().data()[c];
    }
  }
  return y;
}

Rows linear(const Rows& x, const Linear<double>& m) {
  const auto out = static_cast<std::size_t>(m.weight.shape()[0]), in = static_cast<std::size_t>(m.weight.shape()[1]);
  Rows y(x.size() / in * out);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = m.bias.value().data()[i % out];
    for (std::size_t c = 0; c < in; ++c) y[i] += x[i / out * in + c] * m.weight.value().data()[i % out * in + c];
  }
  return y;
}

Rows attention(const Rows& x, const Attention<double>& m, std::size_t T) {  // one sample of T places
  const std::size_t C = x.size() / T, head = static_cast<std::size_t>(m.head);
  const Rows qkv = linear(x, m.c_attn);
  Rows y(x.size(), 0.0);
  for (std::size_t h = 0; h < C; h += head) {
    for (std::size_t i = 0; i < T; ++i) {
      Rows e(T, 0.0);
      double sum = 0;
      for (std::size_t j = 0; j < (m.causal ? i + 1 : T); ++j) {
        double score = 0;
        for (std::size_t c = h; c < h + head; ++c) score += qkv[i * 3 * C + c] * qkv[j * 3 * C + C + c];
        sum += e[j] = std::exp(score / std::sqrt(static_cast<double>(head)));
      }
      for (std::size_t c = h; c < h + head; ++c) {
        for (std::size_t j = 0; j < T; ++j) y[i * C + c] += e[j] / sum * qkv[j * 3 * C + 2 * C + c];
      }
    }
  }
  return linear(y, m.c_proj);
}

Rows mlp(const Rows& x, const Mlp<double>& m) {
  Rows inner = linear(x, m.c_fc);
  for (double& v : inner) v *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v)));
  return linear(inner, m.c_proj);
}

Rows sum(Rows a, const Rows& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

}  // namespace

TEST_CASE("a block computes its formula: norms before and after, causal or not") {
  for (const NormPlacement placement : {NormPlacement::before, NormPlacement::after}) {
    for (const bool causal : {true, false}) {
      OneRank rank{TransformerBlock<double>(12, 3, {.causal = causal, .norm = placement})};
      rank.randomise(0.3);
      auto ctx = rank.context();
      const auto x = rank.random<double>({1, 5, 12});
      TransformerBlock<double>::Saved saved;
      const auto y = rank.model.forward(ctx, x, saved);
      const auto& m = rank.model;
      const Rows in(x.begin(), x.end());
      Rows out;
      if (placement == NormPlacement::before) {
        const Rows middle = sum(in, attention(norm(in, m.ln_1), m.attn, 5));
        out = sum(middle, mlp(norm(middle, m.ln_2), m.mlp));
      } else {
        const Rows middle = norm(sum(in, attention(in, m.attn, 5)), m.ln_1);
        out = norm(sum(middle, mlp(middle, m.mlp)), m.ln_2);
      }
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(y.data()[i] == doctest::Approx(out[i]).epsilon(1e-12));
    }
  }
}

namespace {

struct TiedModel {  // an embedding and a head that are one parameter
  using Input = Ids;
  using Output = smp::TensorOf<double>;
  struct Saved {
    Embedding<double, Tie::wte>::Saved wte;
    LmHead<double, Tie::wte>::Saved head;
    static constexpr auto fields() {
      return smp::fields(smp::field("wte", &Saved::wte), smp::field("head", &Saved::head));
    }
  };
  Embedding<double, Tie::wte> wte{7, 5};
  LmHead<double, Tie::wte> head{5, 7};
  static constexpr auto fields() {
    return smp::fields(smp::field("wte", &TiedModel::wte), smp::field("lm_head", &TiedModel::head));
  }
  Output forward(auto& ctx, const Input& ids, Saved& saved) const {
    return head.forward(ctx, wte.forward(ctx, ids, saved.wte), saved.head);
  }
  smp::NoGrad backward(auto& ctx, const Output& dy, Saved& saved) {
    return wte.backward(ctx, head.backward(ctx, dy, saved.head), saved.wte);
  }
};

}  // namespace

TEST_CASE("a head that is tied to the embedding is the same parameter: one place, and the sum of both gradients") {
  OneRank rank{TiedModel{}};
  CHECK(rank.layout().blocks().size() == 1);
  CHECK(rank.layout().blocks().front().size == 35);
  CHECK(rank.layout().blocks().front().segments.front().name == "wte.weight");
  rank.randomise(0.5);
  const auto found = smp::testing::check_gradients(rank, rank.random_ids({2, 3}, 7));
  CHECK_MESSAGE(found.relative <= 1e-7, found.where);

  for (const Shape& shape : {Shape{1, 1}, Shape{2, 3, 5}, Shape{2, 18}}) {
    OneRank untied{LmHead<double>(shape[-1], 11)};
    CHECK(untied.layout().blocks().front().segments.size() == 1);
    CHECK(smp::testing::check_gradients(untied, untied.random<double>(shape)).relative <= 1e-7);
    CHECK(smp::testing::split_backward_agrees(untied, untied.random<double>(shape)));
  }
}

// What one block keeps of a micro-batch, pre-norm, without dropout; B samples, T places, C = width, H heads, 4 C inside
// of the MLP. In numbers for each of the B T places:
//     ln_1    its input x                                   C
//             mean and 1/deviation                          2
//     attn    c_attn's input                                C
//             queries, keys and values                    3 C
//             probabilities                               H T
//             c_proj's input                                C
//     ln_2    its input, x + attention                      C
//             mean and 1/deviation                          2
//     mlp     c_fc's input                                  C
//             inner state before the activation           4 C
//             and after it, c_proj's input                4 C
// which is 16 C + H T + 4, as llm.c counts it. The sums with the residuals take the place of the branches' results.
//     Forward: when it ends, that and the output are live, and never more.
//     Backward: dy (C) is there. First c_proj of the MLP makes the gradient of its input, 4 C, before it can give
// anything back: 16 C + H T + 4 + C + 4 C, the peak. The gradient of the inner state takes the place of that of the
// activated one. Then 8 C are free, and what is made later is less: at most d(x + attention), d(heads), dqkv and dx.
TEST_CASE("a block keeps 16 BTC + BHTT + 4 BT numbers; the peak of forward is BTC more, that of backward 5 BTC") {
  constexpr std::size_t B = 2, T = 12, C = 24, H = 4, number = sizeof(float);
  constexpr std::size_t kept = (16 * B * T * C + B * H * T * T + 4 * B * T) * number, state = B * T * C * number;
  OneRank rank{TransformerBlock<float>(C, H)};
  auto ctx = rank.context();
  Tensor x = rank.random<float>({B, T, C});
  TransformerBlock<float>::Saved saved;
  CHECK(rank.memory[MemoryUse::activation].live == state);
  {
    const Tensor y = rank.model.forward(ctx, x, saved);
    CHECK(rank.memory[MemoryUse::activation].live == kept + state);
    CHECK(rank.memory[MemoryUse::activation].peak == kept + state);
    CHECK(rank.memory[MemoryUse::buffer].peak == 0);
  }
  x = {};
  CHECK(rank.memory[MemoryUse::activation].live == kept);
  std::size_t listed = 0;
  smp::for_each_tensor(saved, [&](const auto& t) { listed += t.size() * number; });
  CHECK(listed == kept);  // every one is in fields(), once
  Tensor dy = rank.random<float>({B, T, C}, 1);
  rank.memory.reset_peaks();
  const Tensor dx = rank.model.backward(ctx, dy, saved);
  CHECK(rank.memory[MemoryUse::activation].peak == kept + 5 * state);
  CHECK(rank.memory[MemoryUse::activation].live == 2 * state);   // dy and dx: backward has freed the rest
  CHECK(rank.memory[MemoryUse::buffer].peak == T * T * number);  // gradients of one head's probabilities
  CHECK(rank.memory[MemoryUse::buffer].live == 0);
}

TEST_CASE("forward and backward of a block allocate nothing after the first time") {
  for (const double dropout : {0.0, 0.1}) {
    OneRank rank{TransformerBlock<float>(16, 2, {.dropout = dropout})};
    auto ctx = rank.context();
    const Tensor x = rank.random<float>({2, 5, 16}), dy = rank.random<float>({2, 5, 16}, 1);
    TransformerBlock<float>::Saved saved;
    long before = 0;
    for (int pass = 0; pass < 3; ++pass) {
      if (pass == 1) before = smp::testing::allocations;
      const Tensor y = rank.model.forward(ctx, x, saved);
      const Tensor dx = rank.model.backward(ctx, dy, saved);
      (void)rank.model.forward(ctx, x, saved);
      const Tensor other = rank.model.backward_input(ctx, dy, saved);
      rank.model.backward_params(ctx, saved);
      saved = {};
    }
    CHECK(smp::testing::allocations == before);
  }
}

TEST_CASE("the same block on a stream with a worker gives the same bits") {
  OneRank rank{TransformerBlock<float>(16, 2, {.dropout = 0.1})};
  rank.randomise(0.3);
  const Tensor x = rank.random<float>({2, 5, 16}), dy = rank.random<float>({2, 5, 16}, 1);
  smp::HostStream worker(smp::HostStream::Mode::worker);
  smp::testing::NoGroups groups;
  auto at_once = rank.context();
  smp::testing::Context ahead(worker, rank.memory, groups, at_once.seed());
  const auto run = [&](smp::testing::Context& ctx) {
    rank.clear_gradients();
    TransformerBlock<float>::Saved saved;
    const Tensor y = rank.model.forward(ctx, x, saved);
    const Tensor dx = rank.model.backward(ctx, dy, saved);
    ctx.stream().synchronize();
    std::vector<float> all(y.begin(), y.end());
    all.insert(all.end(), dx.begin(), dx.end());
    for (const smp::Block& b : rank.layout().blocks()) {
      all.insert(all.end(), static_cast<const float*>(b.grad), static_cast<const float*>(b.grad) + b.size);
    }
    return all;
  };
  const auto expected = run(at_once), found = run(ahead);
  CHECK(std::memcmp(expected.data(), found.data(), expected.size() * sizeof(float)) == 0);
}

TEST_CASE("float agrees with double") {
  const auto run = [](auto number) {
    using Number = decltype(number);
    OneRank rank{TransformerBlock<Number>(32, 4)};
    rank.randomise(0.2);
    auto ctx = rank.context();
    typename TransformerBlock<Number>::Saved saved;
    const auto y = rank.model.forward(ctx, rank.template random<Number>({2, 9, 32}), saved);
    const auto dx = rank.model.backward(ctx, rank.template random<Number>({2, 9, 32}, 1), saved);
    std::vector<double> all(y.begin(), y.end());
    all.insert(all.end(), dx.begin(), dx.end());
    return all;
  };
  const auto single = run(float{}), exact = run(double{});
  double worst = 0, largest_value = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    worst = std::max(worst, std::abs(single[i] - exact[i]));
    largest_value = std::max(largest_value, std::abs(exact[i]));
  }
  CHECK(worst < 2e-6 * largest_value);
}
