// SPDX-License-Identifier: Apache-2.0
// What tensor parallelism costs besides products and sums: forward and backward of one transformer layer on rank 0 of
// 2, with smp and by hand, with the same kernels on buffers that are there already. Nobody answers: a communicator that
// only writes down what it is asked for stands for the other rank, so that instructions can be counted.
//
//   build/release/benchmarks/tensor_parallel                            compares results, calls, and the time
//   benchmarks/tensor_parallel.sh build/release/benchmarks/tensor_parallel   compares instructions, with valgrind
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <smp/comm/recording.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/testing/one_rank.hpp>

namespace {

using namespace smp::nn;
using smp::Gemm, smp::Transpose, smp::comm::Recording;
using Log = Recording::Log;

constexpr std::int64_t samples = 2, places = 64, rows = samples * places, width = 128, heads = 4, ranks = 2;
constexpr std::int64_t part = width / ranks, inner = 4 * width / ranks;  // of this rank
constexpr float epsilon = 1e-5f;

struct TpGroup {
  Recording& tp;
  Recording& operator[](smp::Group) const noexcept { return tp; }
};

/// With smp.
class WithSmp {
  using Attn = smp::TensorParallel<Attention<>>;
  using Feed = smp::TensorParallel<Mlp<>>;
  using Block = TransformerBlock<float, KeyMask::none, Attn, Feed>;

 public:
  WithSmp()
      : rank(Block(width, Attn(Attention<>(width, heads), 0, ranks), Feed(Mlp<>(width), 0, ranks))),
        x{rank.random<float>({samples, places, width}, 1)},
        dy{rank.random<float>({samples, places, width}, 2)} {
    rank.randomise(0.3);
  }
  void step() {
    log->clear();
    smp::Context<smp::HostStream, const TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    y = rank.model.forward(ctx, x, saved);
    dx = rank.model.backward(ctx, dy, saved);
    saved = {};
  }

  std::shared_ptr<Log> log = std::make_shared<Log>();
  Recording tp{0, ranks, log};
  TpGroup groups{tp};
  smp::testing::OneRank<Block> rank;
  Block::Saved saved{};
  Block::Input x, y{};
  smp::GradOf<Block::Output> dy, dx{};
};

/// A parameter, or its gradient, or a buffer.
using Buffer = std::vector<float>;

/// y = x W^T + b.
void linear(std::int64_t in, std::int64_t out, const float* x, const float* w, const float* b, float* y) {
  for (std::int64_t r = 0; b != nullptr && r < rows; ++r) std::copy_n(b, out, y + r * out);
  smp::gemm(Gemm<float>{.b_op = Transpose::yes,
                        .m = rows,
                        .n = out,
                        .k = in,
                        .a = x,
                        .lda = in,
                        .b = w,
                        .ldb = in,
                        .c = y,
                        .ldc = out,
                        .beta = b != nullptr ? 1.0f : 0.0f});
}
/// dx = dy W.
void linear_input(std::int64_t in, std::int64_t out, const float* dy, const float* w, float* dx) {
  smp::gemm(Gemm<float>{.m = rows, .n = in, .k = out, .a = dy, .lda = out, .b = w, .ldb = in, .c = dx, .ldc = in});
}
/// dW += dy^T x.
void linear_weight(std::int64_t in, std::int64_t out, const float* dy, const float* x, float* dw) {
  smp::gemm(Gemm<float>{.a_op = Transpose::yes,
                        .m = out,
                        .n = in,
                        .k = rows,
                        .a = dy,
                        .lda = out,
                        .b = x,
                        .ldb = in,
                        .c = dw,
                        .ldc = in,
                        .beta = 1});
}
void add(std::int64_t n, const float* a, const float* b, float* y) {
  smp::vectorized([=](auto unit) { smp::add_arrays(unit, n, a, b, y); });
}
void add_bias(const float* b, float* y) {
  smp::vectorized([=](auto unit) {
    for (std::int64_t r = 0; r < rows; ++r) smp::add_arrays(unit, width, y + r * width, b, y + r * width);
  });
}

/// By hand: the parameters of the other side, and buffers for all that is computed.
class ByHand {
 public:
  explicit ByHand(WithSmp& other)
      : x(other.x.local.begin(), other.x.local.end()), dy(other.dy.local.begin(), other.dy.local.end()) {
    for (const smp::Block& b : other.rank.layout().blocks()) {
      for (const auto& s : b.segments) {
        const auto* v = static_cast<const float*>(b.value);
        values[s.name].assign(v + s.begin, v + s.end);
        gradients[s.name].assign(s.end - s.begin, 0);
      }
    }
    const auto find = [&](const char* name) { return Pair{values.at(name).data(), gradients.at(name).data()}; };
    g1 = find("ln_1.weight"), b1 = find("ln_1.bias"), g2 = find("ln_2.weight"), b2 = find("ln_2.bias");
    wqkv = find("attn.c_attn.weight"), bqkv = find("attn.c_attn.bias");
    wo = find("attn.c_proj.weight"), bo = find("attn.c_proj.bias");
    wf = find("mlp.c_fc.weight"), bf = find("mlp.c_fc.bias"), wp = find("mlp.c_proj.weight");
    bp = find("mlp.c_proj.bias");
  }

  void step() {
    log->clear();
    forward();
    backward();
  }

  std::shared_ptr<Log> log = std::make_shared<Log>();
  Buffer x, dy, y = Buffer(rows * width), dx = Buffer(rows * width);
  std::map<std::string, Buffer> values, gradients;

 private:
  struct Pair {
    const float* v;
    float* g;
  };
  static constexpr smp::nn::AttentionShape shape() {
    smp::nn::AttentionShape s;
    s.batch = samples, s.heads = heads / ranks, s.queries = s.keys = places, s.head = width / heads, s.causal = true;
    s.block = places;
    return s;
  }
  void sum_over_tp(Buffer& b) {
    tp.all_reduce(stream, std::span<const float>(b), std::span<float>(b), smp::sum, smp::Purpose::activation);
  }

  void forward() {
    layer_norm_forward(rows, width, epsilon, x.data(), g1.v, b1.v, n1.data(), s1.data());
    linear(width, 3 * part, n1.data(), wqkv.v, bqkv.v, qkv.data());
    attention_forward<float>(shape(), {qkv.data(), qkv.data() + part, qkv.data() + 2 * part, 3 * part}, nullptr,
                             p.data(), nullptr, o.data());
    linear(part, width, o.data(), wo.v, nullptr, middle.data());
    sum_over_tp(middle);
    add_bias(bo.v, middle.data());
    add(rows * width, x.data(), middle.data(), middle.data());
    layer_norm_forward(rows, width, epsilon, middle.data(), g2.v, b2.v, n2.data(), s2.data());
    linear(width, inner, n2.data(), wf.v, bf.v, u.data());
    activation_forward(ActivationKind::gelu_tanh, rows * inner, u.data(), a.data());
    linear(inner, width, a.data(), wp.v, nullptr, y.data());
    sum_over_tp(y);
    add_bias(bp.v, y.data());
    add(rows * width, middle.data(), y.data(), y.data());
  }
  void backward() {
    linear_input(inner, width, dy.data(), wp.v, du.data());
    activation_backward(ActivationKind::gelu_tanh, rows * inner, u.data(), du.data(), du.data());
    linear_input(width, inner, du.data(), wf.v, dn.data());
    sum_over_tp(dn);
    add_column_sums(rows, width, dy.data(), bp.g);
    linear_weight(inner, width, dy.data(), a.data(), wp.g);
    linear_weight(width, inner, du.data(), n2.data(), wf.g);
    add_column_sums(rows, inner, du.data(), bf.g);
    layer_norm_backward_input(rows, width, middle.data(), g2.v, s2.data(), dn.data(), dmiddle.data());
    layer_norm_backward_params(rows, width, middle.data(), s2.data(), dn.data(), g2.g, b2.g);
    add(rows * width, dy.data(), dmiddle.data(), dmiddle.data());

    linear_input(part, width, dmiddle.data(), wo.v, d_o.data());
    attention_backward<float>(shape(), {qkv.data(), qkv.data() + part, qkv.data() + 2 * part, 3 * part}, p.data(),
                              d_o.data(), scratch.data(),
                              {dqkv.data(), dqkv.data() + part, dqkv.data() + 2 * part, 3 * part});
    linear_input(width, 3 * part, dqkv.data(), wqkv.v, dn.data());
    sum_over_tp(dn);
    add_column_sums(rows, width, dmiddle.data(), bo.g);
    linear_weight(part, width, dmiddle.data(), o.data(), wo.g);
    linear_weight(width, 3 * part, dqkv.data(), n1.data(), wqkv.g);
    add_column_sums(rows, 3 * part, dqkv.data(), bqkv.g);
    layer_norm_backward_input(rows, width, x.data(), g1.v, s1.data(), dn.data(), dx.data());
    layer_norm_backward_params(rows, width, x.data(), s1.data(), dn.data(), g1.g, b1.g);
    add(rows * width, dmiddle.data(), dx.data(), dx.data());
  }

  Recording tp{0, ranks, log};
  smp::HostStream stream;
  Pair g1, b1, wqkv, bqkv, wo, bo, g2, b2, wf, bf, wp, bp;
  Buffer n1 = Buffer(rows * width), s1 = Buffer(2 * rows), qkv = Buffer(rows * 3 * part);
  Buffer p = Buffer(samples * heads / ranks * places * places), o = Buffer(rows * part), middle = Buffer(rows * width);
  Buffer n2 = Buffer(rows * width), s2 = Buffer(2 * rows), u = Buffer(rows * inner), a = Buffer(rows * inner);
  Buffer du = Buffer(rows * inner), dn = Buffer(rows * width), dmiddle = Buffer(rows * width);
  Buffer d_o = Buffer(rows * part), dqkv = Buffer(rows * 3 * part), scratch = Buffer(places * places);
};

template <class Side>
double milliseconds(Side& side, int steps) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) side.step();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / steps;
}

}  // namespace

int main(int argc, char** argv) {
  WithSmp ours;
  ByHand theirs(ours);
  if (argc == 3) {  // for tensor_parallel.sh: "smp" or "hand", and steps
    const int steps = std::atoi(argv[2]);
    std::printf("%.6f ms\n",
                std::string_view(argv[1]) == "smp" ? milliseconds(ours, steps) : milliseconds(theirs, steps));
    return 0;
  }
  ours.step();
  theirs.step();
  double apart = 0, largest = 0;
  const auto compare = [&](const float* found, const Buffer& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      apart = std::max(apart, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
      largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    }
  };
  compare(std::as_const(ours.y).local.data(), theirs.y);
  compare(std::as_const(ours.dx).local.data(), theirs.dx);
  for (const smp::Block& b : ours.rank.layout().blocks()) {
    for (const auto& s : b.segments) compare(static_cast<const float*>(b.grad) + s.begin, theirs.gradients.at(s.name));
  }
  const bool equal = apart <= 1e-6 * largest && ours.log->size() == theirs.log->size();
  std::printf("%.1e apart, %zu and %zu calls, %.3f ms with smp and %.3f ms by hand\n", apart, ours.log->size(),
              theirs.log->size(), milliseconds(ours, 50), milliseconds(theirs, 50));
  if (!equal) std::fprintf(stderr, "the two sides differ\n");
  return equal ? 0 : 1;
}
