// Dropout: how much is dropped, and that nothing but seed, place, step, sample and element says what.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/dropout.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Shape, smp::Tensor, smp::testing::OneRank;
using smp::nn::Dropout, smp::nn::DropoutMask;

static_assert(smp::SplitBackward<Dropout<float>, smp::testing::Context>);

namespace {

std::vector<float> forward(OneRank<Dropout<float>>& rank, const Tensor& x, std::uint64_t step, std::uint64_t sample) {
  auto ctx = rank.context();
  ctx.position = {step, sample};
  Dropout<float>::Saved saved;
  const Tensor y = rank.model.forward(ctx, x, saved);
  return {y.begin(), y.end()};
}

Tensor ones(OneRank<Dropout<float>>& rank, const Shape& shape) {
  Tensor x(rank.memory, shape);
  std::fill(x.begin(), x.end(), 1.f);
  return x;
}

}  // namespace

TEST_CASE("the words are those of the stream") {
  const smp::RandomStream stream{0x123456789abcdef0, 0xfedcba9876543210};
  for (const std::uint64_t group : {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 40) + 5}) {
    std::uint32_t words[smp::nn::dropout_group];
    smp::nn::dropout_words(stream, group, words);
    for (std::uint64_t i = 0; i < 128; ++i) CHECK(words[i] == stream.block(group * 32 + i / 4)[i % 4]);
  }
}

TEST_CASE("the share that is dropped is the probability, and the mean stays what it was") {
  for (const double p : {0.1, 0.5, 0.9}) {
    OneRank<Dropout<float>> rank(Dropout<float>{p});
    constexpr std::int64_t n = 100000;
    const auto y = forward(rank, ones(rank, {10, n / 10}), 0, 0);
    const auto dropped = static_cast<double>(std::count(y.begin(), y.end(), 0.f));
    CHECK(std::abs(dropped / n - p) < 5 * std::sqrt(p * (1 - p) / n));
    CHECK(*std::max_element(y.begin(), y.end()) == static_cast<float>(1 / (1 - p)));
  }
  OneRank<Dropout<float>> all(Dropout<float>{1});
  CHECK(forward(all, ones(all, {5, 5}), 0, 0) == std::vector<float>(25, 0.f));
}

TEST_CASE("a sample's mask does not depend on the cut into micro-batches; it does on step, sample and place") {
  OneRank<Dropout<float>> rank(Dropout<float>{0.5});
  const Tensor x = ones(rank, {6, 7, 11});
  const auto whole = forward(rank, x, 3, 10);
  for (const std::int64_t rows : {1, 2, 3}) {
    std::vector<float> pieces;
    for (std::int64_t first = 0; first < 6; first += rows) {
      const auto piece = forward(rank, x.slice(first, rows), 3, 10 + static_cast<std::uint64_t>(first));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    CHECK(pieces == whole);
  }
  CHECK(forward(rank, x, 3, 10) == whole);
  CHECK(forward(rank, x, 4, 10) != whole);
  CHECK(forward(rank, x, 3, 11) != whole);
  rank.model.site.stream += 1;
  CHECK(forward(rank, x, 3, 10) != whole);
}

TEST_CASE("backward drops what forward dropped, whatever has run since; evaluation drops nothing") {
  OneRank<Dropout<float>> rank(Dropout<float>{0.5});
  auto ctx = rank.context();
  const Tensor x = ones(rank, {4, 33});
  ctx.position = {1, 8};
  Dropout<float>::Saved saved;
  const Tensor y = rank.model.forward(ctx, x, saved);
  ctx.position = {2, 0};
  const Tensor dx = rank.model.backward(ctx, x, saved);
  CHECK(std::equal(y.begin(), y.end(), dx.begin()));
  ctx.training = false;
  CHECK(rank.model.forward(ctx, x, saved).data() == x.data());
  CHECK(rank.model.backward(ctx, x, saved).data() == x.data());
  CHECK(rank.memory[smp::MemoryUse::activation].live == 3 * 4 * 33 * sizeof(float));
}

TEST_CASE("gradients of Dropout, in one part or two") {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 5, 7}, Shape{2, 66}}) {
    OneRank<Dropout<double>> rank(Dropout<double>{0.3});
    const auto found = smp::testing::check_gradients(rank, rank.random<double>(shape));
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(rank, rank.random<double>(shape)));
  }
  CHECK_THROWS_WITH_AS(Dropout<float>(1.5), "smp: nn::Dropout: a probability of 1.500000 cannot be", smp::ConfigError);
}
