// Attention with fewer heads of keys and values, and to another state: against attention with the heads repeated;
// gradients; masks; what cannot be.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include <doctest/doctest.h>

#include <smp/nn/attention.hpp>
#include <smp/nn/grouped_attention.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Ids, smp::Tensor64, smp::testing::OneRank;
using namespace smp::nn;
using Grouped = GroupedAttention<double>;
using Cross = CrossAttention<double>;
using MaskedCross = CrossAttention<double, KeyMask::given>;

static_assert(smp::SplitBackward<Grouped, smp::testing::Context>);
static_assert(smp::SplitBackward<MaskedCross, smp::testing::Context>);

namespace {

/// Copies rows of a parameter: `rows` from row `first` of `from` to row `at` of `to`.
template <class A, class B>
void copy_rows(const A& from, std::int64_t first, const B& to, std::int64_t at, std::int64_t rows) {
  const std::int64_t width = from.shape().rank() > 1 ? from.shape()[1] : 1;
  auto* values = static_cast<double*>(to.block()->value) + to.offset();
  std::copy_n(from.value().data() + first * width, rows * width, values + at * width);
}

/// A value of the output, with weights that fill a layer's matrix row by row.
template <class M, class X>
Tensor64 run(OneRank<M>& rank, const X& input) {
  auto ctx = rank.context();
  typename M::Saved saved{};
  return rank.model.forward(ctx, input, saved);
}

double distance(const Tensor64& a, const Tensor64& b) {
  REQUIRE(a.shape() == b.shape());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a.data()[i] - b.data()[i]));
  return worst;
}

}  // namespace

TEST_CASE("query head i sees the keys and values of head i / group: as attention with these repeated") {
  constexpr std::int64_t heads = 4, head = 3, width = heads * head;
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    CAPTURE(kv_heads);
    OneRank<Grouped> few(Grouped(width, heads, kv_heads));
    few.randomise(0.5);
    OneRank<Attention<double>> many(Attention<double>(width, heads));
    const auto& from = few.model;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t shared = h / (heads / kv_heads);
      copy_rows(from.q_attn.weight, h * head, many.model.c_attn.weight, h * head, head);
      copy_rows(from.q_attn.bias, h * head, many.model.c_attn.bias, h * head, head);
      for (const std::int64_t value : {0, 1}) {
        const std::int64_t source = (value * kv_heads + shared) * head, at = ((1 + value) * heads + h) * head;
        copy_rows(from.c_attn.weight, source, many.model.c_attn.weight, at, head);
        copy_rows(from.c_attn.bias, source, many.model.c_attn.bias, at, head);
      }
    }
    copy_rows(from.c_proj.weight, 0, many.model.c_proj.weight, 0, width);
    copy_rows(from.c_proj.bias, 0, many.model.c_proj.bias, 0, width);
    const Tensor64 x = few.random<double>({2, 5, width});
    CHECK(distance(run(few, x), run(many, x)) < 1e-14);
  }
}

TEST_CASE("gradients of few heads of keys and values, and backward in two parts") {
  for (const std::int64_t kv_heads : {1, 2}) {
    for (const bool causal : {true, false}) {
      OneRank<Grouped> rank(Grouped(8, 4, kv_heads, {.causal = causal, .dropout = 0.3}));
      rank.randomise(0.5);
      const Tensor64 x = rank.random<double>({2, 3, 8});
      const auto found = smp::testing::check_gradients(rank, x);
      CHECK_MESSAGE(found.relative <= 1e-7, found.where);
      CHECK(smp::testing::split_backward_agrees(rank, x));
    }
  }
}

TEST_CASE("attention to another state of another length and width: gradients of both, with and without a mask") {
  OneRank<Cross> rank(Cross(8, 4, 2, {}, 6));
  CHECK(!rank.model.causal);
  rank.randomise(0.5);
  const std::tuple states{rank.random<double>({2, 3, 8}, 1), rank.random<double>({2, 5, 6}, 2)};
  auto found = smp::testing::check_gradients(rank, states);
  CHECK_MESSAGE(found.relative <= 1e-7, found.where);
  CHECK(smp::testing::split_backward_agrees(rank, states));

  OneRank<MaskedCross> masked(MaskedCross(8, 4, 2, {}, 6));
  masked.randomise(0.5);
  Ids mask(rank.memory, {2, 5});
  std::copy_n(std::to_array({1, 1, 0, 1, 0, 0, 0, 0, 0, 0}).begin(), 10, mask.data());
  const std::tuple input{std::get<0>(states), std::get<1>(states), mask};
  found = smp::testing::check_gradients(masked, input);
  CHECK_MESSAGE(found.relative <= 1e-7, found.where);
  // The second sample sees nothing: the projection of zeros, which is the bias.
  const Tensor64 y = run(masked, input);
  for (std::int64_t i = 0; i < 8; ++i) {
    CHECK(y.data()[3 * 8 + i] == masked.model.c_proj.bias.value().data()[i]);
  }
  auto ctx = masked.context();
  MaskedCross::Saved saved{};
  (void)masked.model.forward(ctx, input, saved);
  const auto [dx, dother, none] = masked.model.backward(ctx, masked.random<double>({2, 3, 8}, 3), saved);
  static_assert(std::is_same_v<decltype(none), const smp::NoGrad>);
  for (std::int64_t i = 0; i < 6; ++i) CHECK(dother.data()[2 * 6 + i] == 0);  // a hidden place
  for (std::size_t i = 3 * 8; i < dx.size(); ++i) CHECK(dx.data()[i] == 0);   // sees nothing
}

TEST_CASE("heads that do not divide, and states that do not fit, are sentences") {
  CHECK_THROWS_WITH_AS(Grouped(8, 3, 1), "smp: nn::GroupedAttention: a width of 8 cannot be divided into 3 equal heads",
                       smp::ConfigError);
  CHECK_THROWS_WITH_AS(Grouped(12, 6, 4),
                       "smp: nn::GroupedAttention: 6 heads cannot share 4 heads of keys and values equally",
                       smp::ConfigError);
  OneRank<Cross> rank(Cross(8, 4, 2, {}, 6));
  const Tensor64 x = rank.random<double>({2, 3, 8});
  CHECK_THROWS_WITH_AS(run(rank, std::tuple{x, x}),
                       "smp: nn::GroupedAttention takes [batch, places, 6], but was given a tensor of shape [2, 3, 8]",
                       smp::ConfigError);
  CHECK_THROWS_WITH_AS(run(rank, std::tuple{x, rank.random<double>({1, 3, 6})}),
                       "smp: nn::GroupedAttention was given states of 2 and of 1 samples", smp::ConfigError);
}
