// What goes wrong in other systems that shard parameters, with the right values; and what happens when ranks leave the
// recorded order, alone or together, or a module throws.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/layer_norm.hpp>
#include <smp/nn/linear.hpp>
#include <smp/optim/sgd.hpp>
#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/samples.hpp"
#include "support/tiny_modules.hpp"
#include "support/weights.hpp"

namespace {

using namespace smp::testing;
using smp::AsUnit, smp::GradOf, smp::MemoryUse, smp::ShardedOptions, smp::comm::Operation;

using T = double;
using Values = smp::TensorOf<T>;
using Plain = Dense<T>;
template <class M, class Opt = smp::optim::AdamW>
using Sharded = smp::Sharded<M, smp::dynamic, Opt>;

smp::DynamicTopology topology(int world, int sdp) {
  return smp::DynamicTopology(smp::degrees_for(world, {.rdp = smp::dynamic, .sdp = sdp}));
}
ShardedOptions everything_cut() { return {.clip = 0, .persistence_threshold = 0}; }

void check_close(const Weights& found, const Weights& expected) {
  REQUIRE(found.size() == expected.size());
  for (const auto& [name, values] : expected) {
    CAPTURE(name);
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(found.at(name)[i] - values[i]));
    CHECK(worst <= 1e-12);
  }
}

/// `steps` steps on 16 samples, each rank its own of them.
template <class World, class M>
Weights train(World& world, M model, int sdp, std::int64_t in, std::int64_t out, const ShardedOptions& options,
              smp::StepOptions step = {}) {
  smp::Worker worker(world, topology(world.size(), sdp), 3);
  auto ctx = worker.context();
  Sharded<M> trainer(ctx, std::move(model), smp::optim::AdamW({.weight_decay = 0.1}), options);
  const std::int64_t each = 16 / world.size();
  for (int s = 0; s < 5; ++s) {
    const std::int64_t first = 16 * s + each * world.rank();
    step.first_sample = static_cast<std::uint64_t>(first);
    const auto x = samples(worker.memory(), first, first + each, in, 0);
    const auto y = samples(worker.memory(), first, first + each, out, 1);
    smp::step(ctx, trainer, SquaredError<T>{}, x, y, step);
    trainer.step(ctx, 0.01);
  }
  return weights(ctx, trainer);
}
template <class World, class M>
Weights alone(World& world, M model, std::int64_t in, std::int64_t out, smp::StepOptions step = {}) {
  auto self = world.split(world.rank(), 0, "ALONE");  // over the same kind of communicator: one instantiation
  return train(self, std::move(model), 1, in, out, everything_cut(), step);
}

/// Sizes of biases: 1, 3, 7, 8, 9.
using Sizes = smp::Sequential<Plain, Plain, Plain, Plain, Plain>;
Sizes sizes() { return Sizes(Plain(4, 1), Plain(1, 3), Plain(3, 7), Plain(7, 8), Plain(8, 9)); }

/// Layer 2 adds the weight of layer 1, of which it has a pointer only, to its input.
struct Adds {
  using Input = Values;
  using Output = Values;
  struct Saved {};
  smp::ParameterOf<T>* other = nullptr;
  static constexpr auto fields() { return smp::fields(); }
  Output forward(auto& ctx, const Input& x, Saved&) const {
    Values y(ctx.memory(), x.shape());
    ctx.stream().enqueue([x = x.data(), w = other->value().data(), y = y.data(), n = x.size()] {
      for (std::size_t i = 0; i < n; ++i) y[i] = x[i] + w[i % 3];
    });
    return y;
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved&) {
    ctx.stream().enqueue([dy = dy.data(), dw = other->grad().data(), n = dy.size()] {
      for (std::size_t i = 0; i < n; ++i) dw[i % 3] += dy[i];
    });
    return dy;
  }
};
struct Reaches {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved first;
    smp::Checkpointed<Adds, smp::dynamic>::Saved second;
    Plain::Saved third;
  };
  AsUnit<Plain> first{Plain(3, 3)};
  AsUnit<smp::Checkpointed<Adds, smp::dynamic>> second;
  AsUnit<Plain> third{Plain(3, 3)};
  explicit Reaches(bool checkpointed) : second(smp::Checkpointed<Adds, smp::dynamic>(Adds{}, checkpointed)) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &Reaches::first), smp::field("second", &Reaches::second),
                       smp::field("third", &Reaches::third));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return third.forward(ctx, second.forward(ctx, first.forward(ctx, x, s.first), s.second), s.third);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return first.backward(ctx, second.backward(ctx, third.backward(ctx, dy, s.third), s.second), s.first);
  }
};

/// Adds a weight of the root, without a gradient of its own.
struct Peeks : Adds {
  GradOf<Input> backward(auto&, const GradOf<Output>& dy, Saved&) { return dy; }
};
struct Root {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Peeks::Saved first;
    Plain::Saved last;
  };
  AsUnit<Peeks> first;
  Plain last{3, 3};
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &Root::first), smp::field("last", &Root::last));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return last.forward(ctx, first.forward(ctx, x, s.first), s.last);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return first.backward(ctx, last.backward(ctx, dy, s.last), s.first);
  }
};

/// Two heads of which a step uses one; or, on rank `deviates`, the other one.
struct Heads {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved trunk, head;
    bool second = false;
  };
  Plain trunk{4, 4};
  AsUnit<Plain> left{Plain(4, 4)}, right{Plain(4, 4)};
  bool deviates = false;
  bool throws = false;
  static constexpr auto fields() {
    return smp::fields(smp::field("trunk", &Heads::trunk), smp::field("left", &Heads::left),
                       smp::field("right", &Heads::right));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s.second = (ctx.position.step % 3 == 1) != deviates;
    if (throws && ctx.position.step == 1) throw std::runtime_error("a module gives up");
    const auto h = trunk.forward(ctx, x, s.trunk);
    return (s.second ? right : left).forward(ctx, h, s.head);
  }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& s) {
    return trunk.backward(ctx, (s.second ? right : left).backward(ctx, dy, s.head), s.trunk);
  }
};

/// Four parameters whose gradients are ones when the copies of the model have summed theirs; the last is cut over tp.
struct Ones {
  using Input = smp::Dist<Values>;
  using Output = smp::Dist<Values>;
  struct Saved {};
  smp::ParameterOf<T> a{{8}}, b{{3}}, c{{2}}, d;
  int copies;
  Ones(int part, int parts, int all) : d({4}, {}, {0, part, parts}), copies(all) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("a", &Ones::a), smp::field("b", &Ones::b), smp::field("c", &Ones::c),
                       smp::field<smp::CutOverTp>("d", &Ones::d));
  }
  Output forward(auto&, const Input& x, Saved&) const { return x; }
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved&) {
    for (const auto* p : {&a, &b, &c, &d}) {
      ctx.stream().enqueue([g = p->grad().data(), n = p->size(), share = 1.0 / copies] {
        for (std::size_t i = 0; i < n; ++i) g[i] += share;
      });
    }
    return dy;
  }
};

}  // namespace

TEST_CASE("case 14: parameters with fewer elements than ranks, below and above the persistence threshold") {
  on_few_ranks({2, 4, 8}, [](auto& world) {
    const Weights one = alone(world, sizes(), 4, 9);
    for (const std::size_t threshold : {std::size_t{0}, std::size_t{10}}) {
      ShardedOptions options = everything_cut();
      options.persistence_threshold = threshold;
      check_close(train(world, sizes(), world.size(), 4, 9, options), one);
    }
  });
}

TEST_CASE("case 17: a parameter that another unit uses, unregistered and registered, plain and checkpointed") {
  on_ranks({1, 2, 4}, [](auto& world) {
    const auto run = [&](auto& group, int sdp, bool checkpointed, bool registered) {
      smp::Worker worker(group, topology(group.size(), sdp), 3);
      auto ctx = worker.context();
      ShardedOptions options = everything_cut();
      if (registered) options.external_parameters = {{"second", "first.weight"}};
      Sharded<Reaches> trainer(ctx, Reaches(checkpointed), {}, options);
      auto& model = trainer.module();
      model.second.marked().inner().other = &model.first.marked().weight;
      const std::int64_t each = 8 / group.size();
      for (int s = 0; s < 3; ++s) {
        const auto x = samples(worker.memory(), each * group.rank(), each * (group.rank() + 1), 3, s);
        smp::step(ctx, trainer, SquaredError<T>{}, x, x);
        trainer.step(ctx, 0.01);
      }
      return weights(ctx, trainer);
    };
    auto self = world.split(world.rank(), 0, "ALONE");
    const Weights one = run(self, 1, false, false);  // nothing ever moves: no need to say it
    for (const bool checkpointed : {false, true}) check_close(run(world, world.size(), checkpointed, true), one);
    if (world.size() == 1) return;
    CHECK_THROWS_WITH_AS(
        run(world, world.size(), false, false),
        "smp: the parameter first.weight is read where its values are not on this rank: outside of its "
        "unit, or before a strategy has placed it; another unit that uses it says so with the same "
        "tie, or with register_parameter",
        smp::Error);
  });
}

TEST_CASE("a unit that only reads a parameter of the root does not take its gradient away") {
  on_ranks({2, 4}, [](auto& world) {
    const auto run = [&](auto& group) {
      smp::Worker worker(group, topology(group.size(), group.size()), 3);
      auto ctx = worker.context();
      ShardedOptions options = everything_cut();
      options.external_parameters = {{"first", "last.weight"}};
      Sharded<Root> trainer(ctx, Root{}, {}, options);
      trainer.module().first.marked().other = &trainer.module().last.weight;
      const std::int64_t each = 8 / group.size();
      for (int s = 0; s < 3; ++s) {
        const auto x = samples(worker.memory(), each * group.rank(), each * (group.rank() + 1), 3, s);
        smp::step(ctx, trainer, SquaredError<T>{}, x, x);
        CHECK(trainer.step(ctx, 0.01) > 0);
      }
      smp::Block& block = trainer.layout().blocks().front();
      CHECK_THROWS_AS(trainer.with_values(ctx, block, [](const smp::Block&) { throw std::runtime_error("no disk"); }),
                      std::runtime_error);
      if (group.size() > 1) CHECK(block.value == nullptr);
      return weights(ctx, trainer);
    };
    auto self = world.split(world.rank(), 0, "ALONE");
    check_close(run(world), run(self));
  });
}

TEST_CASE("case 19: the order changes from step to step, on all ranks: gathered on demand, and recorded again") {
  on_ranks({1, 2, 4}, [](auto& world) {
    check_close(train(world, Heads{}, world.size(), 4, 4, everything_cut()), alone(world, Heads{}, 4, 4));
  });
}

TEST_CASE("a rank that leaves the order alone is a sentence, checked at once and unchecked at the end of the step") {
  on_ranks({2, 4}, [](auto& world) {
    for (const bool checked : {false, true}) {
      CAPTURE(checked);
      Heads heads;
      heads.deviates = world.rank() == world.size() - 1;
      ShardedOptions options = everything_cut();
      options.checked = checked;
      std::string said;
      try {
        train(world, heads, world.size(), 4, 4, options);
      } catch (const smp::CommError& error) {
        said = error.what();
      }
      CHECK(said.find(checked ? "gathers block" : "have used their units in different orders") != std::string::npos);
    }
  });
}

TEST_CASE("case 9: a module that throws on all ranks: gradients are discarded, and training goes on as if nothing") {
  on_ranks({1, 2, 4}, [](auto& world) {
    const auto run = [&](bool throws) {
      smp::Worker worker(world, topology(world.size(), world.size()), 3);
      auto ctx = worker.context();
      Heads heads;
      heads.throws = throws;
      Sharded<Heads, smp::optim::Sgd> trainer(ctx, heads, {}, everything_cut());
      for (int s = 0; s < 4; ++s) {
        const auto x = samples(worker.memory(), 4 * world.rank(), 4 * world.rank() + 4, 4, s);
        try {
          smp::step(ctx, trainer, SquaredError<T>{}, x, x, {.microbatches = 2});
        } catch (const std::runtime_error&) {
          trainer.discard(ctx);
          trainer.saved() = {};
          trainer.module().throws = false;
          smp::step(ctx, trainer, SquaredError<T>{}, x, x, {.microbatches = 2});
        }
        trainer.step(ctx, 0.1);
      }
      return weights(ctx, trainer);
    };
    CHECK(run(true) == run(false));
  });
}

TEST_CASE("case 20: frozen and checkpointed, two passes; a tied weight in two units that say they are sharded") {
  on_ranks({2, 4}, [](auto& world) {
    using Unit = smp::Sharded<Plain, smp::dynamic>;
    using Tied = Dense<T, "wt">;
    using Net = smp::Sequential<smp::Sharded<Tied, smp::dynamic>, smp::Checkpointed<Unit>, smp::Checkpointed<Unit>,
                                smp::Sharded<Tied, smp::dynamic>>;
    const auto net = [] {
      return Net(smp::Sharded<Tied, smp::dynamic>(Tied(4, 4)), smp::Checkpointed<Unit>(Unit(Plain(4, 4, true))),
                 smp::Checkpointed<Unit>(Unit(Plain(4, 4))), smp::Sharded<Tied, smp::dynamic>(Tied(4, 4)));
    };
    using Free = smp::Sequential<Tied, Plain, Plain, Tied>;  // keeps all activations
    const Free free(Tied(4, 4), Plain(4, 4, true), Plain(4, 4), Tied(4, 4));
    const smp::StepOptions two{.microbatches = 2};
    const Weights found = train(world, net(), world.size(), 4, 4, everything_cut(), two);
    check_close(found, alone(world, net(), 4, 4, two));
    check_close(found, alone(world, free, 4, 4, two));
    // What is frozen is released after each backward, as the rest is.
    smp::Worker worker(world, topology(world.size(), world.size()), 3);
    auto ctx = worker.context();
    ShardedOptions options = everything_cut();
    options.max_live_parameters = 0;
    options.merge_gathers_below = 0;
    Sharded<Net> trainer(ctx, net(), {}, options);
    const auto& storage = trainer.engine().values().storage();
    const auto x = samples(worker.memory(), 4 * world.rank(), 4 * world.rank() + 4, 4, 0);
    for (int s = 0; s < 3; ++s) {
      for (const int pass : {0, 1}) {
        smp::step(ctx, trainer, SquaredError<T>{}, x, x, {.passes = 2, .pass = pass});
        for (const smp::Block& block : trainer.layout().blocks()) CHECK(block.value == nullptr);
        CHECK(storage.live_bytes() <= 40 * sizeof(T));  // "wt" and a bias, of the last unit
      }
      trainer.step(ctx, 0.01);
    }
    CHECK(found.contains("wt"));
    CHECK(found.contains("1.weight"));  // wrappers add no name
  });
}

TEST_CASE("case 22: the norm counts each element once, whatever the degrees: sqrt(8 + 3 + 2 + 4)") {
  on_few_ranks({1, 2, 4, 8}, [](auto& world) {
    for (const int tp : {1, 2}) {
      for (const int sdp : {1, 2, 4}) {
        if (world.size() % (tp * sdp) != 0) continue;
        for (const std::size_t threshold : {std::size_t{0}, std::size_t{4}}) {
          const smp::Degrees degrees = smp::degrees_for(world.size(), {.tp = tp, .rdp = smp::dynamic, .sdp = sdp});
          smp::Worker worker(world, smp::DynamicTopology(degrees), 3);
          auto ctx = worker.context();
          Sharded<Ones, smp::optim::Sgd> trainer(ctx, Ones(worker.groups()[smp::Group::tp].rank(), tp, degrees.rdp), {},
                                                 {.clip = 1, .persistence_threshold = threshold});
          Ones::Saved saved;
          const smp::Dist<Values> x{Values(ctx.memory(), {1})};
          (void)trainer.forward(ctx, x, saved);
          (void)trainer.backward(ctx, x, saved);
          CHECK(trainer.step(ctx, 1) == doctest::Approx(std::sqrt(17.0)).epsilon(1e-15));
          for (const auto& [name, values] : weights(ctx, trainer)) {
            for (const double v : values) CHECK(v == doctest::Approx(-1 / std::sqrt(17.0)).epsilon(1e-6));
          }
        }
      }
    }
  });
}

TEST_CASE("case 31: matrices decay and biases do not, whatever the shards cut through") {
  on_few_ranks({1, 2, 4, 8}, [](auto& world) {
    smp::Worker worker(world, topology(world.size(), world.size()), 3);
    auto ctx = worker.context();
    using Net = smp::Sequential<smp::nn::Linear<T>, smp::nn::LayerNorm<T>>;
    Sharded<Net> trainer(ctx, Net(smp::nn::Linear<T>(3, 3), smp::nn::LayerNorm<T>(3)),
                         smp::optim::AdamW({.weight_decay = 0.1}), everything_cut());
    trainer.for_each_shard([](std::string_view, const smp::Shape&, std::size_t, auto values, auto) {
      for (auto& v : values) v += static_cast<std::remove_reference_t<decltype(v)>>(v == 0);  // biases begin with 0
    });
    const Weights before = weights(ctx, trainer);
    trainer.step(ctx, 1.0);  // gradients are zero
    for (const auto& [name, values] : weights(ctx, trainer)) {
      CAPTURE(name);
      const double factor = name == "0.weight" ? 0.9 : 1;
      for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(values[i] != 0);
        CHECK(values[i] == doctest::Approx(factor * before.at(name)[i]).epsilon(1e-15));
      }
    }
  });
}

TEST_CASE("degrees that the topology does not have are refused, and so is a bucket without room") {
  on_ranks({4}, [](auto& world) {
    smp::Worker worker(world, topology(4, 2), 3);
    auto ctx = worker.context();
    CHECK_THROWS_WITH_AS((smp::Sharded<Plain, 4>(ctx, Plain(4, 4))),
                         "smp: Sharded: the model is to be held by 4 ranks together, but the shard groups of the "
                         "topology have sdp = 2",
                         smp::ConfigError);
    using Part = smp::Sequential<smp::Sharded<Plain, 3>>;
    CHECK_THROWS_WITH_AS((smp::Sharded<Part, 2>(ctx, Part(smp::Sharded<Plain, 3>(Plain(4, 4))))),
                         "smp: Sharded: the unit \"0\" is to be held by 3 ranks together, but the shard groups of the "
                         "topology have sdp = 2",
                         smp::ConfigError);
    CHECK_THROWS_WITH_AS((smp::Sharded<Plain, 2>(ctx, Plain(4, 4), {}, {.reduce_bucket_size = 0})),
                         "smp: reduce_bucket_size is 0: a bucket of gradients must have room for something",
                         smp::ConfigError);
    CHECK_THROWS_WITH_AS(
        (smp::Sharded<Plain, 2>(ctx, Plain(4, 4), {}, {.external_parameters = {{"nowhere", "weight"}}})),
        "smp: there is no unit \"nowhere\"", smp::ConfigError);
  });
}

TEST_CASE("a rank cannot stay away from what its shard group does") {
  on_ranks({2}, [](auto& world) {
    smp::Worker worker(world, topology(2, 2), 3);
    auto ctx = worker.context();
    Sharded<Plain> trainer(ctx, Plain(4, 4), {}, everything_cut());
    CHECK_THROWS_WITH_AS((void)smp::step_without_batch<Values>(ctx, trainer),
                         "smp: this rank has no batch, but ranks that hold parameters together (Sharded) run all "
                         "micro-batches together; give every rank something that counts, or let each hold them whole",
                         smp::ConfigError);
    const auto x = samples(worker.memory(), 0, 2, 4, 0);
    const auto nothing = [](const Values&) { return 0.0; };
    CHECK_THROWS_AS((void)smp::step(ctx, trainer, SquaredError<T>{}, x, x, {}, nothing), smp::ConfigError);
  });
}

TEST_CASE("a part with degree 1 stays whole, and the rest is cut") {
  on_ranks({2}, [](auto& world) {
    using Whole = smp::Sharded<Plain, 1>;
    using Net = smp::Sequential<Whole, Plain>;
    const auto net = [] { return Net(Whole(Plain(4, 4)), Plain(4, 4)); };
    check_close(train(world, net(), 2, 4, 4, everything_cut()), alone(world, net(), 4, 4));
    smp::Worker worker(world, topology(2, 2), 3);
    auto ctx = worker.context();
    Sharded<Net> trainer(ctx, net(), {}, everything_cut());
    CHECK(worker.memory()[MemoryUse::parameter].live == (20 + 10) * sizeof(T));
  });
}
