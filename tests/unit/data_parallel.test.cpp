// What a strategy does on one rank, looked at closely: the plan of the buckets, the order in which things happen, and
// checked mode.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/recording.hpp>
#include <smp/comm/self.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::DataParallel, smp::DataParallelOptions, smp::GradOf, smp::ParameterRange;

using T = double;
using Values = smp::TensorOf<T>;
using World1 = smp::Topology<smp::Degrees{}>;

Values filled(smp::Memory& memory, const smp::Shape& shape, double first) {
  Values v(memory, shape);
  for (std::size_t i = 0; i < v.size(); ++i) v.data()[i] = std::sin(first + static_cast<double>(i));
  return v;
}

/// A layer that writes down when its backward has been enqueued.
struct Noted {
  using Input = Values;
  using Output = Values;
  using Saved = Dense<T>::Saved;
  Dense<T> dense{3, 3, false, false};
  std::string name;
  std::shared_ptr<std::vector<std::string>> log;
  static constexpr auto fields() { return smp::fields(smp::field("dense", &Noted::dense)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return dense.forward(ctx, x, saved); }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = dense.backward(ctx, dy, saved);
    ctx.groups()[smp::Group::world].barrier(ctx.stream());  // a mark in the list of what was asked for
    log->push_back(name);
    return dx;
  }
};

using Stack = smp::Sequential<smp::Repeat<Noted>, smp::Repeat<smp::Checkpointed<Noted>>>;

/// What rank 0 of four asks for in a step of two micro-batches, update included: layers and reductions, in order.
std::string order(DataParallelOptions options) {
  const auto names = std::make_shared<std::vector<std::string>>();
  const auto layer = [&](std::size_t i) { return Noted{.name = std::to_string(i), .log = names}; };
  smp::comm::Recording world(0, 4);
  smp::comm::Groups groups(world, smp::Topology<smp::Degrees{.rdp = 4}>());
  smp::Memory memory;
  smp::HostStream stream;
  smp::Context ctx(stream, memory, groups, 1);
  DataParallel trainer(ctx,
                       Stack(smp::Repeat<Noted>(2, layer),
                             smp::Repeat<smp::Checkpointed<Noted>>(
                                 2, [&](std::size_t i) { return smp::Checkpointed<Noted>(layer(i + 2)); })),
                       smp::optim::Sgd{}, options);
  const Values x = filled(memory, {4, 3}, 0);
  smp::step(ctx, trainer, SquaredError<T>{}, x, x, {.microbatches = 2}, smp::CountSamples{});  // nobody adds up
  trainer.step(ctx, 0.1);
  std::string text;
  std::size_t next = 0;
  for (const smp::comm::Recorded& r : world.log()) {
    if (r.call.operation == smp::comm::Operation::barrier) text += names->at(next++) + " ";
    if (r.call.purpose == smp::Purpose::gradient) text += "R" + std::to_string(r.call.count) + " ";
    if (r.call.purpose == smp::Purpose::loss) text += "loss ";
  }
  return text;
}

/// An optimizer of one's own: steps of a fixed length against the sign of the gradient.
struct SignDescent {
  [[nodiscard]] static int states() { return 0; }
  template <class U>
  void update(const smp::optim::Range<U>& range, const smp::optim::StepNumbers& numbers) const {
    for (std::int64_t i = 0; i < range.size; ++i) {
      const U g = range.gradients[i];
      range.values[i] -= static_cast<U>(numbers.learning_rate) * static_cast<U>((g > 0) - (g < 0));
      range.gradients[i] = 0;
    }
  }
};

/// A layer that keeps a pointer to its weight from forward to backward.
struct Keeps {
  using Input = Values;
  using Output = Values;
  struct Saved {
    const T* weight = nullptr;
    Values x;
  };
  smp::ParameterOf<T> weight{{3}, {smp::Init::Kind::normal, 1}};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Keeps::weight)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved = {weight.value().data(), x};
    Values y(ctx.memory(), x.shape());
    for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = x.data()[i] * saved.weight[i % 3];
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    Values dx(ctx.memory(), dy.shape());
    for (std::size_t i = 0; i < dy.size(); ++i) {
      dx.data()[i] = dy.data()[i] * saved.weight[i % 3];  // should be weight.value()
      weight.grad().data()[i % 3] += dy.data()[i] * std::as_const(saved.x).data()[i];
    }
    return dx;
  }
};

/// The norms of four steps of `M` behind a layer whose gradient depends on it, several micro-batches each.
template <class M>
std::vector<double> norms(M model, bool checked, int microbatches) {
  smp::Worker worker(smp::comm::Self(), World1(), 5);
  auto ctx = worker.context();
  DataParallel trainer(ctx, smp::Sequential<Dense<T>, M>(Dense<T>(3, 3), std::move(model)), smp::optim::Sgd{},
                       {.checked = checked});
  std::vector<double> all;
  for (int s = 0; s < 4; ++s) {
    const Values x = filled(worker.memory(), {6, 3}, s), y = filled(worker.memory(), {6, 3}, s + 0.5);
    smp::step(ctx, trainer, SquaredError<T>{}, x, y, {.microbatches = microbatches});
    all.push_back(trainer.step(ctx, 0.1));
  }
  return all;
}

/// Reads its weight where it should not: in the constructor of a strategy, or between calls, all is visible; in the
/// forward of another unit nothing is.
struct Reaches {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Dense<T>::Saved a, b;
  };
  smp::AsUnit<Dense<T>> a{Dense<T>(3, 3)};
  smp::AsUnit<Dense<T>> b{Dense<T>(3, 3)};
  static constexpr auto fields() { return smp::fields(smp::field("a", &Reaches::a), smp::field("b", &Reaches::b)); }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    auto& other = const_cast<smp::AsUnit<Dense<T>>&>(b).marked();
    (void)other.weight.value();
    return b.forward(ctx, a.forward(ctx, x, s.a), s.b);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return a.backward(ctx, b.backward(ctx, dy, s.b), s.a);
  }
};

}  // namespace

TEST_CASE("buckets are filled from the last parameter to the first and never split one") {
  const auto plan = [](std::vector<std::size_t> sizes, std::size_t limit) { return smp::plan_buckets(sizes, limit); };
  using Plan = std::vector<ParameterRange>;
  CHECK(plan({30, 30, 30, 30, 30, 30, 30, 30, 30, 30}, 100) == Plan{{7, 10}, {4, 7}, {1, 4}, {0, 1}});
  CHECK(plan({10, 200, 10, 10}, 20) == Plan{{2, 4}, {1, 2}, {0, 1}});
  CHECK(plan({10, 200, 10, 10}, 1000) == Plan{{0, 4}});
  CHECK(plan({5, 5}, 1) == Plan{{1, 2}, {0, 1}});
  CHECK(plan({}, 1).empty());
  CHECK_THROWS_AS(plan({1}, 0), smp::ConfigError);
}

TEST_CASE("a bucket is reduced when the last micro-batch has left its units, and before what comes next") {
  constexpr std::size_t layer = 9 * sizeof(T);
  // The first micro-batch, then the second. The repeated forward of Checkpointed opens nothing.
  CHECK(order({.bucket_bytes = layer}) == "3 2 1 0 3 R9 2 R9 1 R9 0 R9 loss ");
  CHECK(order({.bucket_bytes = 2 * layer}) == "3 2 1 0 3 2 R18 1 0 R18 loss ");
  CHECK(order({.bucket_bytes = 3 * layer}) == "3 2 1 0 3 2 1 R27 0 R9 loss ");
  CHECK(order({}) == "3 2 1 0 3 2 1 0 R36 loss ");
  CHECK(order({.bucket_bytes = layer, .overlap = false}) == "3 2 1 0 3 2 1 0 loss R9 R9 R9 R9 ");
}

TEST_CASE("checked mode finds a module that keeps a pointer to its parameter") {
  for (const int microbatches : {1, 2, 3}) {
    CAPTURE(microbatches);
    for (const double norm : norms(Keeps{}, false, microbatches)) CHECK(norm > 0);
    CHECK(std::isnan(norms(Keeps{}, true, microbatches).front()));
    CHECK(norms(Dense<T>(3, 3), true, microbatches) == norms(Dense<T>(3, 3), false, microbatches));
    CHECK(norms(smp::Checkpointed(Dense<T>(3, 3)), true, microbatches) == norms(Dense<T>(3, 3), false, microbatches));
  }
  CHECK(norms(Reaches{}, false, 1).front() > 0);
  CHECK_THROWS_WITH_AS(
      norms(Reaches{}, true, 1),
      "smp: the parameter 1.b.weight is read where its values are not on this rank: outside of its unit, or before a "
      "strategy has placed it; another unit that uses it says so with the same tie, or with register_parameter",
      smp::Error);
}

TEST_CASE("gradients can be discarded; a backward in two parts is the same") {
  smp::Worker worker(smp::comm::Self(), World1(), 5);
  auto ctx = worker.context();
  const auto make = [&] { return smp::Sequential<Dense<T>, Dense<T>>(Dense<T>(3, 3), Dense<T>(3, 3)); };
  DataParallel whole(ctx, make(), smp::optim::Sgd{}), parts(ctx, make(), smp::optim::Sgd{});
  const Values x = filled(worker.memory(), {6, 3}, 0), dy = filled(worker.memory(), {6, 3}, 1);
  (void)whole.forward(ctx, x, whole.saved());
  (void)whole.backward(ctx, dy, whole.saved());
  whole.discard(ctx);
  (void)whole.forward(ctx, x, whole.saved());
  (void)whole.backward(ctx, dy, whole.saved());
  (void)parts.forward(ctx, x, parts.saved());
  (void)parts.backward_input(ctx, dy, parts.saved());
  parts.backward_params(ctx, parts.saved());
  CHECK(whole.step(ctx, 0.1) == parts.step(ctx, 0.1));
  CHECK(whole.gradient_norm() > 0);
  CHECK(whole.step(ctx, 0.1) == 0);  // an update leaves no gradients
  CHECK(whole.steps() == 2);
}

TEST_CASE("a backward after the last one of a step is refused where it would be lost") {
  smp::comm::Recording world(0, 4);
  smp::comm::Groups groups(world, smp::Topology<smp::Degrees{.rdp = 4}>());
  smp::Memory memory;
  smp::HostStream stream;
  smp::Context ctx(stream, memory, groups, 1);
  const auto twice = [&](bool overlap, bool last) {
    DataParallel trainer(ctx, smp::Sequential<Dense<T>, Dense<T>>(Dense<T>(3, 3), Dense<T>(3, 3)), smp::optim::Sgd{},
                         {.overlap = overlap});
    const Values x = filled(memory, {2, 3}, 0);
    ctx.last_microbatch = last;
    for (int pass = 0; pass < 2; ++pass) {
      (void)trainer.forward(ctx, x, trainer.saved());
      (void)trainer.backward(ctx, x, trainer.saved());
    }
    return trainer.step(ctx, 0.1);
  };
  const double norm = twice(false, true);  // reduces in step() only
  CHECK(norm > 0);
  CHECK(twice(true, false) == norm);
  CHECK_THROWS_WITH_AS(
      twice(true, true),
      "smp: a backward pass adds to gradients of \"1.weight\" that have been reduced over the ranks already: "
      "ctx.last_microbatch must be false in all passes of a step but the last",
      smp::Error);
}

TEST_CASE("an optimizer can be a type of one's own") {
  smp::Worker worker(smp::comm::Self(), World1(), 5);
  auto ctx = worker.context();
  DataParallel trainer(ctx, Dense<T>(3, 3), SignDescent{});
  const auto values = [&] {
    std::vector<double> all;
    trainer.for_each_parameter([&](std::string_view, const smp::Shape&, auto v, auto) {
      for (const auto x : v) all.push_back(static_cast<double>(x));
    });
    return all;
  };
  const std::vector<double> before = values();
  const Values x = filled(worker.memory(), {2, 3}, 0);
  smp::step(ctx, trainer, SquaredError<T>{}, x, x);
  trainer.step(ctx, 0.25);
  const std::vector<double> after = values();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(std::abs(after[i] - before[i]) == doctest::Approx(0.25));
  CHECK(worker.memory()[smp::MemoryUse::optimizer].peak == 0);
}

TEST_CASE("a tied parameter has the gradient of all its uses, and counts once in the norm") {
  using Tied = Dense<T, "w">;
  smp::Worker worker(smp::comm::Self(), World1(), 5);
  auto ctx = worker.context();
  DataParallel tied(ctx, smp::Sequential<Tied, Tied>(Tied(3, 3, false, false), Tied(3, 3, false, false)),
                    smp::optim::Sgd{});
  DataParallel free(ctx,
                    smp::Sequential<Dense<T>, Dense<T>>(Dense<T>(3, 3, false, false), Dense<T>(3, 3, false, false)),
                    smp::optim::Sgd{});
  std::vector<T> weight(9), sum(9);
  tied.for_each_parameter([&](std::string_view name, const smp::Shape&, auto values, auto) {
    CHECK(name == "w");
    std::copy(values.begin(), values.end(), weight.begin());
  });
  free.for_each_parameter([&](std::string_view, const smp::Shape&, auto values, auto) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<decltype(+values[i])>(weight[i]);
  });
  const Values x = filled(worker.memory(), {4, 3}, 0), y = filled(worker.memory(), {4, 3}, 1);
  CHECK(smp::step(ctx, tied, SquaredError<T>{}, x, y).mean() == smp::step(ctx, free, SquaredError<T>{}, x, y).mean());
  free.for_each_parameter([&](std::string_view, const smp::Shape&, auto, auto gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) sum[i] += static_cast<T>(gradients[i]);
  });
  double squares = 0;
  tied.for_each_parameter([&](std::string_view, const smp::Shape&, auto, auto gradients) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      CHECK(static_cast<T>(gradients[i]) == doctest::Approx(sum[i]).epsilon(1e-13));
      squares += sum[i] * sum[i];
    }
  });
  CHECK(tied.step(ctx, 0.1) == doctest::Approx(std::sqrt(squares)).epsilon(1e-13));
  CHECK(worker.memory()[smp::MemoryUse::gradient].live == 3 * 9 * sizeof(T));
}
