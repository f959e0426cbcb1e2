// The optimizers against the published formulas, one element at a time, and the learning rate.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <smp/error.hpp>
#include <smp/optim/any.hpp>
#include <smp/optim/learning_rate.hpp>

namespace {

using namespace smp::optim;

/// One parameter as the papers write it.
struct Scalar {
  double w, a = 0, b = 0;
};

void step(const Sgd& o, Scalar& p, double g, const StepNumbers& n) {
  g = n.gradient_factor * g + (n.decay ? o.weight_decay : 0) * p.w;
  if (o.momentum != 0) {
    p.a = n.step == 1 ? g : o.momentum * p.a + g;
    g = o.nesterov ? g + o.momentum * p.a : p.a;
  }
  p.w -= n.learning_rate * g;
}

void adam(const AdamNumbers& o, bool decoupled, Scalar& p, double g, const StepNumbers& n) {
  g *= n.gradient_factor;
  const double decay = n.decay ? o.weight_decay : 0;
  if (decoupled) p.w -= n.learning_rate * decay * p.w;
  if (!decoupled) g += decay * p.w;
  p.a = o.beta1 * p.a + (1 - o.beta1) * g;
  p.b = o.beta2 * p.b + (1 - o.beta2) * g * g;
  const double m = p.a / (1 - std::pow(o.beta1, n.step));
  const double v = p.b / (1 - std::pow(o.beta2, n.step));
  p.w -= n.learning_rate * m / (std::sqrt(v) + o.epsilon);
}
void step(const Adam& o, Scalar& p, double g, const StepNumbers& n) { adam(o, false, p, g, n); }
void step(const AdamW& o, Scalar& p, double g, const StepNumbers& n) { adam(o, true, p, g, n); }

void step(const AdaDelta& o, Scalar& p, double g, const StepNumbers& n) {
  g = n.gradient_factor * g + (n.decay ? o.weight_decay : 0) * p.w;
  p.a = o.rho * p.a + (1 - o.rho) * g * g;
  const double delta = std::sqrt(p.b + o.epsilon) / std::sqrt(p.a + o.epsilon) * g;
  p.b = o.rho * p.b + (1 - o.rho) * delta * delta;
  p.w -= n.learning_rate * delta;
}

template <class T>
struct Arrays {
  std::vector<T> w, g, a, b;
  explicit Arrays(std::size_t n) : w(n), g(n), a(n), b(n) {
    for (std::size_t i = 0; i < n; ++i) w[i] = static_cast<T>(std::sin(static_cast<double>(i) + 1));
  }
  Range<T> range(std::size_t first, std::size_t count) {
    return {&w[first], &g[first], {&a[first], &b[first]}, static_cast<std::int64_t>(count)};
  }
  /// Gradients of step `t`.
  void fill(std::int64_t t) {
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = static_cast<T>(std::cos(static_cast<double>(i * 7 + 3) * static_cast<double>(t)));
  }
  bool operator==(const Arrays&) const = default;
};

StepNumbers numbers_of(std::int64_t t) {
  return {
      .step = t, .learning_rate = 0.01 * static_cast<double>(t), .gradient_factor = t == 2 ? 0.25 : 1, .decay = t != 3};
}

/// Four steps of 131 elements against the scalar formula, in both types; the same in two ranges and through Any.
template <class T, class O>
void compare(const O& optimizer) {
  constexpr std::size_t n = 131;  // no multiple of anything
  Arrays<T> arrays(n), parts(n), chosen(n);
  const Any any = optimizer;
  CHECK(any.states() == optimizer.states());
  std::vector<Scalar> scalars;
  for (const T w : arrays.w) scalars.push_back({static_cast<double>(w)});
  for (std::int64_t t = 1; t <= 4; ++t) {
    const StepNumbers numbers = numbers_of(t);
    arrays.fill(t), parts.fill(t), chosen.fill(t);
    for (std::size_t i = 0; i < n; ++i) step(optimizer, scalars[i], static_cast<double>(arrays.g[i]), numbers);
    optimizer.update(arrays.range(0, n), numbers);
    optimizer.update(parts.range(5, n - 5), numbers);
    optimizer.update(parts.range(0, 5), numbers);
    any.update(chosen.range(0, n), numbers);
  }
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i)
    worst = std::max(worst, std::abs(static_cast<double>(arrays.w[i]) - scalars[i].w));
  CHECK(worst <= (std::is_same_v<T, float> ? 2e-7 : 4e-16));
  CHECK(arrays.w != Arrays<T>(n).w);
  CHECK(arrays == parts);   // the place of an element does not matter
  CHECK(arrays == chosen);  // nor when the optimizer was chosen
  CHECK(arrays.g == std::vector<T>(n));
}

template <class O>
void compare_both(const O& optimizer) {
  compare<float>(optimizer);
  compare<double>(optimizer);
}

}  // namespace

TEST_CASE("four steps of each optimizer are those of the published formula") {
  SUBCASE("SGD") { compare_both(Sgd{}); }
  SUBCASE("SGD with momentum and decay") { compare_both(Sgd{.momentum = 0.9, .weight_decay = 0.1}); }
  SUBCASE("SGD with Nesterov's momentum") { compare_both(Sgd{.momentum = 0.9, .nesterov = true}); }
  SUBCASE("Adam") { compare_both(Adam{}); }
  SUBCASE("Adam with decay") { compare_both(Adam{{.beta2 = 0.99, .weight_decay = 0.1}}); }
  SUBCASE("AdamW") { compare_both(AdamW({.weight_decay = 0.1})); }
  SUBCASE("AdaDelta") { compare_both(AdaDelta{}); }
  SUBCASE("AdaDelta with decay") { compare_both(AdaDelta{.rho = 0.95, .weight_decay = 0.1}); }
}

TEST_CASE("numbers by hand") {
  double w = 1, g = 0.5, a = 0, b = 0;
  const Range<double> range{&w, &g, {&a, &b}, 1};
  SUBCASE("the first step of Adam is the learning rate, whatever the gradient") {
    Adam{}.update(range, {.step = 1, .learning_rate = 1e-3});
    CHECK(w == doctest::Approx(0.999).epsilon(1e-10));
    CHECK(a == doctest::Approx(0.05).epsilon(1e-14));
    CHECK(b == doctest::Approx(0.00025).epsilon(1e-14));
  }
  SUBCASE("AdamW shrinks by lr * decay beside it") {
    AdamW({.weight_decay = 0.1}).update(range, {.step = 1, .learning_rate = 1e-3});
    CHECK(w == doctest::Approx(0.9989).epsilon(1e-10));
  }
  SUBCASE("SGD with Nesterov's momentum: 1 - 0.1 (0.5 + 0.9 * 0.5)") {
    Sgd{.momentum = 0.9, .nesterov = true}.update(range, {.step = 1, .learning_rate = 0.1});
    CHECK(w == doctest::Approx(0.905).epsilon(1e-14));
  }
  SUBCASE("AdaDelta, rho 0.9, epsilon 1e-6: 1 - 4 sqrt(1e-6 / 0.025001) / 2") {
    AdaDelta{}.update(range, {.step = 1, .learning_rate = 4});
    CHECK(w == doctest::Approx(1 - 2 * std::sqrt(1e-6 / 0.025001)).epsilon(1e-14));
  }
}

TEST_CASE("the learning rate rises to its peak and falls to its minimum") {
  const LearningRate cosine{Decay::cosine, 1e-3, 1e-4, 99, 1099};
  CHECK(cosine(0) == doctest::Approx(1e-5));
  CHECK(cosine(49) == doctest::Approx(5e-4));
  CHECK(cosine(99) == 1e-3);
  CHECK(cosine(599) == doctest::Approx(5.5e-4));  // half of the way
  CHECK(cosine(349) == doctest::Approx(1e-4 + 9e-4 * (1 + std::sqrt(0.5)) / 2));
  CHECK(cosine(1099) == 1e-4);
  CHECK(cosine(1000000) == 1e-4);
  const LearningRate linear{Decay::linear, 1, 0, 0, 10};
  CHECK(linear(0) == 1);
  CHECK(linear(3) == doctest::Approx(0.7));
  CHECK(linear(10) == 0);
  const LearningRate constant{.peak = 2, .warmup = 1};
  CHECK(constant(0) == 1);
  CHECK(constant(1) == 2);
  CHECK(constant(1000) == 2);
  CHECK(parse_decay("cosine") == Decay::cosine);
  CHECK_THROWS_WITH_AS((void)parse_decay("step"),
                       "smp: the learning rate is constant, linear or cosine, found \"step\"", smp::ConfigError);
}
