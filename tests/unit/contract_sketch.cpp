// The contract, before anything stands on it: a 1F1B pipeline over Checkpointed<Sharded<TensorParallel<Mlp>, 2>>
// blocks, with a tied embedding and an integer mask beside the hidden state. Checkpointed is the real one, the other
// strategies are as thin as they can be. Streams and communicators write down what they are asked for, and one rank's
// list is compared with the expected one.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/context.hpp>
#include <smp/layout.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>
#include <smp/topology.hpp>

#include "support/recording.hpp"

namespace {

using smp::CutOverTp, smp::Dist, smp::field, smp::GradOf, smp::Group, smp::Ids, smp::Parameter, smp::Phase,
    smp::Purpose, smp::Tensor, smp::Unit;
using smp::testing::Comm, smp::testing::Event, smp::testing::Groups, smp::testing::Kernel, smp::testing::Log,
    smp::testing::Stream;
using Topology = smp::Topology<smp::Degrees{.pp = 2, .tp = 2, .rdp = 4, .sdp = 2}>;

constexpr int rows = 3, width = 4, inner = 8, vocabulary = 6;

struct Hidden {
  Dist<Tensor> h;
  Ids mask;
  static constexpr auto fields() { return smp::fields(smp::field("h", &Hidden::h), smp::field("mask", &Hidden::mask)); }
};

struct Embedding {
  using Input = std::tuple<Ids, Ids>;  // tokens, mask
  using Output = Hidden;
  using Saved = Ids;
  Parameter weight{{vocabulary, width}};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Embedding::weight, {.tie = "wte"})); }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s = std::get<0>(x);
    ctx.stream().enqueue(Kernel{"embed", weight.value().data()});
    return {{Tensor(ctx.memory(), {rows, width})}, std::get<1>(x)};
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>&, Saved&) {
    ctx.stream().enqueue(Kernel{"embed backward", weight.grad().data()});
    return {};
  }
};

struct Head {
  using Input = Hidden;
  using Output = Dist<Tensor>;
  using Saved = Dist<Tensor>;
  Parameter weight{{vocabulary, width}};
  static constexpr auto fields() { return smp::fields(smp::field("weight", &Head::weight, {.tie = "wte"})); }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s = x.h;
    ctx.stream().enqueue(Kernel{"head", weight.value().data()});
    return {Tensor(ctx.memory(), {rows, vocabulary})};
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>&, Saved& s) {
    ctx.stream().enqueue(Kernel{"head backward", weight.grad().data()});
    return {Dist<Tensor>{Tensor(ctx.memory(), s.local.shape())}, smp::NoGrad{}};
  }
};

struct Mlp {  // its hidden features are cut over tp: a sum is pending at its end, and at the end of its backward
  using Input = Hidden;
  using Output = std::tuple<Dist<Tensor, smp::Partial>, Ids>;
  using Saved = Tensor;
  Parameter up, down;
  explicit Mlp(smp::Cut cut)
      : up({inner, width}, {}, {0, cut.part, cut.parts}), down({width, inner}, {}, {1, cut.part, cut.parts}) {}
  static constexpr auto fields() {
    return smp::fields(field<CutOverTp>("up", &Mlp::up), field<CutOverTp>("down", &Mlp::down));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s = x.h.local;
    ctx.stream().enqueue(Kernel{"mlp", up.value().data(), down.value().data()});
    return {{Tensor(ctx.memory(), s.shape())}, x.mask};
  }
  std::tuple<Dist<Tensor, smp::Partial>, smp::NoGrad> backward(auto& ctx, const Dist<Tensor>&, Saved& s) {
    ctx.stream().enqueue(Kernel{"mlp backward", up.grad().data(), down.grad().data()});
    return {{Tensor(ctx.memory(), s.shape())}, smp::NoGrad{}};
  }
};

// ---- thin strategies
template <class M>
struct TensorParallel {
  using Input = Hidden;
  using Output = Hidden;
  using Saved = typename M::Saved;
  M part;
  M& inner() { return part; }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    auto [y, mask] = part.forward(ctx, x, s);
    return {sum(ctx, y), mask};
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return {sum(ctx, std::get<0>(part.backward(ctx, std::get<0>(dy), s))), {}};
  }
  static Dist<Tensor> sum(auto& ctx, Dist<Tensor, smp::Partial> x) {
    ctx.groups()[Group::tp].all_reduce(ctx.stream(), x.local, x.local, smp::sum, Purpose::activation);
    return {x.local};
  }
};

template <class M, int Degree>
struct Sharded : M {  // inside a model: says how its units are stored; the engine reads it
  static constexpr int shard_degree = Degree;
  M& inner() { return *this; }
};

template <class A, class B>
struct Sequential {
  using Input = typename A::Input;
  using Output = typename B::Output;
  using Saved = std::pair<typename A::Saved, typename B::Saved>;
  A a;
  B b;
  int first_child = 0;  // a stage keeps the names of the whole model
  std::array<Unit*, 2> units{};
  template <class F>
  void children(F&& f) {
    f(std::to_string(first_child), a, units[0]);
    f(std::to_string(first_child + 1), b, units[1]);
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    auto y = ctx.unit(units[0], Phase::forward, [&] { return a.forward(ctx, x, s.first); });
    return ctx.unit(units[1], Phase::forward, [&] { return b.forward(ctx, y, s.second); });
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    auto d = ctx.unit(units[1], Phase::backward, [&] { return b.backward(ctx, dy, s.second); });
    return ctx.unit(units[0], Phase::backward, [&] { return a.backward(ctx, d, s.first); });
  }
};

struct Engine {  // one for a rank: brings a unit's blocks, takes them away, reduces their gradients
  struct Place {
    std::vector<float> shard, shard_grad, whole, grad;
    Event gathered, last_use, grad_ready, reduced;
  };
  Stream &compute, &gather, &reduce;
  Groups& groups;
  Log& log;
  std::vector<Place> places{};

  void enter(Unit& u, Phase phase) {
    for (smp::Block* b : u.uses) {
      Place& p = place(*b);
      gather.wait(p.last_use);
      groups[Group::shard].all_gather(gather, p.shard, p.whole, Purpose::parameter);
      gather.record(p.gathered, "gather of " + name(*b));
      compute.wait(p.gathered);
      b->value = p.whole.data();
      b->grad = phase == Phase::backward ? p.grad.data() : nullptr;
      if (phase == Phase::backward) compute.wait(p.reduced);
    }
  }
  void leave(Unit& u, Phase phase, bool last_microbatch) {
    for (smp::Block* b : u.uses) {
      Place& p = place(*b);
      b->value = b->grad = nullptr;
      compute.record(p.last_use, "last use of " + name(*b));
      log.push_back("free " + name(*b));
      if (phase == Phase::forward) continue;
      compute.record(p.grad_ready, "gradient of " + name(*b));
      reduce.wait(p.grad_ready);
      groups[Group::shard].reduce_scatter(reduce, p.grad, p.shard_grad, smp::sum, Purpose::gradient);
      if (last_microbatch) groups[Group::replica].all_reduce(reduce, p.shard_grad, p.shard_grad, smp::sum);
      reduce.record(p.reduced, "reduction of " + name(*b));
    }
  }
  void abandon(Unit&, Phase) {}
  void step(smp::Layout& layout) {
    for (const smp::Block& b : layout.blocks()) {
      if (b.tie.empty()) continue;  // a tied one is held by both stages, which sum what they have
      groups[Group::pp].all_reduce(reduce, place(b).shard_grad, place(b).shard_grad, smp::sum, Purpose::gradient);
      reduce.record(place(b).reduced, "reduction of " + name(b));
    }
    for (Place& p : places) compute.wait(p.reduced);
    compute.enqueue(Kernel{"update"});
  }
  static std::string name(const smp::Block& b) { return b.segments.front().name; }
  Place& place(const smp::Block& b) {
    if (places.size() <= static_cast<std::size_t>(b.id)) places.resize(static_cast<std::size_t>(b.id) + 1);
    Place& p = places[static_cast<std::size_t>(b.id)];
    p.shard.resize((b.size + 1) / 2), p.shard_grad.resize((b.size + 1) / 2);
    p.whole.resize(2 * p.shard.size()), p.grad.resize(2 * p.shard.size());
    return p;
  }
};

template <class S, int Microbatches, class Front, class Back>
struct Pipeline {
  static_assert(std::is_same_v<typename Front::Output, typename Back::Input>, "typed stage boundary");
  using Verified = smp::VerifiedSchedule<S, 2, Microbatches>;
  template <int Stage>
  using Module = std::conditional_t<Stage == 0, Front, Back>;

  template <int Stage>
  static void step(auto& ctx, Module<Stage>& m, const typename Front::Input& input) {
    constexpr auto slots = static_cast<std::size_t>(Verified::facts.max_in_flight[Stage]);
    std::array<typename Module<Stage>::Saved, slots> saved;
    Comm& pp = ctx.groups()[Group::pp];
    const auto send = [&](const auto& value) {
      smp::for_each_tensor(value, [&](const auto& t) { pp.send(ctx.stream(), t, 1 - Stage); });
    };
    const auto receive = [&](auto value) {
      smp::for_each_tensor(value, [&](auto& t) { pp.recv(ctx.stream(), t, 1 - Stage); });
      return value;
    };
    const auto hidden = [&] { return Dist<Tensor>{Tensor(ctx.memory(), {rows, width})}; };
    const smp::PipelinePlan plan = smp::make_pipeline_plan(S{}, smp::PipelineShape{2, Microbatches});
    for (int i = plan.first[Stage]; i < plan.first[Stage + 1]; ++i) {
      const smp::Action action = plan.actions[i];
      if (action.kind == smp::ActionKind::update) continue;
      auto& slot = saved[static_cast<std::size_t>(action.microbatch) % slots];
      ctx.last_microbatch = action.microbatch == Microbatches - 1;
      const bool forward = action.kind == smp::ActionKind::forward;
      if constexpr (Stage == 0) {
        if (forward) send(m.forward(ctx, input, slot));
        if (!forward) (void)m.backward(ctx, receive(GradOf<Hidden>{hidden(), {}}), slot);
      } else {
        if (forward) (void)m.forward(ctx, receive(Hidden{hidden(), Ids(ctx.memory(), {rows})}), slot);
        if (!forward) send(m.backward(ctx, {Tensor(ctx.memory(), {rows, vocabulary})}, slot));
      }
      if (!forward) slot = {};
    }
  }
};

using Layer = smp::Checkpointed<Sharded<TensorParallel<Mlp>, 2>>;
using Front = Sequential<Sharded<Embedding, 2>, Layer>;
using Back = Sequential<Layer, Sharded<Head, 2>>;
using Net = Pipeline<smp::Schedule::Interleaved, 2, Front, Back>;
static_assert(Net::Verified::facts.max_in_flight == std::array<int, 2>{2, 1});

template <int Stage>
Log run(typename Net::Module<Stage> m) {
  Log log;
  smp::Memory memory;
  Stream compute{"compute", &log}, gather{"gather", &log}, reduce{"reduce", &log};
  Groups groups(Topology{}, Topology{}.rank({.pp = Stage, .tp = 0, .rdp = 0}));
  smp::Layout layout(m);
  Engine engine{compute, gather, reduce, groups, log};
  smp::Context<Stream, Groups, Engine> ctx(compute, memory, groups, 0, &engine);
  static_assert(smp::Module<typename Net::Module<Stage>, decltype(ctx)>);
  Net::step<Stage>(ctx, m, {Ids(memory, {rows}), Ids(memory, {rows})});
  engine.step(layout);
  CHECK(memory[smp::MemoryUse::activation].live == 0);
  return log;
}

}  // namespace

// The list of stage 0, a line for each of F0 F1 B0 B1 U. Stage 1 differs in its modules only; its length is
// compared.
constexpr const char* expected = R"(
gather: all_gather 12 on SHARD; compute: wait for gather's gather of wte; compute: embed; free wte; gather: all_gather 16 on SHARD; compute: wait for gather's gather of 1.up; compute: mlp; compute: all_reduce 12 on TP; free 1.up; compute: send 12 on PP; compute: send 3 on PP;
gather: wait for compute's last use of wte; gather: all_gather 12 on SHARD; compute: wait for gather's gather of wte; compute: embed; free wte; gather: wait for compute's last use of 1.up; gather: all_gather 16 on SHARD; compute: wait for gather's gather of 1.up; compute: mlp; compute: all_reduce 12 on TP; free 1.up; compute: send 12 on PP; compute: send 3 on PP;
compute: recv 12 on PP; gather: wait for compute's last use of 1.up; gather: all_gather 16 on SHARD; compute: wait for gather's gather of 1.up; compute: mlp; compute: all_reduce 12 on TP; compute: mlp backward; compute: all_reduce 12 on TP; free 1.up; reduce: wait for compute's gradient of 1.up; reduce: reduce_scatter 16 on SHARD; gather: wait for compute's last use of wte; gather: all_gather 12 on SHARD; compute: wait for gather's gather of wte; compute: embed backward; free wte; reduce: wait for compute's gradient of wte; reduce: reduce_scatter 12 on SHARD;
compute: recv 12 on PP; gather: wait for compute's last use of 1.up; gather: all_gather 16 on SHARD; compute: wait for gather's gather of 1.up; compute: wait for reduce's reduction of 1.up; compute: mlp; compute: all_reduce 12 on TP; compute: mlp backward; compute: all_reduce 12 on TP; free 1.up; reduce: wait for compute's gradient of 1.up; reduce: reduce_scatter 16 on SHARD; reduce: all_reduce 16 on REPLICA; gather: wait for compute's last use of wte; gather: all_gather 12 on SHARD; compute: wait for gather's gather of wte; compute: wait for reduce's reduction of wte; compute: embed backward; free wte; reduce: wait for compute's gradient of wte; reduce: reduce_scatter 12 on SHARD; reduce: all_reduce 12 on REPLICA;
reduce: all_reduce 12 on PP; compute: wait for reduce's reduction of wte; compute: wait for reduce's reduction of 1.up; compute: update;
)";

TEST_CASE(
    "the contract carries a pipeline over checkpointed, sharded, tensor-parallel blocks: one rank, action by action") {
  const Layer layer(Sharded<TensorParallel<Mlp>, 2>{{Mlp{{0, 0, 2}}}});
  std::string found;
  for (const std::string& line : run<0>({{{}}, layer})) found += line + ";";
  std::string wanted = expected;
  std::erase(wanted, '\n');
  for (std::size_t at; (at = wanted.find("; ")) != std::string::npos;) wanted.erase(at + 1, 1);
  CHECK(found == wanted);
  const Log other = run<1>({layer, {{}}, 1});
  CHECK(std::count(other.begin(), other.end(), "gather: all_gather 16 on SHARD") == 4);
  CHECK(std::count(other.begin(), other.end(), "reduce: all_reduce 12 on PP") == 1);
}
