// Faults that other systems had with tensor parallelism, with the right values: biases that are added on each rank,
// heads that do not divide, initial values of a shard, replicated parameters that drift, dropout masks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/vocabulary_cross_entropy.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/equal_copies.hpp>
#include <smp/parallel/lifted.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/testing/check_parts.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

namespace {

using smp::Dim, smp::Dist, smp::GradOf, smp::Group, smp::Ids, smp::Shape, smp::Split, smp::Tensor64;
using namespace smp::nn;
using smp::testing::OneRank;
using L = Linear<double>;
using Rows = smp::Shard<Dim::sequence>;
using Ctx = smp::Context<smp::HostStream, const smp::testing::TpGroup>;

Tensor64 filled(smp::Memory& memory, const Shape& shape, double value) {
  Tensor64 t(memory, shape);
  std::fill(t.begin(), t.end(), value);
  return t;
}
/// Sets all parameters of a module to `f(name, place in the whole parameter)`.
template <class M, class F>
void set(OneRank<M>& rank, F f) {
  for (const smp::Block& b : rank.layout().blocks()) {
    for (const auto& s : b.segments) {
      auto* values = static_cast<double*>(b.value) + s.begin;
      for (std::size_t i = 0; i < s.end - s.begin; ++i) values[i] = f(s.name, s.declaration->global_index(i));
    }
  }
}
/// All parameters of all ranks of TP, by name, put together by their places.
std::map<std::string, std::vector<double>> whole_values(smp::Layout& layout, smp::comm::Threads& world) {
  static std::mutex mutex;
  static std::map<std::string, std::vector<double>> all;
  smp::HostStream stream;
  world.barrier(stream);
  if (world.rank() == 0) all.clear();
  world.barrier(stream);
  {
    const std::lock_guard lock(mutex);
    for (const smp::Block& b : layout.blocks()) {
      for (const auto& s : b.segments) {
        auto& v = all[s.name];
        v.resize(s.declaration->shape().elements());
        for (std::size_t i = 0; i < s.end - s.begin; ++i) {
          v[s.declaration->global_index(i)] = static_cast<const double*>(b.value)[s.begin + i];
        }
      }
    }
  }
  world.barrier(stream);
  return all;
}

}  // namespace

TEST_CASE("case 35: the bias of a row-cut layer counts once, forward and backward") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
      using Cut = smp::TensorParallel<L, Split::rows>;
      OneRank<Cut> rank(Cut(L(8, 2), world.rank(), ranks));
      set(rank, [](const std::string& name, std::size_t) { return name == "bias" ? 0.5 : 0.25; });
      const smp::testing::TpGroup groups{world};
      Ctx ctx(rank.stream, rank.memory, groups, 1);
      Cut::Saved saved{};
      const auto y = rank.model.forward(ctx, {filled(rank.memory, {3, 8}, 0)}, saved);
      for (const double v : y.local) CHECK(v == 0.5);
      (void)rank.model.backward(ctx, {filled(rank.memory, {3, 2}, 1)}, saved);
      for (const smp::Block& b : rank.layout().blocks()) {
        for (const auto& s : b.segments) {
          if (s.name == "bias") CHECK(static_cast<const double*>(b.grad)[s.begin] == 3);
        }
      }
    });
  }
}

TEST_CASE("case 37: heads that do not divide are a sentence with both numbers and the legal degrees") {
  const auto refuses = [](std::int64_t width, std::int64_t heads, int ranks, const char* sentence) {
    CHECK_THROWS_WITH_AS((smp::TensorParallel<Attention<double>>({width, heads}, 0, ranks)), sentence,
                         smp::ConfigError);
  };
  refuses(50, 25, 4,
          "smp: an attention of 25 heads cannot be cut over 4 ranks; tensor-parallel degrees that can: 1, 5, 25");
  refuses(
      24, 12, 8,
      "smp: an attention of 12 heads cannot be cut over 8 ranks; tensor-parallel degrees that can: 1, 2, 3, 4, 6, 12");
  CHECK_THROWS_WITH_AS((Attention<double>(10, 3)),
                       "smp: nn::Attention: a width of 10 cannot be divided into 3 equal heads", smp::ConfigError);
}

TEST_CASE("case 37: 50257 tokens on 4 ranks: no rows are added, and loss and gradients are those of one rank") {
  constexpr std::int64_t vocabulary = 50257;
  struct Found {
    double loss = 0;
    std::vector<double> dx;
    std::int64_t classes = 0;
    std::size_t saved_rows = 0;
  };
  const auto run = [](int ranks) {
    std::vector<Found> all(static_cast<std::size_t>(ranks));
    smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
      using Head = smp::TensorParallel<LmHead<double, Tie::none>>;
      OneRank<Head> rank(Head({2, vocabulary}, world.rank(), ranks));
      set(rank, [](const std::string&, std::size_t i) { return std::sin(static_cast<double>(i)); });
      const smp::testing::TpGroup groups{world};
      Ctx ctx(rank.stream, rank.memory, groups, 1);
      VocabularyCrossEntropy<double> loss{vocabulary};
      Ids targets(rank.memory, {3});
      const std::int32_t classes[] = {0, 50256, 25000};
      std::copy_n(classes, 3, targets.data());
      Head::Saved saved{};
      VocabularyCrossEntropy<double>::Saved loss_saved{};
      auto logits = rank.model.forward(ctx, {smp::testing::numbers(rank.memory, {3, 2}, 1)}, saved);
      Found& found = all[static_cast<std::size_t>(world.rank())];
      found.classes = logits.local.shape()[-1];
      const auto y = loss.forward(ctx, {std::move(logits), targets}, loss_saved);
      auto dy = loss.backward(ctx, {filled(rank.memory, {}, 1)}, loss_saved);
      const auto dx = rank.model.backward(ctx, std::get<0>(std::move(dy)), saved);
      found.loss = *std::as_const(y).local.data();
      found.dx.assign(dx.local.begin(), dx.local.end());
      for (const smp::Block& b : rank.layout().blocks()) found.saved_rows = b.size / 2;
    });
    return all;
  };
  const auto one = run(1), four = run(4);
  std::size_t rows = 0;
  for (std::size_t r = 0; r < 4; ++r) {
    CHECK(four[r].classes == (r < 3 ? 12565 : 12562));  // what there is: nothing that could win or be saved
    rows += four[r].saved_rows;
    CHECK(four[r].loss == doctest::Approx(one[0].loss).epsilon(1e-13));
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::abs(four[r].dx[i] - one[0].dx[i]) < 1e-13);
  }
  CHECK(rows == vocabulary);
}

TEST_CASE("case 38: initial weights do not depend on the degree: 64 -> 64, rows and columns, seed 7") {
  const auto initial = []<Split S>(int ranks) {
    std::map<std::string, std::vector<double>> all;
    smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
      OneRank<smp::TensorParallel<L, S>> rank({L(64, 64), world.rank(), ranks}, 7);
      auto values = whole_values(rank.layout(), world);
      if (world.rank() == 0) all = std::move(values);
    });
    return all;
  };
  const auto whole = initial.operator()<Split::rows>(1);
  CHECK(whole.at("weight").size() == 4096);
  double squares = 0;
  for (const double w : whole.at("weight")) squares += w * w;
  CHECK(std::sqrt(squares / 4096) == doctest::Approx(1 / std::sqrt(3.0 * 64)).epsilon(0.02));  // fan-in of the whole
  for (const int ranks : {1, 2, 4}) {
    CHECK(initial.operator()<Split::rows>(ranks) == whole);  // in every bit
    CHECK(initial.operator()<Split::columns>(ranks) == whole);
  }
}

// ---- case 39: a norm on slices of the sequence, and a scale that all heads of a cut layer have in common
namespace {

struct Heads {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    L::Saved up, down;
    Tensor64 values;
    static constexpr auto fields() {
      return smp::fields(smp::field("up", &Saved::up), smp::field("down", &Saved::down),
                         smp::field("values", &Saved::values));
    }
  };
  static constexpr std::size_t head = 2;  // numbers of a head
  L up{4, 8, Bias::no}, down{8, 4};
  smp::ParameterOf<double> scale{{static_cast<std::int64_t>(head)}, {smp::Init::Kind::ones}};
  static constexpr auto fields() {
    return smp::fields(smp::field("up", &Heads::up), smp::field("down", &Heads::down),
                       smp::field("scale", &Heads::scale));
  }
  Tensor64 scaled(auto& ctx, const Tensor64& x) const {
    Tensor64 y(ctx.memory(), x.shape());
    const auto s = scale.value();
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = x.data()[i] * s.data()[i % head];
    return y;
  }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved.values = up.forward(ctx, x, saved.up);
    return down.forward(ctx, scaled(ctx, saved.values), saved.down);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const Tensor64 d = down.backward(ctx, dy, saved.down);
    auto ds = scale.grad();
    for (std::size_t i = 0; i < d.size(); ++i) {
      ds.data()[i % head] += d.data()[i] * std::as_const(saved.values).data()[i];
    }
    return up.backward(ctx, scaled(ctx, d), saved.up);
  }
};

}  // namespace

template <>
struct smp::TensorParallelTraits<Heads, Split::usual> {
  using input = Replicated;
  using output = Partial;
  using After = InPlaceOf<&Heads::down, nn::AddBias<double>>;
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &Heads::up, &L::weight), cut(0, &Heads::up, &L::bias), cut(1, &Heads::down, &L::weight),
                     once(&Heads::down, &L::bias), in_each(&Heads::scale));
  }
  static After after(const Heads& whole) { return {{whole.down.bias}}; }
};

TEST_CASE("case 39: replicated weights stay equal in every bit over tp, and are those of one rank, after 5 steps") {
  for (const int ranks : {2, 4}) {
    const auto found = smp::testing::check_parts(Heads(), {2, 4, 4}, ranks);
    CHECK_MESSAGE(found.relative < 1e-13, found.where);
  }
  using Model = smp::Sequential<LayerNorm<double>, smp::TensorParallel<Heads, Split::usual, Rows>,
                                smp::Move<Tensor64, Rows, smp::Invariant>>;
  const auto train = [](int ranks, const smp::AnyStrategyOptions& options) {
    std::map<std::string, std::vector<double>> all;
    smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
      smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(ranks, {.tp = ranks})), 3);
      auto ctx = worker.context();
      smp::AnyStrategy trainer(ctx, Model(LayerNorm<double>(4), {Heads(), world.rank(), ranks}, {}),
                               smp::optim::AdamW{}, options);
      smp::Lifted<CrossEntropy<double>, smp::Invariant> loss;
      const Dist<Tensor64, smp::Invariant> all_rows{smp::testing::numbers(ctx.memory(), {2, 4, 4}, 5)};
      Ids targets(ctx.memory(), {2, 4});
      for (int i = 0; i < 8; ++i) targets.data()[i] = i % 4;
      const auto x = smp::move_to<Rows>(ctx, all_rows);
      for (int step = 0; step < 5; ++step) {
        typename Model::Saved saved{};
        CrossEntropy<double>::Saved loss_saved{};
        const auto y = loss.forward(ctx, {trainer.forward(ctx, x, saved), targets}, loss_saved);
        auto dy = loss.backward(ctx, {filled(ctx.memory(), {}, 1)}, loss_saved);
        (void)trainer.backward(ctx, std::get<0>(std::move(dy)), saved);
        trainer.step(ctx, 0.01);
        smp::expect_equal_copies(ctx, trainer);
      }
      auto values = whole_values(trainer.layout(), world);
      if (world.rank() == 0) all = std::move(values);
      // The control: one bit of one rank.
      if (ranks == 1) return;
      for (const smp::Block& b : trainer.layout().blocks()) {
        if (world.rank() == 1 && b.summed_over_tp) static_cast<double*>(b.value)[0] += 1e-15;
      }
      CHECK_THROWS_WITH_AS(smp::expect_equal_copies(ctx, trainer),
                           doctest::Contains("rank 1 of the TP group has other values of "), smp::ConfigError);
    });
    return all;
  };
  const auto one = train(1, smp::DataParallelOptions{});
  CHECK(one.size() == 6);
  CHECK(std::abs(one.at("1.scale")[0] - 1) > 1e-3);  // it has learnt
  for (const int ranks : {2, 4}) {
    const auto found = train(ranks, smp::DataParallelOptions{});
    for (const auto& [name, values] : found) {
      CAPTURE(name);
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(values[i] - one.at(name)[i]) < 1e-12);
    }
    CHECK(train(ranks, smp::ShardedOptimizerOptions{}) == found);
  }
}

TEST_CASE("case 39 with interleaved chunks: two stages on each rank, with and without a sharded optimizer") {
  using Cut = smp::TensorParallel<Heads, Split::usual, Rows>;
  using Net = smp::Sequential<smp::Move<Tensor64, smp::Invariant, Rows>, LayerNorm<double>, Cut, LayerNorm<double>, Cut,
                              smp::Move<Tensor64, Rows, smp::Invariant>>;
  using Model = smp::Pipeline<smp::Schedule::Looped<2>, Net>;
  constexpr std::int64_t samples = 8, places = 4;
  using Values = std::map<std::string, std::vector<double>>;
  const auto train = [](const smp::Degrees& degrees, const smp::AnyStrategyOptions& options, const Values* one) {
    Values all;  // of a single rank
    smp::comm::launch(degrees.pp * degrees.tp * degrees.rdp, [&](smp::comm::Threads& world) {
      smp::Worker worker(world, smp::DynamicTopology(degrees), 3);
      auto ctx = worker.context();
      auto& tp = worker.groups()[Group::tp];
      const Cut cut(Heads(), tp.rank(), tp.size());
      smp::AnyStrategy trainer(ctx, Model(ctx, Net({}, LayerNorm<double>(4), cut, LayerNorm<double>(4), cut, {})),
                               smp::optim::AdamW{}, options);
      const auto& rdp = worker.groups()[Group::rdp];
      const smp::SampleRange own = smp::microbatch(samples, rdp.size(), rdp.rank());
      const Tensor64 batch = smp::testing::numbers(ctx.memory(), {samples, places, 4}, 5);
      const Dist<Tensor64, smp::Invariant> x{smp::batch_slice(batch, own)};
      Ids targets(ctx.memory(), {own.size(), places});
      for (std::size_t i = 0; i < targets.size(); ++i) targets.data()[i] = static_cast<std::int32_t>(i % 4);
      for (int step = 0; step < 5; ++step) {
        (void)smp::step(ctx, trainer, smp::Lifted<CrossEntropy<double>, smp::Invariant>{}, x, targets,
                        {.microbatches = 4, .prescaled = true});
        trainer.step(ctx, 0.01);
        smp::expect_equal_copies(ctx, trainer);
      }
      std::size_t found = 0;
      for (smp::Block& block : trainer.layout().blocks()) {
        trainer.with_values(ctx, block, [&](const smp::Block& b) {
          for (const auto& s : b.segments) {
            const auto* v = static_cast<const double*>(b.value) + s.begin;
            if (one == nullptr) all[s.name].assign(v, v + (s.end - s.begin));
            if (one == nullptr || s.begin == s.end) continue;
            ++found;
            CAPTURE(s.name);
            const auto& whole = one->at(s.name);
            for (std::size_t i = 0; i < s.end - s.begin; ++i) {
              CHECK(std::abs(v[i] - whole[s.declaration->global_index(i)]) < 1e-12);
            }
          }
        });
      }
      if (one != nullptr) CHECK((found == 4 || found == 8));  // norms, or layers with a scale
    });
    return all;
  };
  const Values one = train({}, smp::DataParallelOptions{}, nullptr);
  CHECK(one.size() == 12);
  CHECK(std::abs(one.at("4.scale")[0] - 1) > 1e-3);  // it has learnt
  for (const smp::Degrees degrees : {smp::Degrees{.pp = 2, .tp = 2}, smp::Degrees{.pp = 2, .tp = 2, .rdp = 2}}) {
    (void)train(degrees, smp::DataParallelOptions{}, &one);
    (void)train(degrees, smp::ShardedOptimizerOptions{.bucket_bytes = 100}, &one);
  }
}

TEST_CASE(
    "a slice of the rows of all samples is not cut into micro-batches, which would be other samples on each rank") {
  using Net = smp::Sequential<LayerNorm<double>, smp::TensorParallel<Heads, Split::usual, Rows>,
                              smp::Move<Tensor64, Rows, smp::Invariant>>;
  smp::comm::launch(2, [](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::DynamicTopology(smp::Degrees{.tp = 2}), 3);
    auto ctx = worker.context();
    smp::DataParallel trainer(ctx, Net(LayerNorm<double>(4), {Heads(), world.rank(), 2}, {}), smp::optim::AdamW{});
    const Dist<Tensor64, smp::Invariant> whole{smp::testing::numbers(ctx.memory(), {8, 4, 4}, 5)};
    const auto x = smp::move_to<Rows>(ctx, whole);
    Ids targets(ctx.memory(), {8, 4});
    for (int i = 0; i < 32; ++i) targets.data()[i] = i % 4;
    const auto train = [&](int microbatches) {
      return smp::step(ctx, trainer, smp::Lifted<CrossEntropy<double>, smp::Invariant>{}, x, targets,
                       {.microbatches = microbatches, .prescaled = true})
          .mean();
    };
    CHECK(train(1) > 0);
    CHECK_THROWS_WITH_AS(train(8),
                         "smp: each tensor-parallel rank has a slice of the rows of all samples "
                         "(Shard<Dim::sequence>), which cannot be cut into micro-batches; let the model begin with "
                         "whole samples and slice them itself, with a Move",
                         smp::ConfigError);
  });
}

// ---- case 40: dropout of 64 values at three places, tp 2 x dp 2
namespace {

/// What is dropped of 64 values of a sample, or of each of two heads: of all of the tensor-parallel ranks together.
struct Masks {
  std::string replicated, rows, own_rows;
  std::vector<std::string> heads;
};
std::string zeros(const Tensor64& t, std::int64_t first, std::int64_t columns) {
  std::string mask;
  for (std::size_t i = 0; i < t.size(); ++i) {
    const std::int64_t column = static_cast<std::int64_t>(i) % t.shape()[-1];
    if (column >= first && column < first + columns) mask += std::abs(t.data()[i]) < 1e-12 ? '0' : '1';
  }
  return mask;
}

template <int Tp>
std::vector<Masks> masks() {
  std::vector<Masks> all(2 * Tp);
  smp::comm::launch(2 * Tp, [&](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::Topology<smp::Degrees{.tp = Tp, .rdp = 2}>(), 9);
    auto ctx = worker.context();
    auto& tp = worker.groups()[Group::tp];
    ctx.position = {4, static_cast<std::uint64_t>(worker.groups()[Group::rdp].rank())};  // one sample each
    Masks& m = all[static_cast<std::size_t>(world.rank())];

    OneRank<smp::Lifted<Dropout<double>, smp::Invariant>> same(
        smp::Lifted<Dropout<double>, smp::Invariant>(Dropout<double>(0.5)));
    OneRank<smp::Lifted<Dropout<double>, Rows>> cut(smp::Lifted<Dropout<double>, Rows>(Dropout<double>(0.5)));
    Dropout<double>::Saved saved{};
    const Dist<Tensor64, smp::Invariant> ones{filled(ctx.memory(), {1, 8, 8}, 1)};
    m.replicated = zeros(same.model.forward(ctx, ones, saved).local, 0, 8);
    const auto slice = cut.model.forward(ctx, smp::move_to<Rows>(ctx, ones), saved);
    m.own_rows = zeros(slice.local, 0, 8);
    m.rows = zeros(smp::move_to<smp::Invariant>(ctx, slice).local, 0, 8);

    // Queries and keys are zero, the value of key j is the unit vector j: what comes out is the row of probabilities.
    using Cut = smp::TensorParallel<Attention<double>>;
    OneRank<Cut> attention(Cut(Attention<double>(16, 2, {.causal = false, .dropout = 0.5}), tp.rank(), Tp));
    set(attention, [](const std::string& name, std::size_t i) {
      const std::size_t row = i / 16, column = i % 16;
      if (name == "c_attn.weight") return row >= 32 && (row - 32) % 8 == column ? 1.0 : 0.0;
      return name == "c_proj.weight" && row == column ? 1.0 : 0.0;
    });
    Dist<Tensor64, smp::Invariant> x{filled(ctx.memory(), {1, 8, 16}, 0)};
    for (std::size_t j = 0; j < 8; ++j) x.local.data()[j * 16 + j] = 1;
    Cut::Saved kept{};
    // Without the dropout of the output.
    attention.model.part().resid_dropout.probability = 0;
    attention.model.parts([]<class Part>(Part& part, auto) {
      if constexpr (requires { part.dropout.probability; }) part.dropout.probability = 0;
    });
    const Tensor64 y = attention.model.forward(ctx, x, kept).local;
    m.heads = {zeros(y, 0, 8), zeros(y, 8, 8)};
  });
  return all;
}

}  // namespace

TEST_CASE("case 40: dropout masks agree where they must, differ where they must, and do not depend on the degree") {
  const auto two = masks<2>(), one = masks<1>();
  const auto half = [](const std::string& mask) {
    const auto kept = std::count(mask.begin(), mask.end(), '1');
    return kept > 16 && kept < 48;
  };
  for (std::size_t dp = 0; dp < 2; ++dp) {
    const Masks &a = two[2 * dp], &b = two[2 * dp + 1], &whole = one[dp];
    CHECK(a.replicated.size() == 64);
    CHECK(half(a.replicated));
    CHECK(a.replicated == b.replicated);  // (a) one computation, repeated
    CHECK(a.own_rows.size() == 32);
    CHECK(a.own_rows != b.own_rows);  // (c) other rows
    CHECK(a.rows == b.rows);
    CHECK(a.heads[0].size() == 64);
    CHECK(half(a.heads[0]));
    CHECK(a.heads[0] != a.heads[1]);  // (b) other heads, on other ranks
    CHECK(whole.replicated == a.replicated);
    CHECK(whole.rows == a.rows);
    CHECK(whole.heads == a.heads);
  }
  CHECK(two[0].replicated != two[2].replicated);
  CHECK(two[0].rows != two[2].rows);
  CHECK(two[0].heads[0] != two[2].heads[0]);
}
