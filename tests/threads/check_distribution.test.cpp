// Modules that do what their types say, and three that lie.
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/testing/check_distribution.hpp>

namespace {

using smp::Dim, smp::Dist, smp::GradOf, smp::Split, smp::Tensor64;
using Linear = smp::nn::Linear<double>;
using Norm = smp::nn::LayerNorm<double>;
using smp::testing::check_distribution;

/// A plain norm where values are distributed as `At`.
template <class At>
using NormAt = smp::Sequential<Norm, smp::Move<Tensor64, At, At>>;

/// Liar: a column-cut layer that does not sum the gradient of its input.
struct NotSummed {
  using Input = Dist<Tensor64, smp::Invariant>;
  using Output = Dist<Tensor64, smp::Shard<Dim::features>>;
  using Saved = Linear::Saved;
  Linear layer;
  static constexpr auto fields() { return smp::fields(smp::field<smp::CutOverTp>("layer", &NotSummed::layer)); }
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return {layer.forward(ctx, x.local, saved)}; }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return {layer.backward(ctx, dy.local, saved)};
  }
};
/// Liar: a norm on slices of a sequence that says it is applied to equal values, so that nobody sums its gradients.
struct SaysInvariant {
  using Input = Dist<Tensor64, smp::Shard<Dim::sequence>>;
  using Output = Input;
  using Saved = Norm::Saved;
  Norm norm{12};
  Output forward(auto& ctx, const Input& x, Saved& saved) const { return {norm.forward(ctx, x.local, saved)}; }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return {norm.backward(ctx, dy.local, saved)};
  }
  static constexpr auto fields() { return smp::fields(smp::field<smp::Invariant>("norm", &SaysInvariant::norm)); }
};
/// Liar: a row-cut layer whose bias every rank adds before the sum.
struct BiasInEachPart {
  using Input = Dist<Tensor64, smp::Shard<Dim::features>>;
  using Output = Dist<Tensor64, smp::Invariant>;
  using Saved = Linear::Saved;
  Linear layer;
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    return smp::move_to<smp::Invariant>(ctx, Dist<Tensor64, smp::Partial>{layer.forward(ctx, x.local, saved)});
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return {layer.backward(ctx, dy.local, saved)};
  }
  static constexpr auto fields() { return smp::fields(smp::field<smp::CutOverTp>("layer", &BiasInEachPart::layer)); }
};

Linear part(int rank, int ranks, int dim) {
  return {smp::ParameterOf<double>({24, 12}, {}, smp::Cut{dim, rank, ranks}),
          dim == 0 ? smp::ParameterOf<double>({24}, {}, smp::Cut{0, rank, ranks}) : smp::ParameterOf<double>({24})};
}

template <class At, Split S>
auto cut_linear(int rank, int ranks) {
  return smp::TensorParallel<Linear, S, At>(Linear(12, 24), rank, ranks);
}
template <class At>
auto norm_at(int, int) {
  return NormAt<At>(Norm(12), {});
}

}  // namespace

TEST_CASE("honest modules pass on 2 and 4 ranks") {
  using Rows = smp::Shard<Dim::sequence>;
  const smp::Shape shape{4, 4, 12};
  for (const int ranks : {2, 4}) {
    CHECK(check_distribution(norm_at<smp::Invariant>, shape, ranks) == "");
    CHECK(check_distribution(norm_at<Rows>, shape, ranks) == "");
    CHECK(check_distribution(norm_at<smp::Replicated>, shape, ranks) == "");
    CHECK(check_distribution(norm_at<smp::Varying>, shape, ranks) == "");
    CHECK(check_distribution(cut_linear<smp::Invariant, Split::columns>, shape, ranks) == "");
    CHECK(check_distribution(cut_linear<Rows, Split::rows>, shape, ranks) == "");
    CHECK(check_distribution(cut_linear<smp::Varying, Split::rows>, shape, ranks) == "");
  }
}

TEST_CASE("liars are named") {
  const smp::Shape shape{4, 4, 12};
  const auto not_summed = [](int rank, int ranks) { return NotSummed{part(rank, ranks, 0)}; };
  CHECK(check_distribution(not_summed, shape, 2).find("the gradient of the input is not equal") != std::string::npos);
  const auto says_invariant = [](int, int) { return SaysInvariant{}; };
  CHECK(check_distribution(says_invariant, shape, 2).find("gradient of norm.weight") != std::string::npos);
  const auto biased = [](int rank, int ranks) { return BiasInEachPart{part(rank, ranks, 1)}; };
  CHECK(check_distribution(biased, shape, 2).find("the gradient of layer.bias is 0.5") != std::string::npos);
}
