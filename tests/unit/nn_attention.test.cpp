// Attention: softmax of any length, who sees whom, rows that see nothing, head sizes, gradients.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/attention.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Ids, smp::Shape, smp::TensorOf, smp::testing::OneRank;
using smp::nn::Attention, smp::nn::AttentionRows, smp::nn::AttentionShape, smp::nn::KeyMask;

static_assert(smp::SplitBackward<Attention<float>, smp::testing::Context>);
static_assert(smp::SplitBackward<Attention<float, KeyMask::given>, smp::testing::Context>);

namespace {

template <class T>
void softmax(std::int64_t seen, std::vector<T>& row, const std::int32_t* mask = nullptr) {
  smp::vectorized(
      [&](auto unit) { smp::nn::softmax_row(unit, seen, static_cast<std::int64_t>(row.size()), mask, row.data()); });
}

std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 1; n <= 130; ++n) all.push_back(n);
  for (const std::int64_t n : {1023, 1024, 1025, 2047, 2048, 2049}) all.push_back(n);
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("softmax of any length: a row sums to 1 within 2 ulp, and has the values of the formula", T, float,
                   double) {
  const T ulp = std::numeric_limits<T>::epsilon();
  OneRank<smp::nn::Dropout<T>> numbers(smp::nn::Dropout<T>{});
  for (const std::int64_t n : lengths()) {
    const auto scores = numbers.template random<T>({n}, 0, 3);
    std::vector<T> row(scores.begin(), scores.end()), equal(row.size(), T(-1e4));
    softmax(n, row);
    softmax(n, equal);
    long double sum = 0, sum_of_equal = 0, expected_sum = 0;
    const T most = *std::max_element(scores.begin(), scores.end());
    for (const T v : scores) expected_sum += std::exp(static_cast<long double>(v) - most);
    long double worst = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const long double expected = std::exp(static_cast<long double>(scores.data()[i]) - most) / expected_sum;
      worst = std::max(worst, std::abs(row[i] - expected) / expected);
      sum += row[i];
      sum_of_equal += equal[i];
    }
    CAPTURE(n);
    CHECK(std::abs(sum - 1) <= 2 * ulp);
    CHECK(std::abs(sum_of_equal - 1) <= 2 * ulp);
    CHECK(worst < 16 * ulp);  // of which 10 from the rounding of differences of up to 20
  }
}

TEST_CASE("gradients through softmax of any length have the values of the formula, and sum to 0") {
  OneRank<smp::nn::Dropout<double>> numbers(smp::nn::Dropout<double>{});
  for (const std::int64_t n : lengths()) {
    const auto scores = numbers.random<double>({n}, 0, 2), gradient = numbers.random<double>({n}, 1);
    std::vector<double> p(scores.begin(), scores.end()), found(gradient.begin(), gradient.end());
    softmax(n, p);
    smp::nn::softmax_backward<double>(1, n, n, 0.5, p.data(), found.data());
    long double along = 0, sum = 0, worst = 0;
    for (std::size_t i = 0; i < p.size(); ++i) along += static_cast<long double>(p[i]) * gradient.data()[i];
    for (std::size_t i = 0; i < p.size(); ++i) {
      worst = std::max(worst, std::abs(found[i] - p[i] * (gradient.data()[i] - along) / 2));
      sum += found[i];
    }
    CAPTURE(n);
    CHECK(worst < 1e-15);
    CHECK(std::abs(sum) < 1e-15);
  }
}

TEST_CASE("softmax of extreme scores, of nothing, and with hidden keys") {
  std::vector<float> row{1e4f, -1e4f, 1e4f};
  softmax(3, row);
  CHECK(row == std::vector<float>{0.5f, 0, 0.5f});
  row = {1, 2, 3};
  softmax(0, row);
  CHECK(row == std::vector<float>{0, 0, 0});
  row = {7, 7, 7, 100};
  softmax(2, row);
  CHECK(row == std::vector<float>{0.5f, 0.5f, 0, 0});
  const std::int32_t mask[] = {0, 1, 1, 0};
  row = {3e38f, 2, 2, std::numeric_limits<float>::quiet_NaN()};
  softmax(4, row, mask);
  CHECK(row == std::vector<float>{0, 0.5f, 0.5f, 0});
  const std::int32_t nothing[] = {0, 0, 0, 1};
  row = {1, 2, 3, 4};
  softmax(3, row, nothing);
  CHECK(row == std::vector<float>{0, 0, 0, 0});
}

TEST_CASE("queries are the last places of the sequence: 2 of 5, 5 of 2, 1 of 1, whatever the block of queries") {
  const auto run = [](std::int64_t queries, std::int64_t keys, std::int64_t block) {
    AttentionShape s{.batch = 1, .heads = 1, .queries = queries, .keys = keys, .head = 1, .causal = true};
    s.block = block;
    std::vector<double> q(5, 0.0), k(5, 1.0), v{1, 2, 3, 4, 5}, p(25, -7.0), y(5, -7.0), ones(5, 1.0), scratch(25);
    std::vector<double> dq(5, -7.0), dk(5, -7.0), dv(5, -7.0);
    const AttentionRows<const double> rows{q.data(), k.data(), v.data(), 1};
    smp::nn::attention_forward<double>(s, rows, nullptr, p.data(), nullptr, y.data());
    smp::nn::attention_backward<double>(s, rows, p.data(), ones.data(), scratch.data(),
                                        {dq.data(), dk.data(), dv.data(), 1});
    for (std::int64_t i = 0; i + keys < queries; ++i) CHECK(dq[static_cast<std::size_t>(i)] == 0);
    double sum = 0;  // each query that sees something gives its output's gradient to the values
    for (std::int64_t j = 0; j < keys; ++j) sum += dv[static_cast<std::size_t>(j)];
    CHECK(sum == doctest::Approx(static_cast<double>(std::min(queries, keys))).epsilon(1e-14));
    y.resize(static_cast<std::size_t>(queries));
    return y;
  };
  for (const std::int64_t block : {1, 2, 3, 8}) {
    CHECK(run(2, 5, block) == std::vector<double>{2.5, 3});
    CHECK(run(5, 2, block) == std::vector<double>{0, 0, 0, 1, 1.5});
    CHECK(run(1, 1, block) == std::vector<double>{1});
  }
}

TEST_CASE("the block of queries changes nothing but the order of sums, with a mask and dropout too") {
  OneRank<smp::nn::Dropout<double>> numbers(smp::nn::Dropout<double>{});
  const auto run = [&](std::int64_t block, double dropout) {
    AttentionShape s{.batch = 2, .heads = 2, .queries = 7, .keys = 9, .head = 3, .causal = true};
    s.dropout = smp::nn::DropoutMask::of({3, 4}, dropout);
    s.all_heads = 2;
    s.block = block;
    const auto q = numbers.random<double>({14, 6}, 1), k = numbers.random<double>({18, 6}, 2);
    const auto v = numbers.random<double>({18, 6}, 3), dy = numbers.random<double>({14, 6}, 4);
    const Ids mask = numbers.random_ids({2, 9}, 3);
    constexpr double unset = 1e300;
    std::vector<double> p(2 * 2 * 7 * 9, unset), scratch(2 * 7 * 9, unset), y(14 * 6, unset);
    std::vector<double> dq(14 * 6, unset), dk(18 * 6, unset), dv(18 * 6, unset);
    const AttentionRows<const double> rows{q.data(), k.data(), v.data(), 6};
    smp::nn::attention_forward<double>(s, rows, mask.data(), p.data(), scratch.data(), y.data());
    smp::nn::attention_backward<double>(s, rows, p.data(), dy.data(), scratch.data(),
                                        {dq.data(), dk.data(), dv.data(), 6});
    for (const auto* more : {&dq, &dk, &dv}) y.insert(y.end(), more->begin(), more->end());
    return y;
  };
  for (const double dropout : {0.0, 0.4}) {
    const auto whole = run(7, dropout);
    for (const std::int64_t block : {1, 2, 3}) {
      const auto found = run(block, dropout);
      double worst = 0;
      for (std::size_t i = 0; i < whole.size(); ++i) worst = std::max(worst, std::abs(found[i] - whole[i]));
      CHECK(worst < 1e-14);
    }
  }
}

TEST_CASE("any head size: scores are divided by the root of the true one") {
  for (const std::int64_t head : {1, 16, 18, 20, 136}) {
    OneRank<Attention<double>> rank(Attention<double>(head, 1, {.causal = false}));
    rank.randomise(0.3);
    auto ctx = rank.context();
    typename Attention<double>::Saved saved;
    (void)rank.model.forward(ctx, rank.random<double>({1, 2, head}), saved);
    const double* qkv = saved.qkv.data();
    double scores[2];
    for (std::int64_t j = 0; j < 2; ++j) {
      scores[j] = 0;
      for (std::int64_t c = 0; c < head; ++c) scores[j] += qkv[c] * qkv[j * 3 * head + head + c];
    }
    const double expected = 1 / (1 + std::exp((scores[1] - scores[0]) / std::sqrt(static_cast<double>(head))));
    CHECK(saved.probabilities.data()[0] == doctest::Approx(expected).epsilon(1e-12));
  }
}

TEST_CASE("gradients of Attention: causal or not, with dropout, in one part or two") {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{2, 5, 6}, Shape{1, 3, 18}}) {
    for (const bool causal : {true, false}) {
      for (const double dropout : {0.0, 0.3}) {
        const std::int64_t heads = shape[-1] % 2 == 0 ? 2 : 1;
        OneRank rank{Attention<double>(shape[-1], heads, {.causal = causal, .dropout = dropout})};
        rank.randomise(0.3);
        const auto x = rank.random<double>(shape);
        const auto found = smp::testing::check_gradients(rank, x);
        CHECK_MESSAGE(found.relative <= 1e-7, found.where);
        CHECK(smp::testing::split_backward_agrees(rank, x));
      }
    }
  }
}

TEST_CASE("gradients with a mask of keys, in one part or two") {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{2, 5, 6}, Shape{1, 3, 18}}) {
    OneRank rank{Attention<double, KeyMask::given>(shape[2], shape[2] == 1 ? 1 : 2)};
    rank.randomise(0.3);
    const Attention<double, KeyMask::given>::Input x{rank.random<double>(shape),
                                                     rank.random_ids({shape[0], shape[1]}, 3)};
    const auto found = smp::testing::check_gradients(rank, x);
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, x));
  }
}

TEST_CASE("gradients with a mask of keys; a sample of which all keys are hidden gives the bias, and no gradient") {
  for (const bool causal : {true, false}) {
    OneRank rank{Attention<double, KeyMask::given>(6, 2, {.causal = causal})};
    rank.randomise(0.3);
    Ids mask(rank.memory, {3, 5});
    std::copy_n(std::vector<std::int32_t>{1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0}.data(), 15, mask.data());
    const Attention<double, KeyMask::given>::Input x{rank.random<double>({3, 5, 6}), mask};
    const auto found = smp::testing::check_gradients(rank, x);
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, x));

    auto ctx = rank.context();
    Attention<double, KeyMask::given>::Saved saved;
    const auto y = rank.model.forward(ctx, x, saved);
    const auto dx = std::get<0>(rank.model.backward(ctx, rank.random<double>({3, 5, 6}, 1), saved));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(std::memcmp(y.data() + (10 + i) * 6, rank.model.c_proj.bias.value().data(), 6 * sizeof(double)) == 0);
    }
    CHECK(std::all_of(dx.data() + 60, dx.data() + 90, [](double d) { return d == 0; }));
  }
}

TEST_CASE("a sample's output does not depend on the cut into micro-batches, with dropout too") {
  OneRank<Attention<float>> rank(Attention<float>(8, 2, {.dropout = 0.4}));
  rank.randomise(0.3);
  auto ctx = rank.context();
  const auto x = rank.random<float>({4, 6, 8}), dy = rank.random<float>({4, 6, 8}, 1);
  ctx.position = {5, 20};
  Attention<float>::Saved saved, part;
  const auto y = rank.model.forward(ctx, x, saved);
  const auto dx = rank.model.backward(ctx, dy, saved);
  for (std::int64_t first = 0; first < 4; first += 2) {
    ctx.position.first_sample = 20 + static_cast<std::uint64_t>(first);
    const auto z = rank.model.forward(ctx, x.slice(first, 2), part);
    const auto dz = rank.model.backward(ctx, dy.slice(first, 2), part);
    CHECK(std::memcmp(z.data(), y.data() + first * 48, 96 * sizeof(float)) == 0);
    CHECK(std::memcmp(dz.data(), dx.data() + first * 48, 96 * sizeof(float)) == 0);
  }
}

TEST_CASE("Attention says which sizes it has and which it was given") {
  CHECK_THROWS_WITH_AS(Attention<float>(10, 3),
                       "smp: nn::Attention: a width of 10 cannot be divided into 3 equal heads", smp::ConfigError);
  OneRank rank{Attention<float, KeyMask::given>(8, 2)};
  auto ctx = rank.context();
  Attention<float, KeyMask::given>::Saved saved;
  CHECK_THROWS_WITH_AS((void)rank.model.forward(ctx, {rank.random<float>({3, 8}), {}}, saved),
                       "smp: nn::Attention takes [batch, sequence, 8], but was given a tensor of shape [3, 8]",
                       smp::ConfigError);
  CHECK_THROWS_WITH_AS(
      (void)rank.model.forward(ctx, {rank.random<float>({2, 3, 8}), rank.random_ids({3, 2}, 2)}, saved),
      "smp: nn::Attention: the mask of keys must have the shape [2, 3], not [3, 2]", smp::ConfigError);
}
