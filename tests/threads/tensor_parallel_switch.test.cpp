// Tensor parallelism on and off, by type and at run time; which modules of a tree are cut.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/groups.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/list_modules.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/testing/check_distribution.hpp>
#include <smp/topology.hpp>

namespace {

using smp::Dim, smp::Dist, smp::GradOf, smp::Shape, smp::Split, smp::Tensor64;
using smp::testing::check_distribution;
using Linear = smp::nn::Linear<double>;
using Mlp = smp::nn::Mlp<double>;
using Rows = smp::Shard<Dim::sequence>;

template <class M, Split S, class At, int Enabled = smp::dynamic>
using Switched = smp::TensorParallel<M, S, At, Enabled>;

/// Names of the parameters whose gradients are summed over the ranks; with an asterisk those that are cut.
template <class M>
std::string summed(M model) {
  smp::Layout layout(model);
  std::string names;
  for (const auto& b : layout.blocks()) {
    for (const auto& s : b.segments) {
      const bool cut = s.declaration->cut().parts > 1;
      if (b.summed_over_tp || cut) names += s.name + (cut ? "* " : " ");
    }
  }
  return names;
}

/// A sum over all numbers and ranks of what a module computes on two ranks, weighted by their places.
template <class M>
double weighted(const M& whole, bool enabled, const Shape& shape) {
  double result = 0;
  smp::comm::launch(2, [&](smp::comm::Threads& world) {
    using Cut = Switched<M, Split::usual, Rows>;
    smp::testing::OneRank<Cut> rank(Cut(whole, world.rank(), world.size(), enabled));
    rank.randomise(0.5);
    const smp::testing::TpGroup groups{world};
    smp::Context<smp::HostStream, const smp::testing::TpGroup> ctx(rank.stream, rank.memory, groups, 1);
    typename Cut::Saved saved{};
    const Dist<Tensor64, smp::Invariant> x{smp::testing::numbers(rank.memory, shape, 1)};
    const auto y = smp::move_to<smp::Invariant>(ctx, rank.model.forward(ctx, smp::move_to<Rows>(ctx, x), saved));
    if (world.rank() != 1) return;
    for (std::size_t i = 0; i < y.local.size(); ++i) result += y.local.data()[i] * std::sin(static_cast<double>(i));
  });
  return result;
}

// ---- the reference's tree: A(B(E, F), C, D(G, H))

/// A module that is not cut, with a linear layer.
struct Plain {
  using Input = Tensor64;
  using Output = Tensor64;
  using Saved = Linear::Saved;
  Linear layer{4, 4};
  static constexpr auto fields() { return smp::fields(smp::field("layer", &Plain::layer)); }
  Output forward(auto& ctx, const Input& x, Saved& s) const { return layer.forward(ctx, x, s); }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) { return layer.backward(ctx, dy, s); }
};
/// Two linear layers, cut as one: columns, then rows.
struct B {
  using Input = Tensor64;
  using Output = Tensor64;
  struct Saved {
    Linear::Saved e, f;
    static constexpr auto fields() { return smp::fields(smp::field("e", &Saved::e), smp::field("f", &Saved::f)); }
  };
  Linear e{4, 8}, f{8, 4};
  static constexpr auto fields() { return smp::fields(smp::field("E", &B::e), smp::field("F", &B::f)); }
  Output forward(auto& ctx, const Input& x, Saved& s) const { return f.forward(ctx, e.forward(ctx, x, s.e), s.f); }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return e.backward(ctx, f.backward(ctx, dy, s.f), s.e);
  }
};
/// G and H can be cut; H is left whole.
struct D {
  using G = smp::TensorParallel<Linear, Split::rows>;
  using H = smp::TensorParallel<Linear, Split::rows, smp::Invariant, smp::dynamic>;
  using Input = G::Input;
  using Output = H::Output;
  struct Saved {
    G::Saved g;
    H::Saved h;
    static constexpr auto fields() { return smp::fields(smp::field("g", &Saved::g), smp::field("h", &Saved::h)); }
  };
  G g;
  H h;
  D(int rank, int ranks) : g(Linear(4, 4), rank, ranks), h(Linear(4, 4), rank, ranks, false) {}
  static constexpr auto fields() { return smp::fields(smp::field("G", &D::g), smp::field("H", &D::h)); }
  Output forward(auto& ctx, const Input& x, Saved& s) const { return h.forward(ctx, g.forward(ctx, x, s.g), s.h); }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return g.backward(ctx, h.backward(ctx, dy, s.h), s.g);
  }
};

}  // namespace

template <>
struct smp::TensorParallelTraits<B, smp::Split::usual> {
  using input = Replicated;
  using output = Partial;
  using After = InPlaceOf<&B::f, nn::AddBias<double>>;
  static constexpr auto cuts() {
    return smp::cuts(cut(0, &B::e, &Linear::weight), cut(0, &B::e, &Linear::bias), cut(1, &B::f, &Linear::weight),
                     once(&B::f, &Linear::bias));
  }
  static After after(const B& whole) { return {{whole.f.bias}}; }
};

namespace {

struct A {
  using Cut = smp::TensorParallel<B>;
  using Middle = smp::Joint<Plain, smp::Tags<>>;
  using Input = Cut::Input;
  using Output = D::Output;
  struct Saved {
    Cut::Saved b;
    Plain::Saved c;
    D::Saved d;
  };
  Cut b;
  Plain c;
  D d;
  A(int rank, int ranks) : b(B(), rank, ranks), d(rank, ranks) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("B", &A::b), smp::field("C", &A::c), smp::field("D", &A::d));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return d.forward(ctx, Middle::forward(c, ctx, b.forward(ctx, x, s.b), s.c), s.d);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return b.backward(ctx, Middle::backward(c, ctx, d.backward(ctx, dy, s.d), s.c), s.b);
  }
};

std::string names(const std::vector<smp::ListedModule>& list) {
  std::string all;
  for (const auto& m : list) {
    if (m.path.find("C.") == std::string::npos) all += (all.empty() ? "" : ", ") + m.name();
  }
  return all;
}

}  // namespace

TEST_CASE("only the outermost module that can be cut is, and what is left whole is so: parts by rank of DP") {
  std::vector<std::string> lists(4);
  smp::comm::launch(4, [&](smp::comm::Threads& world) {
    smp::comm::Groups groups(world, smp::Topology<smp::Degrees{.tp = 2, .rdp = 2}>());
    auto& tp = groups[smp::Group::tp];
    A model(tp.rank(), tp.size());
    lists[static_cast<std::size_t>(groups[smp::Group::dp].rank())] = names(smp::list_modules(model, "A"));
  });
  CHECK(lists[0] == "A, B:0, C, D, G:0, H");
  CHECK(lists[1] == "A, B:1, C, D, G:1, H");
  CHECK(lists[2] == "A, B:0, C, D, G:0, H");
  CHECK(lists[3] == "A, B:1, C, D, G:1, H");
  A model(1, 2);
  CHECK(smp::list_modules(model, "A")[1] == smp::ListedModule{"A.B", 1, 2});
  CHECK(summed(A(0, 2)) == "B.E.weight* B.F.weight* D.G.weight* B.E.bias* ");
  const auto make = [](int rank, int ranks) { return A(rank, ranks); };
  CHECK(check_distribution(make, {4, 4, 4}, 2) == "");
}

TEST_CASE("off: all of the module on every rank; the types around it and the gradients' groups are right") {
  const auto linear = [](bool on) { return Switched<Linear, Split::rows, Rows>(Linear(4, 4), 0, 2, on); };
  CHECK(summed(linear(true)) == "weight* bias ");
  CHECK(summed(linear(false)) == "weight bias ");  // applied to rows as they arrive
  CHECK(summed(Switched<Linear, Split::rows, smp::Invariant>(Linear(4, 4), 0, 2, false)) == "");
  CHECK(summed(Switched<Linear, Split::rows, smp::Varying>(Linear(4, 4), 0, 2, false)) == "weight bias ");
  // An MLP does not say that it treats slices alone: rows are gathered before it, and its gradients are complete.
  const auto mlp = [](bool on) { return Switched<Mlp, Split::usual, Rows>(Mlp(4), 0, 2, on); };
  CHECK(summed(mlp(true)) == "c_fc.weight* c_proj.weight* c_fc.bias* c_proj.bias ");
  CHECK(summed(mlp(false)) == "");
  // By type, also of a module without a rule.
  using Never = Switched<Plain, Split::usual, Rows, 0>;
  static_assert(std::is_same_v<Never::Output, Dist<Tensor64, Rows>>);
  static_assert(std::is_same_v<Switched<Linear, Split::columns, Rows, 0>::Output,
                               Switched<Linear, Split::columns, Rows, 1>::Output>);
  CHECK(summed(Never(Plain(), 0, 2)) == "");
  CHECK(Never(Plain(), 1, 2).cut().parts == 1);
}

TEST_CASE("a container of plain modules stands where the container around it says") {
  using Inner = smp::Sequential<Linear, smp::Sequential<Linear>>;
  const auto at = []<class At>(At) {
    return summed(smp::Sequential<Inner, smp::Move<Tensor64, At, At>>(
        Inner(Linear(4, 4), smp::Sequential<Linear>(Linear(4, 4))), {}));
  };
  CHECK(at(smp::Invariant{}) == "");
  CHECK(at(smp::Shard<Dim::batch>{}) == "0.0.weight 0.0.bias 0.1.0.weight 0.1.0.bias ");
  CHECK(at(smp::Varying{}) == "0.0.weight 0.0.bias 0.1.0.weight 0.1.0.bias ");
}

TEST_CASE("off: forward and backward do what the types say, wherever the module stands") {
  const Shape shape{4, 4, 4};
  const auto off = []<class At, Split S>(int rank, int ranks) {
    return Switched<Linear, S, At>(Linear(4, 8), rank, ranks, false);
  };
  for (const int ranks : {2, 4}) {
    const auto check = [&]<class At, Split S>() {
      return check_distribution([&](int r, int n) { return off.template operator()<At, S>(r, n); }, shape, ranks);
    };
    CHECK(check.operator()<smp::Invariant, Split::rows>() == "");
    CHECK(check.operator()<Rows, Split::rows>() == "");
    CHECK(check.operator()<smp::Varying, Split::rows>() == "");
    CHECK(check.operator()<Rows, Split::columns>() == "");
    const auto mlp = [](int r, int n) { return Switched<Mlp, Split::usual, Rows>(Mlp(4), r, n, false); };
    CHECK(check_distribution(mlp, shape, ranks) == "");
  }
}

TEST_CASE("on and off compute the same") {
  const Mlp mlp(4, {.dropout = 0.25});
  const double on = weighted(mlp, true, {2, 4, 4}), off = weighted(mlp, false, {2, 4, 4});
  CHECK(std::abs(on) > 0.1);
  CHECK(on == doctest::Approx(off).epsilon(1e-13));
}
