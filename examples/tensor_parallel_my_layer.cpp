// SPDX-License-Identifier: Apache-2.0
// A layer of one's own, cut over ranks: it learns the same on 1, 2 and 4 of them.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <smp/smp.hpp>
#include <smp/testing/check_parts.hpp>

using smp::GradOf, smp::Tensor64;
using Linear = smp::nn::Linear<double>;

/// A gated unit: c(a(x) * s(b(x))), where s is the logistic function. It knows nothing of ranks.
struct Gated {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    Linear::Saved a, b, c;
    Tensor64 value, gate;  // a(x) and b(x)
    static constexpr auto fields() {
      return smp::fields(smp::field("a", &Saved::a), smp::field("b", &Saved::b), smp::field("c", &Saved::c),
                         smp::field("value", &Saved::value), smp::field("gate", &Saved::gate));
    }
  };
  Linear a, b, c;

  Gated(int width, int inner) : a(width, inner), b(width, inner), c(inner, width) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("a", &Gated::a), smp::field("b", &Gated::b), smp::field("c", &Gated::c));
  }
  /// A tensor of `f(i)` for each place i, like `x`.
  static Tensor64 each(auto& ctx, const Tensor64& x, auto f) {
    Tensor64 y(ctx.memory(), x.shape());
    ctx.stream().enqueue([n = y.size(), q = y.data(), f] {
      for (std::size_t i = 0; i < n; ++i) q[i] = f(i);
    });
    return y;
  }
  static double s(double x) { return 1 / (1 + std::exp(-x)); }

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    saved.value = a.forward(ctx, x, saved.a);
    saved.gate = b.forward(ctx, x, saved.b);
    const auto gated = [v = std::as_const(saved.value).data(), g = std::as_const(saved.gate).data()](std::size_t i) {
      return v[i] * s(g[i]);
    };
    return c.forward(ctx, each(ctx, saved.value, gated), saved.c);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    const Tensor64 d = c.backward(ctx, dy, saved.c);
    const double *v = std::as_const(saved.value).data(), *g = std::as_const(saved.gate).data(), *p = d.data();
    const Tensor64 dvalue = each(ctx, d, [=](std::size_t i) { return p[i] * s(g[i]); });
    const Tensor64 dgate = each(ctx, d, [=](std::size_t i) { return p[i] * v[i] * s(g[i]) * (1 - s(g[i])); });
    return smp::sum_of(ctx, a.backward(ctx, dvalue, saved.a), b.backward(ctx, dgate, saved.b));
  }
};

// [readme-begin]
/// The rule by which it is cut: a and b by outputs, c by inputs; the ranks' results are summed, then c's bias is added.
template <>
struct smp::TensorParallelTraits<Gated, smp::Split::usual> {
  using input = Replicated;
  using output = Partial;
  using After = InPlaceOf<&Gated::c, nn::AddBias<double>>;
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &Gated::a, &Linear::weight), cut(0, &Gated::a, &Linear::bias),
                     cut(0, &Gated::b, &Linear::weight), cut(0, &Gated::b, &Linear::bias),
                     cut(1, &Gated::c, &Linear::weight), once(&Gated::c, &Linear::bias));
  }
  static After after(const Gated& whole) { return {{whole.c.bias}}; }
};
// [readme-end]

/// Trains on `ranks` tensor-parallel ranks; prints the loss of some steps.
void train(int ranks) {
  smp::comm::launch(ranks, [](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(world.size(), {.tp = world.size()})), /*seed*/ 1);
    auto ctx = worker.context();
    smp::TensorParallel<Gated> model(Gated(16, 64), world.rank(), world.size());
    smp::DataParallel trainer(ctx, std::move(model), smp::optim::AdamW{});
    smp::Lifted<smp::nn::CrossEntropy<double>, smp::Invariant> loss_function;
    Tensor64 x(worker.memory(), {32, 16});  // equal on all ranks
    smp::Ids classes(worker.memory(), {32});
    for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = std::sin(static_cast<double>(i * i));
    for (int i = 0; i < 32; ++i) classes.data()[i] = i % 16;
    for (int step = 1; step <= 40; ++step) {
      const double loss = smp::step(ctx, trainer, loss_function, {x}, classes, {.prescaled = true}).mean();
      trainer.step(ctx, /*learning rate*/ 0.01);
      if (world.rank() == 0 && step % 20 == 0) {
        std::printf("%d ranks, step %2d: loss %.12f\n", world.size(), step, loss);
      }
    }
  });
}

int main() {
  for (const int ranks : {1, 2, 4}) train(ranks);
  double worst = 0;  // forward and backward of the parts, against the whole
  for (const int ranks : {2, 4}) {
    const auto found = smp::testing::check_parts(Gated(16, 64), {2, 4, 16}, ranks);
    worst = found.relative > worst ? found.relative : worst;
  }
  std::printf("the parts sum to the whole: %s\n", worst < 1e-13 ? "yes" : "no");
  return worst < 1e-13 ? 0 : 1;
}
