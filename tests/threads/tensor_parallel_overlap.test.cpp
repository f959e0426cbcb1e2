// With a second stream, the gradient of the input is summed over the ranks while those of the parameters are computed:
// by the order of events, and with the same bits as without.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/decorator.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/testing/check_parts.hpp>
#include <smp/train/worker.hpp>

namespace {

using smp::Dim, smp::Dist, smp::GradOf, smp::HostStream, smp::Shape, smp::Split, smp::Tensor64;
using Mode = HostStream::Mode;
using Linear = smp::nn::Linear<double>;
using Rows = smp::Shard<Dim::sequence>;

/// What has happened on one rank, in order.
struct Events {
  std::mutex mutex;
  std::string text;
  std::atomic<bool> parameters{false};

  void add(char c) {
    const std::lock_guard lock(mutex);
    text += c;
  }
};

/// A layer that writes down when its gradients are computed.
struct Watched : Linear {
  Events* events = nullptr;
  explicit Watched(Events& e) : Linear(8, 8), events(&e) {}
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    auto dx = Linear::backward_input(ctx, dy, saved);
    ctx.stream().enqueue([e = events] { e->add('x'); });
    return dx;
  }
  void backward_params(auto& ctx, Saved& saved) {
    Linear::backward_params(ctx, saved);
    ctx.stream().enqueue([e = events] {
      e->add('p');
      e->parameters = true;
    });
  }
};

/// A communicator that writes down when sums begin and end. If `holds`, they begin only after the gradients of the
/// parameters, which therefore must not wait for them.
class Watching : public smp::comm::Decorator<Watching, smp::comm::Threads> {
 public:
  Watching(smp::comm::Threads inner, Events& events, bool holds)
      : Decorator(std::move(inner)), events_(&events), holds_(holds) {}
  void enqueue(HostStream& stream, const smp::comm::Call& call) {
    stream.enqueue([this, call] {
      events_->add('[');
      const auto end = smp::Clock::now() + std::chrono::seconds(20);
      const bool sums = call.operation != smp::comm::Operation::all_gather;
      while (holds_ && sums && !events_->parameters && smp::Clock::now() < end) std::this_thread::yield();
      if (holds_ && sums) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for others to go wrong
      this->inner().execute(call);
      events_->add(']');
    });
  }
  [[nodiscard]] Watching split(int, int, std::string) { return *this; }

 private:
  Events* events_;
  bool holds_;
};
struct WatchedGroup {
  Watching& tp;
  Watching& operator[](smp::Group) const noexcept { return tp; }
};

}  // namespace

template <>
struct smp::TensorParallelTraits<Watched, Split::columns> : TensorParallelTraits<Linear, Split::columns> {};

namespace {

/// One backward of a layer; '!' when what follows in the stream of the computation runs.
template <class At>
std::string order(Mode mode, bool beside) {
  std::string text;
  smp::comm::launch(2, [&](smp::comm::Threads& world) {
    using Cut = smp::TensorParallel<Watched, Split::columns, At>;
    Events events;
    Watching tp(world, events, beside);
    const WatchedGroup groups{tp};
    smp::testing::OneRank<Cut> rank(Cut(Watched(events), world.rank(), 2));
    smp::SideStream<HostStream> side;
    HostStream stream(mode);
    smp::Context<HostStream, const WatchedGroup> ctx(stream, rank.memory, groups, 1);
    if (beside) ctx.beside = &side;
    typename Cut::Saved saved{};
    const std::int64_t rows = smp::move_kind(At::on, smp::Replicated::on) == smp::MoveKind::all_gather ? 2 : 4;
    events.parameters = true;  // forward is not of interest
    const typename Cut::Input x{smp::testing::numbers(rank.memory, {rows, 8}, 1)};
    const auto y = rank.model.forward(ctx, x, saved);
    stream.synchronize();
    events.parameters = false;
    events.text.clear();
    const auto dx = rank.model.backward(ctx, {smp::testing::numbers(rank.memory, y.local.shape(), 2)}, saved);
    stream.enqueue([&] { events.add('!'); });
    stream.synchronize();
    if (world.rank() == 0) text = events.text;
  });
  return text;
}

/// Everything that backward of a module gives on two ranks, in bits.
template <class M, class At>
std::vector<double> results(const M& module, const std::vector<Shape>& shapes, Mode mode, bool beside,
                            bool split = false) {
  std::vector<double> all;
  smp::comm::launch(2, [&](smp::comm::Threads& world) {
    smp::Worker worker(world, smp::Topology<smp::Degrees{.tp = 2}>(), 1, mode);
    if (beside) worker.overlap_communication();
    auto ctx = worker.context();
    REQUIRE((ctx.beside != nullptr) == beside);
    using Cut = smp::TensorParallel<M, Split::usual, At>;
    smp::testing::OneRank<Cut> rank(Cut(module, world.rank(), 2));
    rank.randomise(0.5);
    typename Cut::Saved saved{};
    for (int pass = 0; pass < 3; ++pass) {
      const auto x = smp::testing::numbers_like<smp::SpreadAs<typename M::Input, smp::Tags<>>>(ctx.memory(), shapes, 1);
      const auto y = rank.model.forward(ctx, smp::moved<At>(ctx, x), saved);
      ctx.stream().synchronize();  // what comes next is filled by the host
      const Tensor64 dy = smp::testing::numbers(ctx.memory(), y.local.shape(), 2);
      const auto dx = split ? rank.model.backward_input(ctx, {dy}, saved) : rank.model.backward(ctx, {dy}, saved);
      if (split) rank.model.backward_params(ctx, saved);
      saved = {};
      ctx.stream().synchronize();
      if (world.rank() != 0) continue;
      for (const double d : smp::testing::all_numbers(dx)) all.push_back(d);
    }
    if (world.rank() != 0) return;
    for (const smp::Block& b : rank.layout().blocks()) {
      all.insert(all.end(), static_cast<const double*>(b.grad), static_cast<const double*>(b.grad) + b.size);
    }
  });
  return all;
}

}  // namespace

TEST_CASE("the sum begins after the input's gradient, lets the parameters' pass, and ends before what follows") {
  for (const Mode mode : {Mode::at_once, Mode::worker}) {
    // Speed: one all-reduce. Memory: the slices are gathered again, then one reduce-scatter.
    CHECK(order<smp::Invariant>(mode, false) == "x[]p!");
    CHECK(order<Rows>(mode, false) == "[]x[]p!");
    const std::string speed = order<smp::Invariant>(mode, true), memory = order<Rows>(mode, true);
    CHECK((speed == "x[p]!" || speed == "xp[]!"));
    CHECK((memory == "[]x[p]!" || memory == "[]xp[]!"));
  }
}

TEST_CASE(
    "the bits are those without a second stream, and of backward in two parts, in both layouts, for one state and for "
    "two") {
  const smp::nn::Mlp<double> mlp(12);
  const smp::nn::CrossAttention<double> cross(12, 4, 2, {}, 6);
  for (const Mode mode : {Mode::at_once, Mode::worker}) {
    const auto same = [&]<class At, class M>(const M& module, const std::vector<Shape>& shapes) {
      const auto plain = results<M, At>(module, shapes, mode, false);
      return results<M, At>(module, shapes, mode, true) == plain &&
             results<M, At>(module, shapes, mode, false, true) == plain;
    };
    CHECK(same.operator()<smp::Invariant>(mlp, {{2, 4, 12}}));
    CHECK(same.operator()<Rows>(mlp, {{2, 4, 12}}));
    CHECK(same.operator()<smp::Invariant>(cross, {{2, 4, 12}, {2, 6, 6}}));
    CHECK(same.operator()<Rows>(cross, {{2, 4, 12}, {2, 6, 6}}));
  }
}
