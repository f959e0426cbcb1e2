// GELU in both forms and ReLU: values, gradients, extremes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/gelu.hpp>
#include <smp/nn/relu.hpp>
#include <smp/testing/gradient_check.hpp>

using smp::Shape, smp::TensorOf, smp::testing::OneRank;
using smp::nn::Activation, smp::nn::ActivationKind, smp::nn::Gelu, smp::nn::GeluForm, smp::nn::Relu;

static_assert(smp::SplitBackward<Gelu<float>, smp::testing::Context>);
static_assert(smp::SplitBackward<Relu<float>, smp::testing::Context>);

namespace {

double exact(ActivationKind kind, double x) {
  if (kind == ActivationKind::relu) return std::max(x, 0.0);
  if (kind == ActivationKind::gelu_erf) return 0.5 * x * std::erfc(-x / std::sqrt(2));
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

template <class T>
double worst_error(ActivationKind kind) {
  OneRank<Activation<T>> rank(Activation<T>{kind});
  auto ctx = rank.context();
  TensorOf<T> x(rank.memory, {2001});
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = (static_cast<T>(i) - 1000) / 100;
  typename Activation<T>::Saved saved;
  const auto y = rank.model.forward(ctx, x, saved);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wanted = exact(kind, static_cast<double>(x.data()[i]));
    worst = std::max(worst, std::abs(static_cast<double>(y.data()[i]) - wanted) / std::max(1.0, std::abs(wanted)));
  }
  return worst;
}

}  // namespace

TEST_CASE("values from -10 to 10 are those of the formulas") {
  for (const auto kind : {ActivationKind::gelu_tanh, ActivationKind::gelu_erf, ActivationKind::relu}) {
    CHECK(worst_error<float>(kind) < 1e-6);
    CHECK(worst_error<double>(kind) < 2e-15);
  }
  CHECK(exact(ActivationKind::gelu_tanh, 1) == doctest::Approx(0.841192).epsilon(1e-6));  // as PyTorch prints them
  CHECK(exact(ActivationKind::gelu_erf, 1) == doctest::Approx(0.841345).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("very large numbers stay what they are, very small ones become zero, and gradients are 1 and 0", T,
                   float, double) {
  const T big = std::numeric_limits<T>::max() / 16;
  for (const auto kind : {ActivationKind::gelu_tanh, ActivationKind::gelu_erf, ActivationKind::relu}) {
    OneRank<Activation<T>> rank(Activation<T>{kind});
    auto ctx = rank.context();
    TensorOf<T> x(rank.memory, {4}), ones(rank.memory, {4});
    std::copy_n(std::vector<T>{-1000, 1000, -big, big}.data(), 4, x.data());
    std::fill(ones.begin(), ones.end(), T(1));
    typename Activation<T>::Saved saved;
    const auto y = rank.model.forward(ctx, x, saved);
    const auto dx = rank.model.backward(ctx, ones, saved);
    for (const std::size_t i : {0u, 2u}) CHECK(std::abs(y.data()[i]) < T(1e-29) * std::abs(x.data()[i]));
    for (const std::size_t i : {1u, 3u}) CHECK(y.data()[i] == x.data()[i]);
    for (const std::size_t i : {0u, 2u}) CHECK(std::abs(dx.data()[i]) < 1e-25);
    for (const std::size_t i : {1u, 3u}) CHECK(dx.data()[i] == 1);
  }
}

TEST_CASE("gradients of GELU and ReLU, in one part or two") {
  for (const Shape& shape : {Shape{1}, Shape{3, 5, 7}, Shape{2, 66}}) {
    for (const auto kind : {ActivationKind::gelu_tanh, ActivationKind::gelu_erf, ActivationKind::relu}) {
      OneRank<Activation<double>> rank(Activation<double>{kind});
      const auto found = smp::testing::check_gradients(rank, rank.random<double>(shape));
      CHECK_MESSAGE(found.relative <= 1e-7, found.where);
      CHECK(smp::testing::split_backward_agrees(rank, rank.random<double>(shape)));
    }
  }
  CHECK(Gelu<float>(GeluForm::erf).kind == ActivationKind::gelu_erf);
  CHECK(Gelu<float>().kind == ActivationKind::gelu_tanh);
  CHECK(Relu<float>().kind == ActivationKind::relu);
}
