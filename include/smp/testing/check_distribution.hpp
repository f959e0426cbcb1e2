// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Tests whether a module does what its types say of distributions, without a reference: by the adjoint of its
/// derivative, and by comparing what must be equal on all ranks. For modules of yours, too.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/launch.hpp>
#include <smp/comm/threads.hpp>
#include <smp/parallel/move.hpp>
#include <smp/testing/check_parts.hpp>
#include <smp/testing/one_rank.hpp>

namespace smp::testing {

/// One rank's side of `check_distribution`.
template <class M>
class DistributionCheck {
  using In = typename M::Input;
  using Out = typename M::Output;
  static_assert(is_dist<In> && is_dist<Out>,
                "smp::testing::check_distribution: Input and Output of the module are one Dist<Tensor64, ...> each");
  using I = typename In::tp;
  using O = typename Out::tp;
  using Context = smp::Context<HostStream, const TpGroup>;

 public:
  /// Of a module that has its parameters.
  DistributionCheck(OneRank<M>& rank, comm::Threads& world)
      : rank_(rank), groups_{world}, ctx_(rank.stream, rank.memory, groups_, 1) {}

  /// What does not hold, or nothing.
  [[nodiscard]] std::string run(const Shape& whole) {
    const In x{value<I>(whole, 1)}, v{value<I>(whole, 2)};
    typename M::Saved saved{};
    const Out y = rank_.model.forward(ctx_, x, saved);
    Shape all = y.local.shape();
    if (is_cut(O::on)) all = joined_shape(all, cut_dim(O::on), groups_.world.size());
    const GradOf<Out> g{value<GradOn<O>>(all, 3)};
    const GradOf<In> dx = rank_.model.backward(ctx_, g, saved);
    std::string wrong;
    if (is_whole(O::on) && !equal_on_ranks(y.local)) wrong += "the output is not equal on all ranks; ";
    if (is_whole(GradOn<I>::on) && !equal_on_ranks(dx.local)) wrong += "the gradient of the input is not equal; ";

    const auto phi = [&](const In& at) {
      typename M::Saved unused{};
      return pairing<O>(rank_.model.forward(ctx_, at, unused).local, g.local);
    };
    const auto along_input = [&](double steps) { return phi({sum(x.local, v.local, steps)}); };
    wrong += compare("the input", derivative(along_input), pairing<I>(v.local, dx.local));
    for (Block& b : rank_.layout().blocks()) {
      for (const Block::Segment& s : b.segments) wrong += check_parameter(b, s, x, phi);
    }
    return wrong;
  }

 private:
  static constexpr double step = 1e-3;

  static bool is_cut(SpreadOn on) { return on.kind == Spread::shard || on.kind == Spread::varying; }
  static bool is_whole(SpreadOn on) { return on.kind == Spread::invariant || on.kind == Spread::replicated; }

  template <class D>
  Tensor64 value(const Shape& whole, std::uint64_t stream) {
    const auto own = static_cast<std::uint64_t>(groups_.world.rank()) + 1;
    const Shape shape = is_cut(D::on) ? slice_shape(whole, cut_dim(D::on), groups_.world.size()) : whole;
    return numbers(rank_.memory, shape, is_whole(D::on) ? stream : stream + 100 * own);
  }
  Tensor64 sum(const Tensor64& x, const Tensor64& v, double steps) {
    Tensor64 y(rank_.memory, x.shape());
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = x.data()[i] + steps * step * v.data()[i];
    return y;
  }
  double over_ranks(double x) {
    std::vector<double> one{x};
    groups_.world.all_reduce(ctx_.stream(), one, one, smp::sum);
    return one[0];
  }
  /// A value against a gradient: what is Invariant counts once.
  template <class D>
  double pairing(const Tensor64& x, const Tensor64& g) {
    double products = 0;
    for (std::size_t i = 0; i < x.size(); ++i) products += x.data()[i] * g.data()[i];
    const double all = over_ranks(products);
    return D::on == Invariant::on ? all / groups_.world.size() : all;
  }
  bool equal_on_ranks(const Tensor64& x) {
    std::vector<double> all(x.size() * static_cast<std::size_t>(groups_.world.size()));
    groups_.world.all_gather(ctx_.stream(), x, all);
    double differences = 0;
    for (std::size_t i = 0; i < all.size(); ++i) differences += all[i] != x.data()[i % x.size()] ? 1 : 0;
    return over_ranks(differences) == 0;
  }
  template <class F>
  static double derivative(F f) {
    return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * step);
  }
  static std::string compare(const std::string& what, double numerical, double found) {
    if (std::abs(numerical - found) <= 1e-8 * (1 + std::abs(numerical))) return "";
    return "the gradient of " + what + " is " + std::to_string(found / numerical) + " of the right one; ";
  }

  template <class Phi>
  std::string check_parameter(Block& b, const Block::Segment& s, const In& x, const Phi& phi) {
    const bool cut = s.declaration->cut().dim >= 0;
    auto* values = static_cast<double*>(b.value) + s.begin;
    const std::size_t n = s.end - s.begin;
    const auto size = static_cast<std::int64_t>(n);
    const Tensor64 direction = cut ? value<Varying>({size * groups_.world.size()}, 4) : value<Invariant>({size}, 4);
    Tensor64 gradient(rank_.memory, {size});
    for (std::size_t i = 0; i < n; ++i) gradient.data()[i] = static_cast<const double*>(b.grad)[s.begin + i];
    if (b.summed_over_tp) groups_.world.all_reduce(ctx_.stream(), gradient, gradient, smp::sum);
    const std::vector<double> before(values, values + n);
    const auto moved_by = [&](double steps) {
      for (std::size_t i = 0; i < n; ++i) values[i] = before[i] + steps * step * direction.data()[i];
      return phi(x);
    };
    const double numerical = derivative(moved_by);
    std::copy(before.begin(), before.end(), values);
    std::string wrong;
    if (!cut && !equal_on_ranks(gradient)) wrong += "the gradient of " + s.name + " is not equal on all ranks; ";
    return wrong + compare(s.name, numerical,
                           cut ? pairing<Varying>(direction, gradient) : pairing<Invariant>(direction, gradient));
  }

  OneRank<M>& rank_;
  const TpGroup groups_;
  Context ctx_;
};

/// Whether a module's forward and backward, and the sums of its parameters' gradients that follow from its types, agree
/// with its derivative on `ranks` ranks, and whether what its types call equal is equal in every bit.
/// @param make is called as `make(rank, ranks)` on each rank; parameters and activations are in double precision
/// @param whole the shape of the input of all ranks together
/// @return what does not hold, or an empty text
template <class Make>
[[nodiscard]] std::string check_distribution(Make&& make, const Shape& whole, int ranks) {
  using M = decltype(make(0, 1));
  std::string wrong;
  std::mutex mutex;
  comm::launch(ranks, [&](comm::Threads& world) {
    OneRank<M> rank(make(world.rank(), ranks));
    rank.randomise(0.5);
    const std::string found = DistributionCheck<M>(rank, world).run(whole);
    const std::lock_guard lock(mutex);
    if (wrong.empty()) wrong = found;
  });
  return wrong;
}

}  // namespace smp::testing
