// How batches are cut, what a step tells modules, and what micro-batches return.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/self.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::GradOf, smp::Ids, smp::SampleRange, smp::Shape, smp::StepOutput;
using Values = smp::TensorOf<double>;

Values counted(smp::Memory& memory, const Shape& shape, double first = 0) {
  Values v(memory, shape);
  for (std::size_t i = 0; i < v.size(); ++i) v.data()[i] = first + static_cast<double>(i);
  return v;
}
std::vector<double> list(const Values& v) { return {v.begin(), v.end()}; }

struct Masked {
  Values x;
  Ids mask;
  int layers = 0;  // no tensor: stays with every part
  static constexpr auto fields() { return smp::fields(smp::field("x", &Masked::x), smp::field("mask", &Masked::mask)); }
};

/// y = w x; writes down what it is told.
struct Told {
  struct Call {
    std::uint64_t step, first_sample;
    std::int64_t rows;
    bool training, last;
    friend bool operator==(const Call&, const Call&) = default;
  };
  using Input = Values;
  using Output = Values;
  using Saved = Values;
  smp::ParameterOf<double> w{{1}, {smp::Init::Kind::ones}};
  std::vector<Call>* calls;
  explicit Told(std::vector<Call>* c) : calls(c) {}
  static constexpr auto fields() { return smp::fields(smp::field("w", &Told::w)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    calls->push_back({ctx.position.step, ctx.position.first_sample, x.shape()[0], ctx.training, ctx.last_microbatch});
    Values y(ctx.memory(), x.shape());
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] * w.value().data()[0];
    saved = x;
    return y;
  }
  GradOf<Input> backward(auto&, const GradOf<Output>& dy, Saved& saved) {
    for (std::size_t i = 0; i < dy.size(); ++i) w.grad().data()[0] += dy.data()[i] * saved.data()[i];
    return dy;
  }
};

}  // namespace

TEST_CASE("a batch is cut into parts of which the first may have a sample more") {
  const auto sizes = [](std::int64_t samples, int parts) {
    std::vector<std::int64_t> all;
    smp::for_each_microbatch(samples, parts, [&](SampleRange r, bool last) {
      CHECK(last == (r.last == samples));
      all.push_back(r.size());
    });
    return all;
  };
  CHECK(sizes(8, 3) == std::vector<std::int64_t>{3, 3, 2});  // case 46
  CHECK(sizes(7, 3) == std::vector<std::int64_t>{3, 2, 2});
  CHECK(sizes(2, 4) == std::vector<std::int64_t>{1, 1});
  CHECK(sizes(0, 4).empty());
  CHECK_THROWS_WITH_AS(sizes(4, 0), "smp: microbatches is 0, but must be at least 1", smp::ConfigError);
}

TEST_CASE("tensors, tuples and structs are cut along their first dimension, in place") {
  smp::Memory memory;
  const Values x = counted(memory, {5, 2});
  Ids mask(memory, {5});
  for (int i = 0; i < 5; ++i) mask.data()[i] = i;
  CHECK(smp::batch_size(x) == 5);
  CHECK(list(smp::batch_slice(x, {1, 3})) == std::vector<double>{2, 3, 4, 5});
  CHECK(smp::batch_slice(x, {1, 3}).data() == x.data() + 2);
  const auto [a, b] = smp::batch_slice(std::tuple(x, mask), {3, 5});
  CHECK(a.shape() == Shape{2, 2});
  CHECK(std::vector<int>(b.begin(), b.end()) == std::vector<int>{3, 4});
  const Masked part = smp::batch_slice(Masked{x, mask, 7}, {4, 5});
  CHECK(list(part.x) == std::vector<double>{8, 9});
  CHECK(part.mask.data()[0] == 4);
  CHECK(part.layers == 7);
  CHECK_THROWS_WITH_AS(
      (void)smp::batch_size(std::tuple(x, counted(memory, {4}))),
      "smp: all tensors of a batch have the samples along their first dimension, but one has the shape "
      "[4] where another has 5 samples",
      smp::ConfigError);
  CHECK_THROWS_AS((void)smp::batch_size(counted(memory, {})), smp::ConfigError);
}

TEST_CASE("what micro-batches return is summed, averaged by samples, joined and stacked") {
  smp::Memory memory;
  StepOutput<Values> out(memory, 3);
  CHECK_THROWS_WITH_AS((void)out.reduce_mean(), "smp: this rank has run no micro-batch in this step", smp::ConfigError);
  out.add(counted(memory, {2}, 1), 3);   // 1 2
  out.add(counted(memory, {2}, 10), 1);  // 10 11
  CHECK(list(out.reduce_sum()) == std::vector<double>{11, 13});
  CHECK(list(out.reduce_mean()) == std::vector<double>{3.25, 4.25});
  CHECK(list(out.stack()) == std::vector<double>{1, 2, 10, 11});
  CHECK(out.stack().shape() == Shape{2, 2});
  CHECK(out.concat().shape() == Shape{4});
  out.add(counted(memory, {1}, 5), 1);
  CHECK(list(out.concat()) == std::vector<double>{1, 2, 10, 11, 5});
  CHECK_THROWS_WITH_AS((void)out.stack(), "smp: micro-batches have returned tensors of different shapes: [2] and [1]",
                       smp::ConfigError);
  StepOutput<Values> scalars(memory, 2);
  scalars.add(counted(memory, {}, 4), 1);
  scalars.add(counted(memory, {}, 6), 3);
  CHECK(list(scalars.reduce_mean()) == std::vector<double>{5.5});
  CHECK(scalars.stack().shape() == Shape{2});
  CHECK_THROWS_AS((void)scalars.concat(), smp::ConfigError);
}

TEST_CASE("modules are told the step, the sample, whether they train, and which micro-batch is the last") {
  std::vector<Told::Call> calls;
  smp::Worker worker(smp::comm::Self(), smp::Topology<smp::Degrees{}>(), 1);
  auto ctx = worker.context();
  smp::DataParallel trainer(ctx, Told(&calls), smp::optim::Sgd{});
  const Values x = counted(worker.memory(), {5, 1});
  const auto train = [&](const smp::StepOptions& options) {
    calls.clear();
    return smp::step(ctx, trainer, SquaredError<double>{}, x, counted(worker.memory(), {5, 1}, 1), options);
  };
  using Calls = std::vector<Told::Call>;
  (void)train({.microbatches = 2, .passes = 2});
  CHECK(calls == Calls{{0, 0, 3, true, false}, {0, 3, 2, true, false}});
  (void)train({.microbatches = 2, .passes = 2, .pass = 1});
  CHECK(calls == Calls{{0, 5, 3, true, false}, {0, 8, 2, true, true}});
  // All samples are off by -1, and the gradient of w is the mean of -x: 0 - 1 - 2 - 3 - 4 over 5, clipped by nothing.
  CHECK(trainer.step(ctx, 0) == doctest::Approx(2).epsilon(1e-14));
  const auto loss = train({.microbatches = 5, .average = false, .first_sample = 100});
  CHECK(calls.front() == Told::Call{1, 100, 1, true, false});
  CHECK(calls.back() == Told::Call{1, 104, 1, true, true});
  CHECK(loss.mean() == 0.5);
  CHECK(loss.weight == 5);
  CHECK(list(loss.microbatches.stack()) == std::vector<double>(5, 0.5));
  CHECK(trainer.step(ctx, 0) == 10);  // the sum over the micro-batches
  calls.clear();
  CHECK(smp::evaluate(ctx, trainer, SquaredError<double>{}, x, counted(worker.memory(), {5, 1}, 2)).mean() == 2);
  CHECK(calls == Calls{{0, 0, 5, false, true}});
  CHECK(list(smp::predict(ctx, trainer, x, 3).concat()) == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(trainer.step(ctx, 0) == 0);  // neither has left gradients
  CHECK_THROWS_WITH_AS(train({.passes = 2, .pass = 2}), "smp: pass is 2, but must be 0 to passes - 1, and passes is 2",
                       smp::ConfigError);
  CHECK_THROWS_WITH_AS(smp::step(ctx, trainer, SquaredError<double>{}, x, counted(worker.memory(), {4, 1}, 1)),
                       "smp: a batch has 5 inputs, but 4 targets", smp::ConfigError);
}
