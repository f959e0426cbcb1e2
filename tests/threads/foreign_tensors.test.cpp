// SPDX-License-Identifier: Apache-2.0
// Tensors that are not ours: modules on std::vector, in containers, cut into micro-batches, on one rank and on two.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/launch.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

using Numbers = std::vector<double>;  // one of each sample

template <>
struct smp::TensorTraits<Numbers> {
  using element = double;
  static std::span<const double> data(const Numbers& v) { return v; }
  static std::span<double> data(Numbers& v) { return v; }
  static smp::Shape shape(const Numbers& v) { return {static_cast<std::int64_t>(v.size())}; }
  static Numbers make(smp::Memory&, const smp::Shape& shape) { return Numbers(shape.elements()); }
  static Numbers slice(const Numbers& v, std::int64_t first, std::int64_t count) {
    return {v.begin() + first, v.begin() + first + count};
  }
};

namespace {

/// y = w x, where w begins as 1.
struct Scale {
  using Input = Numbers;
  using Output = Numbers;
  using Saved = Numbers;
  smp::Parameter64 weight{{1}, {smp::Init::Kind::ones}};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Scale::weight)); }

  Output forward(auto&, const Input& x, Saved& saved) const {
    saved = x;
    return times(weight.value().data()[0], x);
  }
  Numbers backward(auto&, const Output& dy, Saved& saved) {
    for (std::size_t i = 0; i < dy.size(); ++i) weight.grad().data()[0] += dy[i] * saved[i];
    return times(weight.value().data()[0], dy);
  }
  static Numbers times(double w, Numbers x) {
    for (double& v : x) v *= w;
    return x;
  }
};

/// Mean of (y - target)^2.
struct SquaredError {
  using Input = std::tuple<Numbers, Numbers>;
  using Output = Numbers;
  using Saved = Numbers;
  Output forward(auto&, const Input& x, Saved& difference) const {
    const auto& [y, target] = x;
    double sum = 0;
    difference.clear();
    for (std::size_t i = 0; i < y.size(); ++i) {
      difference.push_back(y[i] - target[i]);
      sum += difference.back() * difference.back();
    }
    return {sum / static_cast<double>(y.size())};
  }
  std::tuple<Numbers, Numbers> backward(auto&, const Output& dloss, Saved& difference) {
    const Numbers dy = Scale::times(2 * dloss[0] / static_cast<double>(difference.size()), difference);
    return {dy, Scale::times(-1, dy)};
  }
};

using Net = smp::Sequential<Scale, smp::Residual<Scale>, smp::Checkpointed<Scale>>;  // y = w0 (1 + w1) w2 x = 2 x

}  // namespace

TEST_CASE("a net on std::vector has the loss, the gradients and the update that can be computed by hand") {
  for (const int ranks : {1, 2}) {
    for (const int microbatches : {1, 2}) {
      smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
        smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(ranks, {.rdp = ranks})), 1);
        auto ctx = worker.context();
        smp::DataParallel trainer(ctx, Net{}, smp::optim::Sgd{});
        const Numbers all{1, 2, 3, 4};
        const auto mine = static_cast<std::int64_t>(all.size()) / ranks;
        const Numbers x = smp::TensorTraits<Numbers>::slice(all, world.rank() * mine, mine);

        const auto loss = smp::step(ctx, trainer, SquaredError{}, x, Numbers(x.size()), {.microbatches = microbatches});
        CHECK(loss.mean() == 30);                  // 4 (1 + 4 + 9 + 16) / 4
        CHECK(trainer.step(ctx, 1.0 / 64) == 90);  // of the gradient (60, 30, 60)
        std::map<std::string, double, std::less<>> found;
        trainer.for_each_parameter(
            [&](std::string_view name, const smp::Shape&, auto values, auto) { found.emplace(name, values[0]); });
        CHECK(found ==
              decltype(found){{"0.weight", 1 - 60.0 / 64}, {"1.weight", 1 - 30.0 / 64}, {"2.weight", 1 - 60.0 / 64}});
      });
    }
  }
}
