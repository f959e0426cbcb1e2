// SPDX-License-Identifier: Apache-2.0
// needs: eigen
// Your own tensors: modules whose inputs and outputs are Eigen matrices, and a net of them that learns to tell two
// spirals apart. TensorTraits says how smp looks at a matrix; containers, data parallelism and step() then work as for
// its own.
#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numbers>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include <smp/smp.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <>
struct smp::TensorTraits<Matrix> {
  using element = double;
  static std::span<const double> data(const Matrix& m) { return {m.data(), static_cast<std::size_t>(m.size())}; }
  static std::span<double> data(Matrix& m) { return {m.data(), static_cast<std::size_t>(m.size())}; }
  static smp::Shape shape(const Matrix& m) { return {m.rows(), m.cols()}; }
  static Matrix make(smp::Memory&, const smp::Shape& shape) { return Matrix(shape[0], shape[1]); }
  static Matrix slice(const Matrix& m, std::int64_t first, std::int64_t count) { return m.middleRows(first, count); }
};

namespace {

/// A parameter, or its gradient, as Eigen sees it.
template <class T>
auto as_matrix(const smp::View<T>& view) {
  using Map = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix, Matrix>>;
  return Map(view.data(), view.shape()[0], view.shape()[1]);
}

/// y = tanh(x W + b), one row a sample. A matrix lives where the program is, not in the stream's order: this works with
/// streams that run at once, as the default ones do.
struct Dense {
  using Input = Matrix;
  using Output = Matrix;
  struct Saved {
    Matrix x, y;
    static constexpr auto fields() { return smp::fields(smp::field("x", &Saved::x), smp::field("y", &Saved::y)); }
  };

  smp::Parameter64 weight, bias;
  Dense(std::int64_t in, std::int64_t out)
      : weight({in, out}, {smp::Init::Kind::normal, 1 / std::sqrt(static_cast<double>(in))}), bias({1, out}) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &Dense::weight), smp::field("bias", &Dense::bias, {.decay = false}));
  }

  Output forward(auto&, const Input& x, Saved& saved) const {
    Matrix y = x * as_matrix(weight.value());
    y.rowwise() += as_matrix(bias.value()).row(0);
    y = y.array().tanh();
    saved = {x, y};
    return y;
  }
  Matrix backward(auto&, const Output& dy, Saved& saved) {
    const Matrix dz = dy.array() * (1 - saved.y.array().square());
    as_matrix(weight.grad()) += saved.x.transpose() * dz;
    as_matrix(bias.grad()) += dz.colwise().sum();
    return dz * as_matrix(weight.value()).transpose();
  }
};

/// Mean of (y - target)^2 over the samples.
struct SquaredError {
  using Input = std::tuple<Matrix, Matrix>;
  using Output = Matrix;  // 1 x 1
  using Saved = Matrix;   // y - target

  Output forward(auto&, const Input& x, Saved& difference) const {
    difference = std::get<0>(x) - std::get<1>(x);
    return Output::Constant(1, 1, difference.squaredNorm() / static_cast<double>(difference.rows()));
  }
  std::tuple<Matrix, Matrix> backward(auto&, const Output& dloss, Saved& difference) {
    const Matrix dy = difference * (2 * dloss(0, 0) / static_cast<double>(difference.rows()));
    return {dy, -dy};
  }
};

/// Points of two spirals, and which of them each is on: -1 or 1.
std::tuple<Matrix, Matrix> spirals(std::int64_t samples) {
  Matrix points(samples, 2), side(samples, 1);
  for (std::int64_t i = 0; i < samples; ++i) {
    const double along = static_cast<double>(i / 2 * 2) / static_cast<double>(samples);
    const double radius = 0.2 + 0.8 * along;
    const double angle = 3 * std::numbers::pi * along + (i % 2 == 0 ? 0 : std::numbers::pi);
    points.row(i) << radius * std::cos(angle), radius * std::sin(angle);
    side(i, 0) = i % 2 == 0 ? 1 : -1;
  }
  return {points, side};
}

}  // namespace

int main() {
  using Net = smp::Sequential<Dense, smp::Residual<smp::Sequential<Dense, Dense>>, Dense>;
  smp::comm::launch(2, [](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::Topology<smp::Degrees{.rdp = 2}>(), 1);
    auto ctx = worker.context();
    Net net(Dense(2, 32), smp::Residual(smp::Sequential(Dense(32, 32), Dense(32, 32))), Dense(32, 1));
    smp::DataParallel trainer(ctx, std::move(net), smp::optim::AdamW{});

    const auto [points, side] = spirals(256);
    const Matrix my_points = points.middleRows(128 * world.rank(), 128);
    const Matrix my_side = side.middleRows(128 * world.rank(), 128);
    for (int step = 1; step <= 500; ++step) {
      const double loss = smp::step(ctx, trainer, SquaredError{}, my_points, my_side, {.microbatches = 4}).mean();
      trainer.step(ctx, 3e-3);
      if (world.rank() == 0 && step % 100 == 0) std::printf("step %3d  loss %.4f\n", step, loss);
    }
    const auto outputs = smp::predict(ctx, trainer, points);
    const double right = (outputs[0].array() * side.array() > 0).cast<double>().mean();
    if (world.rank() == 0) std::printf("%.1f %% of the points are on the right spiral\n", 100 * right);
  });
}
