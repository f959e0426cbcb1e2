// Linear: values, gradients, and what it says of wrong sizes.
#include <algorithm>
#include <iterator>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/linear.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Shape, smp::testing::OneRank;
using smp::nn::Bias, smp::nn::Linear;

static_assert(smp::SplitBackward<Linear<float>, smp::testing::Context>);

TEST_CASE("y = x W^T + b; gradients are added to what is there") {
  OneRank<Linear<float>> rank(Linear<float>(2, 3));
  auto ctx = rank.context();
  smp::Block& block = rank.layout().blocks().front();
  CHECK(block.segments[0].name == "weight");
  CHECK(block.segments[1].name == "bias");
  CHECK_FALSE(block.segments[1].rule.decay);
  const float values[] = {1, 2, 3, 4, 5, 6, 10, 20, 30};
  std::copy(std::begin(values), std::end(values), static_cast<float*>(block.value));
  smp::Tensor x(rank.memory, {2, 1, 2}), dy(rank.memory, {2, 1, 3});
  std::copy_n(std::vector<float>{1, -1, 2, 3}.data(), 4, x.data());
  std::copy_n(std::vector<float>{1, 0, 2, -1, 1, 0}.data(), 6, dy.data());
  Linear<float>::Saved saved;
  const smp::Tensor y = rank.model.forward(ctx, x, saved);
  CHECK(y.shape() == Shape{2, 1, 3});
  CHECK(std::vector(y.begin(), y.end()) == std::vector<float>{9, 19, 29, 18, 38, 58});
  for (int pass = 1; pass <= 2; ++pass) {
    CHECK(rank.model.forward(ctx, x, saved).size() == 6);
    const smp::Tensor dx = rank.model.backward(ctx, dy, saved);
    CHECK(std::vector(dx.begin(), dx.end()) == std::vector<float>{11, 14, 2, 2});
    const float* g = static_cast<const float*>(block.grad);
    std::vector<float> expected{-1, -4, 2, 3, 2, -2, 0, 1, 2};
    for (float& e : expected) e *= static_cast<float>(pass);
    CHECK(std::vector(g, g + 9) == expected);
  }
}

TEST_CASE("gradients of Linear, with bias or not, in one part or two") {
  for (const Bias bias : {Bias::no, Bias::yes}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5, 7}, Shape{2, 2, 66}}) {
      OneRank<Linear<double>> rank(Linear<double>(shape[-1], shape[-1] == 1 ? 1 : 13, bias));
      CHECK(rank.layout().blocks().front().segments.size() == (bias == Bias::yes ? 2 : 1));
      const auto found = smp::testing::check_gradients(rank, rank.random<double>(shape));
      CHECK_MESSAGE(found.relative <= 1e-7, found.where);
      CHECK(smp::testing::split_backward_agrees(rank, rank.random<double>(shape)));
    }
  }
}

TEST_CASE("a frozen parameter gets no gradient, the others do") {
  using smp::Parameter64;
  OneRank<Linear<double>> rank(
      Linear<double>(Parameter64({2, 3}, {smp::Init::Kind::ones}, {}, true), Parameter64({2})));
  CHECK(smp::testing::check_gradients(rank, rank.random<double>({4, 3})).relative <= 1e-7);
}

TEST_CASE("Linear says which sizes it has and which it was given") {
  OneRank<Linear<float>> rank(Linear<float>(384, 10));
  auto ctx = rank.context();
  Linear<float>::Saved saved;
  CHECK_THROWS_WITH_AS((void)rank.model.forward(ctx, rank.random<float>({4, 128, 380}), saved),
                       "smp: nn::Linear takes rows of 384 numbers, but was given a tensor of shape [4, 128, 380]",
                       smp::ConfigError);
  (void)rank.model.forward(ctx, rank.random<float>({4, 384}), saved);
  CHECK_THROWS_WITH_AS((void)rank.model.backward(ctx, rank.random<float>({3, 10}), saved),
                       "smp: nn::Linear: the gradient of the output must have the shape [4, 10], not [3, 10]",
                       smp::ConfigError);
}
