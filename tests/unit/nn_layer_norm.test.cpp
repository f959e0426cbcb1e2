// LayerNorm: values (large means, constant rows, any number of rows), gradients.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Shape, smp::Tensor, smp::testing::OneRank;
using smp::nn::LayerNorm;

static_assert(smp::SplitBackward<LayerNorm<float>, smp::testing::Context>);

TEST_CASE("a row whose mean is large against its spread keeps the spread: two passes, not E[x^2] - E[x]^2") {
  OneRank<LayerNorm<float>> rank(LayerNorm<float>(4));
  auto ctx = rank.context();
  Tensor x(rank.memory, {2, 4});
  std::copy_n(std::vector<float>{40000, 40001, 40002, 40003, -3, -3, -3, -3}.data(), 8, x.data());
  LayerNorm<float>::Saved saved;
  const Tensor y = rank.model.forward(ctx, x, saved);
  const double expected[] = {-1.341635, -0.447212, 0.447212, 1.341635, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::abs(double{y.data()[i]} - expected[i]) < 1e-6);
  const Tensor dx = rank.model.backward(ctx, rank.random<float>({2, 4}), saved);
  for (const float v : dx) CHECK(std::isfinite(v));
}

TEST_CASE("a constant row gives the bias, even with epsilon 1e-12") {
  OneRank<LayerNorm<float>> rank(LayerNorm<float>(130, 1e-12));
  rank.randomise(0.5);
  auto ctx = rank.context();
  Tensor x(rank.memory, {1, 130});
  std::fill(x.begin(), x.end(), 7.f);
  LayerNorm<float>::Saved saved;
  const Tensor y = rank.model.forward(ctx, x, saved);
  CHECK(std::memcmp(y.data(), rank.model.bias.value().data(), 130 * sizeof(float)) == 0);
  const Tensor dx = rank.model.backward(ctx, rank.random<float>({1, 130}), saved);
  for (const float v : dx) CHECK(std::isfinite(v));
}

TEST_CASE("the bits of a row do not depend on how many rows there are") {
  OneRank<LayerNorm<float>> rank(LayerNorm<float>(77));
  rank.randomise(0.5);
  auto ctx = rank.context();
  const Tensor x = rank.random<float>({5, 77}), dy = rank.random<float>({5, 77}, 1);
  LayerNorm<float>::Saved saved, other;
  const Tensor y = rank.model.forward(ctx, x, saved), dx = rank.model.backward(ctx, dy, saved);
  for (std::int64_t r = 0; r < 5; ++r) {
    const Tensor one = rank.model.forward(ctx, x.slice(r, 1), other);
    const Tensor d = rank.model.backward(ctx, dy.slice(r, 1), other);
    CHECK(std::memcmp(one.data(), y.data() + r * 77, 77 * sizeof(float)) == 0);
    CHECK(std::memcmp(d.data(), dx.data() + r * 77, 77 * sizeof(float)) == 0);
  }
}

TEST_CASE("gradients of LayerNorm, in one part or two") {
  for (const Shape& shape : {Shape{1, 2}, Shape{3, 5, 7}, Shape{2, 2, 66}}) {
    OneRank rank{LayerNorm<double>(shape[-1])};
    rank.randomise(0.5);
    const auto found = smp::testing::check_gradients(rank, rank.random<double>(shape));
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, rank.random<double>(shape)));
  }
  OneRank<LayerNorm<double>> one(LayerNorm<double>(1));  // nothing to normalise: the bias, and no gradient of x
  const auto found = smp::testing::check_gradients(one, one.random<double>({3, 1}));
  CHECK_MESSAGE(found.relative <= 1e-7, found.where);
}

TEST_CASE("of weight and bias, either may be frozen: the other still learns") {
  for (const bool frozen_weight : {true, false}) {
    LayerNorm<double> m(5);
    (frozen_weight ? m.weight : m.bias) = smp::Parameter64({5}, {smp::Init::Kind::ones}, {}, true);
    OneRank rank{m};
    const auto found = smp::testing::check_gradients(rank, rank.random<double>({3, 5}));
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
  }
}

TEST_CASE("float agrees with double") {
  OneRank<LayerNorm<float>> single(LayerNorm<float>(384));
  OneRank<LayerNorm<double>> exact(LayerNorm<double>(384));
  auto c = single.context();
  auto d = exact.context();
  LayerNorm<float>::Saved s;
  LayerNorm<double>::Saved e;
  const auto y = single.model.forward(c, single.random<float>({8, 384}, 0, 3), s);
  const auto z = exact.model.forward(d, exact.random<double>({8, 384}, 0, 3), e);
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) worst = std::max(worst, std::abs(double{y.data()[i]} - z.data()[i]));
  CHECK(worst < 2e-6);
}
