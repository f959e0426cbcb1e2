// Embeddings of tokens and places: values, gradients, ids outside of the vocabulary.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/embedding.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Ids, smp::Shape, smp::testing::OneRank;
using smp::nn::Embedding, smp::nn::PositionEmbedding, smp::nn::Tie;

static_assert(smp::SplitBackward<Embedding<float>, smp::testing::Context>);
static_assert(smp::SplitBackward<PositionEmbedding<float>, smp::testing::Context>);

TEST_CASE("each id takes its row, and its gradient is the sum of what came back to it") {
  OneRank<Embedding<float, Tie::wte>> rank(Embedding<float, Tie::wte>(3, 2));
  CHECK(rank.layout().blocks().front().segments.front().name == "wte.weight");
  auto ctx = rank.context();
  std::copy_n(std::vector<float>{1, 2, 3, 4, 5, 6}.data(), 6, static_cast<float*>(rank.layout().blocks()[0].value));
  Ids ids(rank.memory, {1, 3});
  std::copy_n(std::vector<std::int32_t>{2, 0, 2}.data(), 3, ids.data());
  Embedding<float, Tie::wte>::Saved saved;
  const smp::Tensor y = rank.model.forward(ctx, ids, saved);
  CHECK(y.shape() == Shape{1, 3, 2});
  CHECK(std::vector(y.begin(), y.end()) == std::vector<float>{5, 6, 1, 2, 5, 6});
  CHECK(rank.model.backward(ctx, y, saved) == smp::NoGrad{});
  const float* g = static_cast<const float*>(rank.layout().blocks()[0].grad);
  CHECK(std::vector(g, g + 6) == std::vector<float>{1, 2, 0, 0, 10, 12});
}

TEST_CASE("an id outside of the vocabulary is an error that says which one and where") {
  OneRank<Embedding<float>> rank(Embedding<float>(65, 4));
  auto ctx = rank.context();
  Embedding<float>::Saved saved;
  for (const std::int32_t bad : {65, -1}) {
    Ids ids = rank.random_ids({2, 3}, 65);
    ids.data()[4] = bad;
    CHECK_THROWS_WITH_AS(
        (void)rank.model.forward(ctx, ids, saved),
        ("smp: nn::Embedding has 65 vectors, but at place 4 of its input is the id " + std::to_string(bad)).c_str(),
        smp::ConfigError);
  }
}

TEST_CASE("gradients of Embedding and PositionEmbedding, in one part or two") {
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 3}, Shape{5, 4}}) {
    const std::int64_t width = 3 * shape[0] - 2;
    OneRank<Embedding<double>> tokens(Embedding<double>(7, width));
    auto found = smp::testing::check_gradients(tokens, tokens.random_ids(shape, 7));
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(tokens, tokens.random_ids(shape, 7)));
    OneRank<PositionEmbedding<double>> places(PositionEmbedding<double>(6, width));
    const auto x = places.random<double>({shape[0], shape[1], width});
    found = smp::testing::check_gradients(places, x);
    CHECK_MESSAGE(found.relative <= 1e-7, found.where);
    CHECK(smp::testing::split_backward_agrees(places, x));
  }
}

TEST_CASE("a sequence that is too long is an error that says how long it may be") {
  OneRank<PositionEmbedding<float>> rank(PositionEmbedding<float>(8, 4));
  auto ctx = rank.context();
  PositionEmbedding<float>::Saved saved;
  CHECK_THROWS_WITH_AS(
      (void)rank.model.forward(ctx, rank.random<float>({1, 9, 4}), saved),
      "smp: nn::PositionEmbedding takes [batch, up to 8, 4], but was given a tensor of shape [1, 9, 4]",
      smp::ConfigError);
}
