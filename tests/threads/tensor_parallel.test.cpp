// The parts of a module sum to the whole, in every layout; a wrong rule is found.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/residual.hpp>
#include <smp/testing/check_parts.hpp>

namespace {

using smp::Dim, smp::GradOf, smp::Parameter64, smp::Shape, smp::Split, smp::Tensor64;
using smp::testing::check_parts;
using Linear = smp::nn::Linear<double>;
using Rows = smp::Shard<Dim::sequence>;

void holds(const smp::testing::Difference& found) {
  INFO(found.where);
  CHECK(found.relative <= 1e-13);
}

/// A user's own layer, y = (x A) * (x B): plain, knows nothing of ranks.
struct Gated {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    Linear::Saved a, b;
    Tensor64 left, right;
    static constexpr auto fields() {
      return smp::fields(smp::field("a", &Saved::a), smp::field("b", &Saved::b), smp::field("left", &Saved::left),
                         smp::field("right", &Saved::right));
    }
  };
  Linear a, b;
  Gated(std::int64_t in, std::int64_t out) : a(in, out, smp::nn::Bias::no), b(in, out, smp::nn::Bias::no) {}
  static constexpr auto fields() { return smp::fields(smp::field("a", &Gated::a), smp::field("b", &Gated::b)); }

  static Tensor64 times(auto& ctx, const Tensor64& p, const Tensor64& q) {
    Tensor64 y(ctx.memory(), p.shape());
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = p.data()[i] * q.data()[i];
    return y;
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s.left = a.forward(ctx, x, s.a);
    s.right = b.forward(ctx, x, s.b);
    return times(ctx, s.left, s.right);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return smp::sum_of(ctx, a.backward(ctx, times(ctx, dy, s.right), s.a),
                       b.backward(ctx, times(ctx, dy, s.left), s.b));
  }
};

/// A linear layer for which somebody has written a wrong rule: the bias is added twice.
struct Twice : Linear {
  using Linear::Linear;
};
struct AddTwice : smp::nn::AddBias<double> {
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    return AddBias::forward(ctx, AddBias::forward(ctx, x, saved), saved);
  }
};

}  // namespace

template <>
struct smp::TensorParallelTraits<Gated, Split::usual> {
  using input = Replicated;
  using output = Shard<Dim::features>;
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &Gated::a, &Linear::weight), cut(0, &Gated::b, &Linear::weight));
  }
};
template <>
struct smp::TensorParallelTraits<Twice, Split::usual> : TensorParallelTraits<Linear, Split::rows> {
  using After = AddTwice;
  static After after(const Linear& whole) { return {{whole.bias}}; }
};

TEST_CASE("linear layers: columns, rows, rows of own samples") {
  const Linear layer(12, 24);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    holds(check_parts<Linear, Split::columns>(layer, {12, 2, 12}, ranks));
    holds(check_parts<Linear, Split::columns, Rows>(layer, {2, 12, 12}, ranks));
    holds(check_parts<Linear, Split::rows>(layer, {12, 2, 12}, ranks));
    holds(check_parts<Linear, Split::rows, Rows>(layer, {2, 12, 12}, ranks));
    holds(check_parts<Linear, Split::rows, smp::Varying>(layer, {12, 2, 12}, ranks));
  }
}

TEST_CASE("attention by heads and MLP by features, with and without bias, in every layout") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    for (const smp::nn::Bias bias : {smp::nn::Bias::yes, smp::nn::Bias::no}) {
      const smp::nn::Mlp<double> mlp(12, {.bias = bias});
      holds(check_parts(mlp, {2, 12, 12}, ranks));
      holds(check_parts<smp::nn::Mlp<double>, Split::usual, Rows>(mlp, {2, 12, 12}, ranks));
      const smp::nn::Attention<double> attention(24, 12, {.bias = bias});
      holds(check_parts(attention, {12, 4, 24}, ranks));
    }
  }
}

TEST_CASE("attention with few heads of keys and values, and to another state, in both layouts") {
  using Grouped = smp::nn::GroupedAttention<double>;
  using Cross = smp::nn::CrossAttention<double>;
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    holds(check_parts(Grouped(48, 24, 12), {2, 12, 48}, ranks));
    holds(check_parts<Grouped, Split::usual, Rows>(Grouped(48, 24, 12), {2, 12, 48}, ranks));
    const std::vector<Shape> states{{2, 12, 48}, {2, 24, 5}};
    const Cross cross(48, 24, 12, {}, 5);
    holds(check_parts<Cross>(cross, states, ranks));
    holds(check_parts<Cross, Split::usual, Rows>(cross, states, ranks));
  }
}

TEST_CASE("embeddings by numbers and by vocabulary, and the head; masks of keys") {
  using Embedding = smp::nn::Embedding<double, smp::nn::Tie::none>;
  using Head = smp::nn::LmHead<double, smp::nn::Tie::none>;
  using Masked = smp::nn::Attention<double, smp::nn::KeyMask::given>;
  using MaskedCross = smp::nn::CrossAttention<double, smp::nn::KeyMask::given>;
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    holds(check_parts<Embedding, Split::columns>(Embedding(8, 12), {2, 12}, ranks));
    for (const std::int64_t vocabulary : {8, 13}) {  // 13 divides by none
      holds(check_parts<Embedding, Split::rows>(Embedding(vocabulary, 12), {2, 12}, ranks));
      holds(check_parts<Embedding, Split::rows, Rows>(Embedding(vocabulary, 12), {2, 12}, ranks));
    }
    holds(check_parts<Head>(Head(12, 24), {2, 12, 12}, ranks));
    holds(check_parts<Head, Split::usual, Rows>(Head(12, 24), {2, 12, 12}, ranks));
    const std::vector<Shape> masked{{2, 12, 24}, {2, 12}}, crossed{{2, 12, 48}, {2, 24, 5}, {2, 24}};
    holds(check_parts<Masked, Split::usual, Rows>(Masked(24, 12), masked, ranks));
    holds(check_parts<MaskedCross, Split::usual, Rows>(MaskedCross(48, 24, 12, {}, 5), crossed, ranks));
  }
}

TEST_CASE("a user's own layer is cut by a rule of a few lines") {
  for (const int ranks : {2, 3, 4}) holds(check_parts(Gated(6, 12), {2, 12, 6}, ranks));
}

TEST_CASE("control: a bias that is added twice is found") {
  const smp::testing::Difference found = check_parts(Twice(12, 24), {2, 12, 12}, 2);
  CHECK(found.relative > 1e-3);
  CHECK(found.where.starts_with("output"));
}

TEST_CASE("heads that do not divide: a sentence with the degrees that do") {
  CHECK_THROWS_WITH_AS(
      (smp::TensorParallel<smp::nn::Attention<double>>(smp::nn::Attention<double>(24, 6), 0, 4)),
      "smp: an attention of 6 heads cannot be cut over 4 ranks; tensor-parallel degrees that can: 1, 2, 3, 6",
      smp::ConfigError);
  CHECK_THROWS_WITH_AS(
      (smp::TensorParallel<smp::nn::GroupedAttention<double>>(smp::nn::GroupedAttention<double>(24, 12, 6), 0, 4)),
      "smp: an attention of 6 heads of keys and values cannot be cut over 4 ranks; tensor-parallel degrees that can: "
      "1, "
      "2, 3, 6",
      smp::ConfigError);
}
