// SPDX-License-Identifier: Apache-2.0
// The modules that examples/train_convnet has of its own: gradients, and values worked out by hand.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/testing/gradient_check.hpp>

#include "../examples/train_convnet/modules.hpp"

using smp::Shape;
using smp::Tensor64;
using smp::testing::OneRank;

namespace {

template <class M>
void check_module(M module, const Shape& shape, double scale = 1) {
  OneRank<M> rank(std::move(module));
  rank.randomise(0.5);
  const auto found = smp::testing::check_gradients(rank, rank.template random<double>(shape, 0, scale));
  CHECK_MESSAGE(found.relative <= 1e-7, smp::to_string(shape), ": ", found.where, ", ", found.relative);
}

Tensor64 filled(smp::Memory& memory, const Shape& shape, const std::vector<double>& values) {
  Tensor64 t(memory, shape);
  std::copy(values.begin(), values.end(), t.begin());
  return t;
}

/// Where a parameter is.
template <class M>
double* values_of(OneRank<M>& rank, const std::string& name) {
  for (const smp::Block& b : rank.layout().blocks()) {
    for (const smp::Block::Segment& s : b.segments) {
      if (s.name == name) return static_cast<double*>(b.value) + s.begin;
    }
  }
  return nullptr;
}

/// What a module makes of numbers, in order.
template <class M>
std::vector<double> run(OneRank<M>& rank, const typename M::Input& x) {
  auto ctx = rank.context();
  typename M::Saved saved{};
  const auto y = rank.model.forward(ctx, x, saved);
  return {y.begin(), y.end()};
}

}  // namespace

TEST_CASE("gradients of the convolution") {
  check_module(Convolution<double>(1, 1), {1, 3, 3, 1});
  check_module(Convolution<double>(2, 3), {2, 5, 4, 2});
  check_module(Convolution<double>(3, 9), {1, 4, 7, 3});
}

TEST_CASE("gradients of the pooling") {
  check_module(MaxPool<double>(), {1, 2, 2, 1});
  check_module(MaxPool<double>(), {2, 4, 6, 3});
  check_module(MaxPool<double>(), {3, 5, 3, 9});
}

TEST_CASE("gradients of flatten, log-softmax and the loss") {
  check_module(Flatten<double>(), {1, 1, 1, 1});
  check_module(Flatten<double>(), {2, 3, 2, 5});
  check_module(Flatten<double>(), {3, 9});
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 10}, Shape{5, 17}}) {
    check_module(LogSoftmax<double>(), shape, 2);
    OneRank<NegativeLogLikelihood<double>> rank({});
    const auto classes = static_cast<std::int32_t>(shape[1]);
    const auto found =
        smp::testing::check_gradients(rank, {rank.random<double>(shape), rank.random_ids({shape[0]}, classes)});
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
  }
}

TEST_CASE("a convolution slides its weights over the image") {
  OneRank<Convolution<double>> rank(Convolution<double>(1, 2));
  double* weight = values_of(rank, "weight");
  double* bias = values_of(rank, "bias");
  std::fill_n(weight, 18, 0);
  weight[4] = 1;       // the middle, for channel 0
  weight[9] = 1;       // top left
  weight[9 + 8] = 10;  // and bottom right, for channel 1
  bias[0] = 0;
  bias[1] = 100;
  const auto x = filled(rank.memory, {1, 3, 4, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(run(rank, x) == std::vector<double>{6, 100 + 1 + 110, 7, 100 + 2 + 120});
}

TEST_CASE("the largest of four pixels, channel by channel") {
  OneRank<MaxPool<double>> rank({});
  const auto x = filled(rank.memory, {1, 2, 3, 2}, {1, 9, 2, 8, 99, 99, 4, 6, 3, 7, 99, 99});
  CHECK(run(rank, x) == std::vector<double>{4, 9});
}

TEST_CASE("probabilities and their loss") {
  OneRank<LogSoftmax<double>> softmax({});
  const auto logs = run(softmax, filled(softmax.memory, {2, 2}, {0, std::log(3.0), 1000, 1000}));
  CHECK(std::exp(logs[0]) == doctest::Approx(0.25));
  CHECK(std::exp(logs[1]) == doctest::Approx(0.75));
  CHECK(std::exp(logs[3]) == doctest::Approx(0.5));

  OneRank<NegativeLogLikelihood<double>> loss({});
  smp::Ids targets(loss.memory, {2});
  targets.data()[0] = 1;
  targets.data()[1] = 0;
  CHECK(run(loss, {filled(loss.memory, {2, 2}, {-1, -2, -3, -4}), targets}) == std::vector<double>{2.5});
}

TEST_CASE("something that is no image is refused") {
  OneRank<MaxPool<double>> rank({});
  CHECK_THROWS_WITH_AS(run(rank, rank.random<double>({2, 3})),
                       "smp: images are [samples, height, width, channels], not [2, 3]", smp::ConfigError);
}
