// Sequential, Repeat, Residual, Checkpointed, AsUnit: values, what they keep, how they name and divide a model.
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/parallel/sequential.hpp>

namespace {

using smp::Dist, smp::GradOf, smp::Ids, smp::MemoryUse, smp::Parameter64, smp::Shape, smp::Tensor64;

struct NoGroups {};
using Ctx = smp::Context<smp::HostStream, NoGroups>;

/// y = w * x * x, element by element: backward needs x and w, and the order of children matters.
struct Square {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    Tensor64 x{}, dy{};
    static constexpr auto fields() { return smp::fields(smp::field("x", &Saved::x), smp::field("dy", &Saved::dy)); }
  };
  Parameter64 weight{{1}, {smp::Init::Kind::normal, 1.0}};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Square::weight)); }

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved.x = x;
    Tensor64 y(ctx.memory(), x.shape());
    const double w = weight.value().data()[0];
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = w * x.data()[i] * x.data()[i];
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    GradOf<Input> dx = backward_input(ctx, dy, saved);
    backward_params(ctx, saved);
    return dx;
  }
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    saved.dy = dy;
    Tensor64 dx(ctx.memory(), dy.shape());
    const double w = weight.value().data()[0];
    for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = 2 * w * saved.x.data()[i] * dy.data()[i];
    return dx;
  }
  void backward_params(auto&, Saved& saved) {
    for (std::size_t i = 0; i < saved.x.size(); ++i) {
      weight.grad().data()[0] += saved.dy.data()[i] * saved.x.data()[i] * saved.x.data()[i];
    }
  }
};

/// x * u, u in [0, 1) drawn for each element: its backward draws again.
struct Noise {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    smp::RandomPosition position{};
  };
  smp::RandomSite site{};
  static constexpr auto fields() { return smp::fields(smp::field("site", &Noise::site)); }

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved.position = ctx.position;
    return times(ctx, x, saved.position);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) { return times(ctx, dy, saved.position); }

 private:
  Tensor64 times(auto& ctx, const Tensor64& x, const smp::RandomPosition& at) const {
    Tensor64 y(ctx.memory(), x.shape());
    const auto random = ctx.random(site, at);
    const std::size_t first = at.first_sample * x.size() / static_cast<std::size_t>(x.shape()[0]);
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] * random.uniform(first + i);
    return y;
  }
};

/// A model with storage for its parameters, and one pass through it.
template <class M>
struct Run {
  smp::Memory memory;
  smp::HostStream stream;
  NoGroups groups;
  Ctx ctx{stream, memory, groups, 7};
  M model;
  smp::Layout layout{model};
  std::vector<std::vector<double>> values, grads;
  typename M::Saved saved{};

  explicit Run(M m) : model(std::move(m)) {
    for (smp::Block& block : layout.blocks()) {
      values.emplace_back(block.size), grads.emplace_back(block.size);
      for (const auto& segment : block.segments) {
        const smp::RandomStream random{7, smp::stream_of(segment.name)};
        for (std::size_t i = segment.begin; i < segment.end; ++i) {
          values.back()[i] = segment.declaration->init().value(random, i - segment.begin);
        }
      }
    }
    for (smp::Block& block : layout.blocks()) {
      block.value = values[static_cast<std::size_t>(block.id)].data();
      block.grad = grads[static_cast<std::size_t>(block.id)].data();
    }
  }

  Tensor64 input() {
    Tensor64 x(memory, {2, 3});
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = 0.5 + 0.1 * static_cast<double>(i);
    return x;
  }
  Tensor64 ones(const Shape& shape) {
    Tensor64 t(memory, shape);
    for (double& v : t) v = 1;
    return t;
  }
  std::vector<double> gradients() const {
    std::vector<double> all;
    for (const auto& g : grads) all.insert(all.end(), g.begin(), g.end());
    return all;
  }
  /// Output, gradient of the input, gradients of the parameters.
  std::vector<double> pass(bool split = false) {
    for (auto& g : grads) std::fill(g.begin(), g.end(), 0.0);
    const Tensor64 x = input();
    const auto y = model.forward(ctx, x, saved);
    std::vector<double> all(y.begin(), y.end());
    Tensor64 dx;
    if (split) {
      dx = smp::backward_input(model, ctx, ones(y.shape()), saved);
      smp::backward_params(model, ctx, saved);
    } else {
      dx = model.backward(ctx, ones(y.shape()), saved);
    }
    saved = typename M::Saved{};
    all.insert(all.end(), std::as_const(dx).begin(), std::as_const(dx).end());
    const auto g = gradients();
    all.insert(all.end(), g.begin(), g.end());
    return all;
  }
  [[nodiscard]] std::size_t live() const { return memory[MemoryUse::activation].live; }
};

using Pair = smp::Sequential<Square, Square>;
smp::Repeat<Square> squares(std::size_t n) {
  return {n, [](std::size_t) { return Square{}; }};
}

}  // namespace

TEST_CASE("Sequential and Repeat are function composition, forward and backward") {
  Run<Pair> pair{Pair{}};
  const auto found = pair.pass();
  const double a = pair.values[0][0], b = pair.values[1][0];
  for (std::size_t i = 0; i < 6; ++i) {
    const double x = 0.5 + 0.1 * static_cast<double>(i);
    CHECK(found[i] == doctest::Approx(b * a * a * x * x * x * x).epsilon(1e-14));
    CHECK(found[6 + i] == doctest::Approx(4 * b * a * a * x * x * x).epsilon(1e-14));
  }
  Run<smp::Repeat<Square>> list{squares(2)};
  CHECK(list.pass() == found);  // the same names: "0.weight", "1.weight"
}

TEST_CASE("a residual adds its input, forward and backward; the branch's own result takes the sum") {
  Run<smp::Residual<Square>> run{smp::Residual<Square>{}};
  const auto found = run.pass();
  const double w = run.values[0][0];
  for (std::size_t i = 0; i < 6; ++i) {
    const double x = 0.5 + 0.1 * static_cast<double>(i);
    CHECK(found[i] == doctest::Approx(x + w * x * x).epsilon(1e-14));
    CHECK(found[6 + i] == doctest::Approx(1 + 2 * w * x).epsilon(1e-14));
  }
  const Tensor64 x = run.input();
  {
    run.memory.reset_peaks();
    const Tensor64 y = run.model.forward(run.ctx, x, run.saved);
    CHECK(run.memory[MemoryUse::activation].peak == 2 * 6 * sizeof(double));
  }
  const Tensor64 same = x;
  const Tensor64 sum = smp::sum_of(run.ctx, x, same);  // b is seen by others: a new tensor
  CHECK(same.data()[1] == 0.6);
  CHECK(sum.data()[1] == 1.2);
  CHECK_THROWS_WITH_AS((void)smp::sum_of(run.ctx, x, run.ones({2, 2})),
                       "smp: a residual adds 6 elements to 4: the branch has changed the size", smp::ConfigError);
}

TEST_CASE_TEMPLATE("the split backward gives the bits of the whole one, and leaves nothing behind", M, Pair,
                   smp::Residual<Pair>, smp::Checkpointed<Pair>, smp::Sequential<smp::Residual<Square>, Noise, Square>,
                   smp::Checkpointed<smp::Sequential<Square, smp::Checkpointed<Noise>>>, smp::AsUnit<Pair>,
                   smp::Repeat<smp::Checkpointed<smp::Residual<Square>>>) {
  const auto make = [] {
    if constexpr (requires { M{3, [](std::size_t) { return smp::Checkpointed<smp::Residual<Square>>{}; }}; }) {
      return M{3, [](std::size_t) { return smp::Checkpointed<smp::Residual<Square>>{}; }};
    } else {
      return M{};
    }
  };
  Run<M> whole{make()}, split{make()};
  CHECK(whole.pass() == split.pass(true));
  CHECK(whole.pass() == split.pass(true));  // also when Saved is used again
  CHECK(whole.live() == 0);
  CHECK(split.live() == 0);
}

TEST_CASE("what a child has saved is freed when its backward is done") {
  Run<smp::Repeat<Square>> run{squares(4)};
  const std::size_t one = 6 * sizeof(double);
  const Tensor64 x = run.input();
  Tensor64 y = run.model.forward(run.ctx, x, run.saved);
  CHECK(run.live() == 5 * one);  // x, three values between the elements, y
  run.memory.reset_peaks();
  (void)run.model.backward(run.ctx, run.ones(y.shape()), run.saved);
  // at its peak, with the last element: all those, dy and dx; the inner values go as backward goes
  CHECK(run.memory[MemoryUse::activation].peak == 7 * one);
  CHECK(run.live() == 2 * one);  // x and y, which are ours
}

TEST_CASE("Checkpointed keeps one input, gives the same bits with the same random numbers, at any position") {
  using Layer = smp::Sequential<Square, Noise, Square>;
  const std::size_t one = 6 * sizeof(double);
  for (const bool enabled : {false, true}) {
    Run<Layer> plain{Layer{}};
    Run<smp::Checkpointed<Layer>> always{smp::Checkpointed<Layer>{}};
    Run<smp::Checkpointed<Layer, smp::dynamic>> chosen{smp::Checkpointed<Layer, smp::dynamic>{Layer{}, enabled}};
    plain.ctx.position = always.ctx.position = chosen.ctx.position = {3, 14};
    CHECK(plain.pass() == always.pass());
    CHECK(plain.pass() == chosen.pass());
    CHECK(chosen.model.enabled() == enabled);

    Run<smp::Checkpointed<Layer>>& run = always;
    const Tensor64 x = run.input();
    (void)run.model.forward(run.ctx, x, run.saved);
    CHECK(run.live() == one);
    CHECK(x.handles() == 2);
    // Another micro-batch has come in between.
    run.ctx.position = {3, 20};
    (void)run.model.backward(run.ctx, run.ones({2, 3}), run.saved);
    CHECK(run.ctx.position.first_sample == 20);
    CHECK(run.live() == one);
    CHECK(x.handles() == 1);
  }
}

TEST_CASE("random numbers belong to the place, the step and the sample") {
  Run<smp::Sequential<Noise, Noise>> run{smp::Sequential<Noise, Noise>{}};
  const auto draw = [&](std::uint64_t step, std::uint64_t first, std::int64_t row, std::int64_t rows) {
    run.ctx.position = {step, first};
    Tensor64 y = run.model.forward(run.ctx, run.input().slice(row, rows), run.saved);
    return std::vector<double>(std::as_const(y).begin(), std::as_const(y).end());
  };
  const auto both = draw(5, 8, 0, 2);
  const auto first = draw(5, 8, 0, 1), second = draw(5, 9, 1, 1);
  CHECK(std::vector<double>(both.begin(), both.begin() + 3) == first);
  CHECK(std::vector<double>(both.begin() + 3, both.end()) == second);
  CHECK(draw(6, 8, 0, 2) != both);
  CHECK(run.model.child<0>().site.stream != run.model.child<1>().site.stream);
}

namespace {

/// Typed: takes and gives values that are equal on all ranks.
struct Typed {
  using Input = Dist<Tensor64, smp::Invariant>;
  using Output = Dist<Tensor64, smp::Invariant>;
  using Saved = Square::Saved;
  Square square{};
  static constexpr auto fields() { return smp::fields(smp::field("square", &Typed::square)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return {square.forward(ctx, x.local, saved)}; }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return {square.backward(ctx, dy.local, saved)};
  }
};
/// With ids beside the tensor.
struct Masked {
  using Input = std::tuple<Tensor64, Ids>;
  using Output = std::tuple<Tensor64, Ids>;
  using Saved = Square::Saved;
  Square square{};
  static constexpr auto fields() { return smp::fields(smp::field("square", &Masked::square)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    return {square.forward(ctx, std::get<0>(x), saved), std::get<1>(x)};
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return {square.backward(ctx, std::get<0>(dy), saved), smp::NoGrad{}};
  }
};
struct Slices : Square {
  static constexpr bool works_on_slices_of(smp::Dim) { return true; }
};
struct TakesMasked : Masked {
  using Input = std::tuple<Dist<Tensor64, smp::Varying>, Ids>;
  using Output = Input;
};

template <class M, class In, class Out = In>
constexpr bool has_types = std::is_same_v<typename M::Input, In> && std::is_same_v<typename M::Output, Out>;
static_assert(has_types<Pair, Tensor64>);
static_assert(has_types<smp::Sequential<Square, Typed>, Dist<Tensor64>>);
static_assert(has_types<smp::Sequential<Square, Typed, Square>, Dist<Tensor64>>);
static_assert(has_types<smp::Repeat<Typed>, Dist<Tensor64>>);
static_assert(has_types<smp::Sequential<Masked, TakesMasked>, std::tuple<Dist<Tensor64, smp::Varying>, Ids>>);
static_assert(smp::is_plain<Masked> && !smp::is_plain<TakesMasked>);
static_assert(smp::SplitBackward<Pair, Ctx> && smp::SplitBackward<smp::Checkpointed<Typed>, Ctx>);
static_assert(smp::SplitBackward<smp::Residual<Square>, Ctx> && smp::SplitBackward<smp::Repeat<Square>, Ctx>);
static_assert(smp::expect_takes<Slices, smp::Tags<smp::Shard<smp::Dim::features>>>());
static_assert(smp::expect_takes<Square, smp::Tags<smp::Shard<smp::Dim::batch>>>());

}  // namespace

TEST_CASE("a plain module takes the distribution of the typed ones around it, and the numbers are the same") {
  using Mixed = smp::Sequential<Square, Typed, Square>;
  Run<smp::Sequential<Square, Square, Square>> plain{smp::Sequential<Square, Square, Square>{}};
  Run<Mixed> mixed{Mixed{}};
  for (std::size_t b = 0; b < 3; ++b) mixed.values[b] = plain.values[b];
  const auto expected = plain.pass();
  const auto y = mixed.model.forward(mixed.ctx, {mixed.input()}, mixed.saved);
  const auto dx = mixed.model.backward(mixed.ctx, {mixed.ones(y.local.shape())}, mixed.saved);
  std::vector<double> found(y.local.begin(), y.local.end());
  found.insert(found.end(), dx.local.begin(), dx.local.end());
  const auto g = mixed.gradients();
  found.insert(found.end(), g.begin(), g.end());
  CHECK(found == expected);
}

TEST_CASE("masks go beside tensors through every container") {
  using M = smp::Sequential<smp::Residual<Masked>, smp::Checkpointed<Masked>>;
  Run<M> run{M{}};
  const Ids mask(run.memory, {2});
  const auto [y, passed] = run.model.forward(run.ctx, {run.input(), mask}, run.saved);
  CHECK(passed.data() == mask.data());
  const auto [dx, none] = run.model.backward(run.ctx, {run.ones({2, 3}), smp::NoGrad{}}, run.saved);
  const double a = run.values[0][0], b = run.values[1][0];
  const double x = 0.5, h = x + a * x * x;
  CHECK(y.data()[0] == doctest::Approx(b * h * h).epsilon(1e-14));
  CHECK(dx.data()[0] == doctest::Approx(2 * b * h * (1 + 2 * a * x)).epsilon(1e-14));
}

TEST_CASE("names have no trace of wrappers; units are the elements, and what is marked") {
  using Stack = smp::Sequential<Square, smp::Repeat<smp::Checkpointed<smp::Residual<Pair>>>, smp::Checkpointed<Square>>;
  const auto stack = [] {
    return Stack{Square{}, {2, [](std::size_t) { return smp::Checkpointed<smp::Residual<Pair>>{}; }}, {}};
  };
  Run<Stack> run{stack()};
  std::string names, units;
  for (const smp::Unit& unit : run.layout.units()) units += unit.path + ",";
  for (const smp::Block& block : run.layout.blocks()) {
    for (const auto& segment : block.segments) names += segment.name + ",";
  }
  CHECK(names == "0.weight,1.0.0.weight,1.0.1.weight,1.1.0.weight,1.1.1.weight,2.weight,");
  CHECK(units == ",0,1.0,1.1,2,");

  struct ByHand {
    smp::AsUnit<Square> first{};
    Square second{};
    static constexpr auto fields() {
      return smp::fields(smp::field("first", &ByHand::first), smp::field("second", &ByHand::second));
    }
  } by_hand;
  smp::Layout layout(by_hand);
  CHECK(layout.units().size() == 2);
  CHECK(layout.units()[1].path == "first");
  CHECK(by_hand.first.unit == &layout.units()[1]);
}
