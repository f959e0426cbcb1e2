// A whole language model, cut over ranks, in both layouts, against one rank: loss and all gradients, dropout included.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/position_embedding.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/nn/vocabulary_cross_entropy.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/testing/check_parts.hpp>

namespace {

using smp::Dim, smp::Ids, smp::Split;
using namespace smp::nn;

constexpr std::int64_t vocabulary = 13, width = 24, heads = 12, places = 12, samples = 2;
const TransformerOptions options{.dropout = 0.25};

template <class M, class At, Split S = Split::usual>
using Cut = smp::TensorParallel<M, S, At>;
template <class At>
using Block = TransformerBlock<double, KeyMask::none, Cut<Attention<double>, At>, Cut<Mlp<double>, At>>;
template <class At>
using Model =
    smp::Sequential<Cut<Embedding<double, Tie::wte>, At, Split::rows>, PositionEmbedding<double>, Dropout<double>,
                    smp::Repeat<smp::Checkpointed<Block<At>>>, LayerNorm<double>, Cut<LmHead<double, Tie::wte>, At>>;

template <class At>
Model<At> make(int rank, int ranks) {
  return Model<At>(
      {{vocabulary, width}, rank, ranks}, {places, width}, Dropout<double>(0.25),
      {2,
       [&](std::size_t) {
         return smp::Checkpointed<Block<At>>(Block<At>(width, {Attention<double>(width, heads, options), rank, ranks},
                                                       {Mlp<double>(width, options), rank, ranks}, options));
       }},
      LayerNorm<double>(width), {{width, vocabulary}, rank, ranks});
}

struct Found {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
  std::size_t activations = 0;  // peak bytes of rank 0
  std::vector<std::string> summed;
};

/// One forward and backward on `ranks` ranks; gradients are put together by their places in the whole parameters.
template <class At>
Found run(int ranks) {
  Found all;
  std::mutex mutex;
  smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
    smp::testing::OneRank<Model<At>> rank(make<At>(world.rank(), ranks));
    rank.randomise(0.3);
    const smp::testing::TpGroup groups{world};
    smp::Context<smp::HostStream, const smp::testing::TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    ctx.position = {3, 10};
    const VocabularyCrossEntropy<double> loss{vocabulary};
    const Ids ids = rank.random_ids({samples, places}, vocabulary, 1);
    Ids targets = rank.random_ids({samples, places}, vocabulary, 2);
    targets.data()[5] = -100;

    typename Model<At>::Saved saved{};
    VocabularyCrossEntropy<double>::Saved loss_saved{};
    auto logits = rank.model.forward(ctx, ids, saved);
    const auto y = loss.forward(ctx, {std::move(logits), targets}, loss_saved);
    smp::Dist<smp::Tensor64, smp::Invariant> dy{smp::Tensor64(rank.memory, {})};
    *dy.local.data() = 1;
    auto dlogits = std::get<0>(VocabularyCrossEntropy<double>(loss).backward(ctx, dy, loss_saved));
    (void)rank.model.backward(ctx, std::move(dlogits), saved);

    const std::lock_guard lock(mutex);
    for (const smp::Block& b : rank.layout().blocks()) {
      for (const auto& s : b.segments) {
        auto& whole = all.gradients[s.name];
        whole.resize(s.declaration->shape().elements());
        const bool once = s.declaration->cut().dim < 0 && !b.summed_over_tp;
        if (b.summed_over_tp && world.rank() == 0) all.summed.push_back(s.name);
        for (std::size_t i = s.begin; i < s.end && (!once || world.rank() == 0); ++i) {
          whole[s.declaration->global_index(i - s.begin)] += static_cast<const double*>(b.grad)[i];
        }
      }
    }
    if (world.rank() == 0) {
      all.loss = *std::as_const(y).local.data();
      all.activations = rank.memory[smp::MemoryUse::activation].peak;
    }
  });
  return all;
}

void same(const Found& one, const Found& many) {
  CHECK(many.loss == doctest::Approx(one.loss).epsilon(1e-13));
  REQUIRE(many.gradients.size() == one.gradients.size());
  for (const auto& [name, expected] : one.gradients) {
    CAPTURE(name);
    const auto& found = many.gradients.at(name);
    double largest = 0, worst = 0;
    for (const double g : expected) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(found[i] - expected[i]));
    CHECK(worst <= 1e-12 * largest + 1e-14);
  }
}

}  // namespace

TEST_CASE("a tied language model with dropout: loss and gradients do not depend on degree or layout") {
  const Found one = run<smp::Invariant>(1);
  CHECK(one.gradients.size() == 2 + 2 * 12 + 2);  // tied: one matrix for embedding and head
  for (const int ranks : {2, 3, 4}) {             // 13 tokens divide by none of them
    CAPTURE(ranks);
    const Found speed = run<smp::Invariant>(ranks);
    same(one, speed);
    CHECK(speed.summed.empty());
    const Found memory = run<smp::Shard<Dim::sequence>>(ranks);
    same(one, memory);
    // Norms, places, and the biases after the sums: what each rank applies to its own rows.
    CHECK(memory.summed.size() == 1 + 2 * (4 + 2) + 2);
    CHECK(memory.activations < speed.activations);
  }
}
