// Compositions that the compiler puts together, each against its twin that is put together when the program runs: the
// same code, so the same bits. A small language model in double precision, two micro-batches, three steps.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/self.hpp>
#include <smp/nn/cross_entropy.hpp>
#include <smp/nn/embedding.hpp>
#include <smp/nn/layer_norm.hpp>
#include <smp/nn/lm_head.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/optim/any.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/topology.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

namespace {

using smp::Checkpointed, smp::Repeat, smp::Sequential;
using namespace smp::optim;

constexpr std::int64_t vocabulary = 11, width = 8, heads = 2, places = 5, samples = 4;
const smp::nn::TransformerOptions options{.dropout = 0.25, .layers = 2};

using Block = smp::nn::TransformerBlock<double>;
using Tokens = smp::nn::Embedding<double, smp::nn::Tie::wte>;
using Norm = smp::nn::LayerNorm<double>;
using Head = smp::nn::LmHead<double, smp::nn::Tie::wte>;

/// The middle of the model, in each way to write it.
template <class Element>
Element element() {
  return Element(Block(width, heads, options));
}
template <class Element>
Repeat<Element> repeated() {
  return {2, [](std::size_t) { return element<Element>(); }};
}
struct Plain {
  static auto make() { return repeated<Block>(); }
};
struct Elements {
  static auto make() { return repeated<Checkpointed<Block>>(); }
};
struct Stack {
  static auto make() { return Checkpointed<Repeat<Block>>(repeated<Block>()); }
};
struct Both {
  static auto make() { return Checkpointed<Repeat<Checkpointed<Block>>>(repeated<Checkpointed<Block>>()); }
};
struct Switched {  // with the switches that the compiler sets
  static auto make() { return Checkpointed<Repeat<Checkpointed<Block, 1>>, 0>(repeated<Checkpointed<Block, 1>>()); }
};
struct Written {  // one after the other, without a repetition
  static auto make() {
    return Sequential<Checkpointed<Block>, Block>(element<Checkpointed<Block>>(), element<Block>());
  }
};

/// The twin: everything is said at run time.
using Middle = Checkpointed<Repeat<Checkpointed<Block, smp::dynamic>>, smp::dynamic>;
Middle twin(bool elements, bool stack) {
  return {{2, [&](std::size_t) { return Checkpointed<Block, smp::dynamic>(Block(width, heads, options), elements); }},
          stack};
}

/// Losses of three steps, then all parameters.
template <class M, class Opt>
std::vector<double> train(M middle, const Opt& optimizer) {
  using Model = Sequential<Tokens, M, Norm, Head>;
  smp::Worker worker(smp::comm::Self(), smp::Topology<smp::Degrees{}>(), 5);
  auto ctx = worker.context();
  smp::DataParallel<Model, Opt> trainer(
      ctx, Model(Tokens(vocabulary, width), std::move(middle), Norm(width), Head(width, vocabulary)), optimizer,
      {.clip = 0.5});
  smp::Ids ids(ctx.memory(), {samples, places}), next(ctx.memory(), {samples, places});
  std::vector<double> results;
  for (int s = 0; s < 3; ++s) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids.data()[i] = static_cast<std::int32_t>((7 * i + i * i) % vocabulary);
      next.data()[i] = static_cast<std::int32_t>((3 * i + 1) % vocabulary);
    }
    const auto loss = smp::step(ctx, trainer, smp::nn::CrossEntropy<double>(), ids, next, {.microbatches = 2});
    results.push_back(loss.mean());
    results.push_back(trainer.step(ctx, 0.01));
  }
  trainer.for_each_parameter([&](std::string_view, const smp::Shape&, auto values, auto) {
    results.insert(results.end(), values.begin(), values.end());
  });
  return results;
}

/// Six compositions, each of which the compiler knows.
template <class Opt>
void compare(const Opt& optimizer) {
  const Any any(optimizer);
  const auto plain = train(Plain::make(), optimizer);
  CHECK(plain.size() == 6 + vocabulary * width + 2 * (12 * width * width + 13 * width) + 2 * width);
  CHECK(plain[4] != plain[0]);  // something is learnt
  CHECK(plain == train(twin(false, false), any));
  const auto elements = train(Elements::make(), optimizer);
  CHECK(elements == train(twin(true, false), any));
  CHECK(train(Stack::make(), optimizer) == train(twin(false, true), any));
  CHECK(train(Both::make(), optimizer) == train(twin(true, true), any));
  CHECK(train(Switched::make(), optimizer) == elements);
  CHECK(train(Written::make(), optimizer) == plain);
  CHECK(elements == plain);  // checkpointing changes no bit, dropout included
}

}  // namespace

TEST_CASE("6 models x 4 optimizers give the bits of their run-time twins") {
  compare(AdamW({.weight_decay = 0.1}));
  compare(Adam({.weight_decay = 0.1}));
  compare(Sgd{.momentum = 0.9, .weight_decay = 0.1});
  compare(AdaDelta{});
}
