// CrossEntropy against the formula: large logits, ignored targets, targets that are no class.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/cross_entropy.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Ids, smp::Shape, smp::TensorOf, smp::testing::OneRank;
using smp::nn::CrossEntropy;

static_assert(smp::SplitBackward<CrossEntropy<float>, smp::testing::Context>);

namespace {

template <class T>
struct Result {
  double loss;
  std::vector<T> gradient;
};

template <class T>
Result<T> run(std::int64_t classes, const std::vector<T>& logits, const std::vector<std::int32_t>& targets) {
  OneRank<CrossEntropy<T>> rank(CrossEntropy<T>{});
  auto ctx = rank.context();
  const auto rows = static_cast<std::int64_t>(targets.size());
  TensorOf<T> x(rank.memory, {rows, classes}), one(rank.memory, {});
  Ids t(rank.memory, {rows});
  std::copy(logits.begin(), logits.end(), x.begin());
  std::copy(targets.begin(), targets.end(), t.begin());
  *one.data() = 1;
  typename CrossEntropy<T>::Saved saved;
  const auto loss = rank.model.forward(ctx, {x, t}, saved);
  CHECK(loss.shape() == Shape{});
  const auto gradient = std::get<0>(rank.model.backward(ctx, one, saved));
  return {static_cast<double>(*loss.data()), {gradient.begin(), gradient.end()}};
}

// The formula, directly.
Result<double> formula(std::int64_t classes, const std::vector<double>& logits,
                       const std::vector<std::int32_t>& targets) {
  Result<double> r{0, std::vector<double>(logits.size(), 0.0)};
  const auto counted = std::count_if(targets.begin(), targets.end(), [](std::int32_t t) { return t != -100; });
  for (std::size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == -100) continue;
    const double* x = logits.data() + row * static_cast<std::size_t>(classes);
    const double most = *std::max_element(x, x + classes);
    long double sum = 0;
    for (int i = 0; i < classes; ++i) sum += std::exp(static_cast<long double>(x[i]) - most);
    r.loss += static_cast<double>(std::log(sum) + most - x[targets[row]]) / static_cast<double>(counted);
    for (int i = 0; i < classes; ++i) {
      const auto p = static_cast<double>(std::exp(static_cast<long double>(x[i]) - most) / sum);
      r.gradient[row * static_cast<std::size_t>(classes) + static_cast<std::size_t>(i)] =
          (p - (i == targets[row] ? 1 : 0)) / static_cast<double>(counted);
    }
  }
  return r;
}

}  // namespace

TEST_CASE("loss and gradient are those of the formula, in single and double precision, for any number of classes") {
  for (const std::int64_t classes : {1, 2, 63, 64, 65, 200}) {
    OneRank<CrossEntropy<double>> rank(CrossEntropy<double>{});
    const auto x = rank.random<double>({5, classes}, 0, 3);
    std::vector<double> logits(x.begin(), x.end());
    for (double& v : logits) v = static_cast<float>(v);
    const auto t = rank.random_ids({5}, static_cast<std::int32_t>(classes));
    std::vector<std::int32_t> targets(t.begin(), t.end());
    targets[1] = -100;
    const auto expected = formula(classes, logits, targets);
    const auto found = run<double>(classes, logits, targets);
    const auto single = run<float>(classes, {logits.begin(), logits.end()}, targets);
    CHECK(std::abs(found.loss - expected.loss) < 1e-14);
    CHECK(std::abs(single.loss - expected.loss) < 2e-6);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      CHECK(std::abs(found.gradient[i] - expected.gradient[i]) < 1e-15);
      CHECK(std::abs(static_cast<double>(single.gradient[i]) - expected.gradient[i]) < 1e-6);
    }
  }
}

TEST_CASE("large logits: nothing overflows, and a wrong certainty costs what it should") {
  const auto r = run<float>(3, {1e4f, -1e4f, 1e4f, 3e38f, -3e38f, 0}, {1, 0});
  CHECK(r.loss == doctest::Approx((2e4 + std::log(2.0)) / 2).epsilon(1e-6));
  CHECK(r.gradient == std::vector<float>{0.25f, -0.5f, 0.25f, 0, 0, 0});
  const auto equal = run<double>(4, {7, 7, 7, 7}, {2});
  CHECK(equal.loss == doctest::Approx(std::log(4.0)).epsilon(1e-15));
  CHECK(equal.gradient == std::vector<double>{0.25, 0.25, -0.75, 0.25});
}

TEST_CASE("ignored targets count in neither sum nor mean; if all are ignored, loss and gradient are 0") {
  const auto both = run<double>(2, {0, 1, 5, -5}, {0, -100});
  const auto alone = run<double>(2, {0, 1}, {0});
  CHECK(both.loss == alone.loss);
  CHECK(std::equal(alone.gradient.begin(), alone.gradient.end(), both.gradient.begin()));
  CHECK(both.gradient[2] == 0);
  CHECK(both.gradient[3] == 0);
  const auto none = run<double>(2, {0, 1, 5, std::numeric_limits<double>::quiet_NaN()}, {-100, -100});
  CHECK(none.loss == 0);
  CHECK(none.gradient == std::vector<double>(4, 0.0));
}

TEST_CASE("gradients of CrossEntropy, in one part or two") {
  for (const Shape& shape : {Shape{1, 1, 2}, Shape{3, 5}, Shape{2, 2, 66}}) {
    OneRank<CrossEntropy<double>> rank(CrossEntropy<double>{});
    Ids targets = rank.random_ids({static_cast<std::int64_t>(shape.elements()) / shape[-1]},
                                  static_cast<std::int32_t>(shape[-1]));
    if (targets.size() > 1) targets.data()[1] = -100;
    const CrossEntropy<double>::Input input{rank.random<double>(shape), targets};
    const auto found = smp::testing::check_gradients(rank, input);
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, input));
  }
}

TEST_CASE("CrossEntropy says what is wrong with its input") {
  CHECK_THROWS_WITH_AS(run<float>(3, {1, 2, 3, 4, 5, 6}, {1, 3}),
                       "smp: nn::CrossEntropy has 3 classes, but the target at place 1 is 3", smp::ConfigError);
  CHECK_THROWS_WITH_AS(run<float>(3, {1, 2, 3}, {-1}),
                       "smp: nn::CrossEntropy has 3 classes, but the target at place 0 is -1", smp::ConfigError);
  OneRank<CrossEntropy<float>> rank(CrossEntropy<float>{});
  auto ctx = rank.context();
  CrossEntropy<float>::Saved saved;
  CHECK_THROWS_WITH_AS(
      (void)rank.model.forward(ctx, {rank.random<float>({2, 4, 9}), rank.random_ids({2, 5}, 9)}, saved),
      "smp: nn::CrossEntropy takes logits [..., classes] and one target a row, but was given "
      "[2, 4, 9] and [2, 5]",
      smp::ConfigError);
}
