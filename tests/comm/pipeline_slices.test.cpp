// What is Invariant crosses from stage to stage as one slice of each tensor-parallel rank: the bytes are those of one
// rank, and the values are what they were.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/mlp.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/data_parallel.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/crossing.hpp>
#include <smp/pipeline/parcels.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/ranks.hpp"
#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::Dist, smp::Group, smp::Ids, smp::Invariant, smp::Purpose, smp::Shape, smp::comm::Operation;
using Values = smp::TensorOf<double>;
using Whole = Dist<Values, Invariant>;

/// Members of several kinds.
struct Extra {
  Dist<Ids, Invariant> ids{};
  Dist<Values, smp::Shard<smp::Dim::sequence>> rows{};
  Dist<Values, smp::Replicated> work{};
  static constexpr auto fields() {
    return smp::fields(smp::field("ids", &Extra::ids), smp::field("rows", &Extra::rows),
                       smp::field("work", &Extra::work));
  }
};
using Mixed = std::tuple<Whole, Extra, Values, std::array<Whole, 2>>;
/// What `Parcel` needs to know of layers.
struct MixedRows {
  using Value = std::variant<std::monostate, Mixed>;
  using Gradient = std::variant<std::monostate, smp::GradOf<Mixed>>;
};

/// Says of each tensor what its tag is.
struct Letters {
  std::string& text;
  void operator()(const auto&, Invariant) const { text += 'i'; }
  void operator()(const auto&, smp::Replicated) const { text += 'r'; }
  void operator()(const auto&, smp::Partial) const { text += 'p'; }
  void operator()(const auto&, smp::Shard<smp::Dim::sequence>) const { text += 's'; }
  void operator()(const auto&, smp::NoTags) const { text += '-'; }
};

/// Element `i` of what a rank has of a tensor; `own`: ranks differ.
double element(std::size_t i, int tensor, int own) { return static_cast<double>(i + 1) + 100 * tensor + 1000 * own; }

/// Sums a count over all ranks.
template <class W>
std::uint64_t summed(W& world, std::uint64_t mine) {
  smp::HostStream now;
  std::array<std::uint64_t, 1> sum{mine};
  world.all_reduce(now, sum, sum, smp::sum);
  return sum[0];
}

/// Sends a value of all kinds from stage 0 to stage 1 and checks what arrives.
/// @return bytes of messages, of all ranks
template <class W>
std::uint64_t cross(W& world, int ranks, const smp::TpPlace* place) {
  smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = 2, .tp = ranks})), 1);
  auto ctx = worker.context();
  auto& tp = worker.groups()[Group::tp];
  const smp::TpPlace here{static_cast<std::size_t>(tp.rank()), static_cast<std::size_t>(tp.size())};
  const bool sends = worker.groups()[Group::pp].rank() == 0;
  const std::array shapes{Shape{3, 5}, Shape{7}, Shape{2, 2}, Shape{3}, Shape{1}, Shape{0, 3}, Shape{4, 2}};
  smp::Parcel<MixedRows> parcel;
  parcel.value.template emplace<Mixed>();
  const auto for_each_numbered = [&](auto&& f) {
    int tensor = 0;
    parcel.for_each([&]<class T, class Tag>(T& t, Tag) { f(t, tensor++, std::is_same_v<Tag, Invariant> ? 0 : 1); });
  };
  if (sends) {
    for_each_numbered([&]<class T>(T& t, int tensor, int differs) {
      t = T(worker.memory(), shapes[static_cast<std::size_t>(tensor)]);
      for (std::size_t i = 0; i < t.size(); ++i) {
        t.data()[i] = static_cast<typename T::value_type>(element(i, tensor, differs * (tp.rank() + 1)));
      }
    });
  }
  std::array<smp::Envelope<MixedRows>, 1> envelope{{{&parcel, sends ? 1 : 0, !sends, {}, {}, {}}}};
  smp::ParcelExchange state;
  state.tp = place != nullptr ? *place : here;
  smp::exchange_parcels(worker.groups()[Group::pp], std::span<smp::Envelope<MixedRows>>(envelope), worker.memory(),
                        state);
  std::vector<std::size_t> sizes;
  if (!sends) {
    if (place == nullptr)
      smp::join_slices(
          ctx, [&](auto& join) { parcel.for_each(join); }, sizes);
    for_each_numbered([&](const auto& t, int tensor, int differs) {
      CAPTURE(tensor);
      REQUIRE(t.shape() == shapes[static_cast<std::size_t>(tensor)]);
      for (std::size_t i = 0; i < t.size(); ++i) {
        CHECK(static_cast<double>(t.data()[i]) == element(i, tensor, differs * (tp.rank() + 1)));
      }
    });
  }
  if (place == nullptr) {
    const auto others = static_cast<std::uint64_t>(ranks - 1);
    const auto& counters = worker.counters();
    CHECK(summed(world, counters.get("TP", Operation::all_gather_v, Purpose::activation).bytes +
                            counters.get("TP", Operation::all_gather, Purpose::activation).bytes) ==
          others * (15 * 8 + 7 * 4 + 8 * 8));
  }
  return summed(world, worker.counters().get("PP", Operation::exchange, Purpose::activation).bytes);
}

using Cut = smp::TensorParallel<smp::nn::Mlp<double>, smp::Split::usual, Invariant>;
using Net = smp::Sequential<smp::Repeat<Cut>, Dense<double>>;
using Model = smp::Pipeline<smp::Schedule::Runtime, Net>;

struct Run {
  std::string schedule = "interleaved";
  int chunks = 1, pp = 1, tp = 1;
  std::int64_t samples = 8, width = 12;
  bool overlap = true;
  smp::HostStream::Mode mode = smp::HostStream::Mode::at_once;
};

/// Losses of steps and of an evaluation; bytes of all ranks.
struct Result {
  std::vector<double> losses{};
  std::uint64_t forward = 0, both = 0;          ///< between stages, in an evaluation and in a step
  std::uint64_t joined = 0, joined_in_all = 0;  ///< the same over the tensor-parallel ranks
};

template <class W>
Result train(W& world, const Run& run) {
  smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(world.size(), {.pp = run.pp, .tp = run.tp})), 7,
                     run.mode);
  auto ctx = worker.context();
  const auto& tp = worker.groups()[Group::tp];
  smp::Repeat<Cut> layers(7, [&](std::size_t) { return Cut(smp::nn::Mlp<double>(run.width), tp.rank(), tp.size()); });
  smp::DataParallel trainer(ctx,
                            Model(ctx, Net(std::move(layers), Dense<double>(run.width, run.width)),
                                  {.overlap = run.overlap}, smp::Schedule::Runtime::named(run.schedule, run.chunks)),
                            smp::optim::AdamW{});
  Values x(worker.memory(), {run.samples, run.width}), y(worker.memory(), {run.samples, run.width});
  for (std::size_t i = 0; i < x.size(); ++i)
    x.data()[i] = std::sin(static_cast<double>(i)), y.data()[i] = x.data()[i] / 2;
  Result result;
  const auto sent = [&] {
    return summed(world, worker.counters().get("PP", Operation::exchange, Purpose::activation).bytes);
  };
  const auto joined = [&] {
    return summed(world, worker.counters().get("TP", Operation::all_gather, Purpose::activation).bytes +
                             worker.counters().get("TP", Operation::all_gather_v, Purpose::activation).bytes);
  };
  result.losses.push_back(smp::evaluate(ctx, trainer, InvariantSquaredError<double>{}, {x}, y, 4).mean());
  result.forward = sent();
  result.joined = joined();
  for (int step = 0; step < 2; ++step) {
    result.losses.push_back(
        smp::step(ctx, trainer, InvariantSquaredError<double>{}, {x}, y, {.microbatches = 4, .prescaled = true})
            .mean());
    trainer.step(ctx, 0.01);
  }
  result.both = (sent() - result.forward) / 2;
  result.joined_in_all = (joined() - result.joined) / 2;
  CHECK(worker.memory()[smp::MemoryUse::activation].live == 2 * x.size() * sizeof(double));
  return result;
}

/// Checks a run against the same without stages.
template <class W>
void check_run(W& world, Run run) {
  CAPTURE(run.schedule);
  CAPTURE(run.width);
  CAPTURE(run.pp);
  CAPTURE(run.tp);
  const Result found = train(world, run);
  const int stages = run.pp * run.chunks;
  const auto ways = static_cast<std::uint64_t>(run.schedule == "zero_bubble_v" ? stages - 2 : stages - 1);
  const auto hidden = static_cast<std::uint64_t>(run.samples * run.width) * sizeof(double);  // b s h 8
  const auto others = static_cast<std::uint64_t>(run.tp - 1);
  CHECK(found.forward == ways * hidden);
  CHECK(found.both == 2 * ways * hidden);
  CHECK(found.joined == others * ways * hidden);
  CHECK(found.joined_in_all == 2 * others * ways * hidden);
  auto part = world.split(world.rank() / run.tp, world.rank() % run.tp, "PART");
  CHECK(train(part, {.tp = run.tp, .samples = run.samples, .width = run.width}).losses == found.losses);  // equal bits
}

}  // namespace

TEST_CASE("the tag of each tensor of a value, and of its gradient") {
  std::string text;
  Mixed value;
  smp::for_each_tensor(value, Letters{text});
  CHECK(text == "iisr-ii");
  text.clear();
  smp::GradOf<Mixed> gradient;
  smp::for_each_tensor(gradient, Letters{text});
  CHECK(text == "isp-ii");
}

TEST_CASE("members of a value cross as their own tags say; the whole of each would be more bytes") {
  on_ranks({2, 4, 8}, [](auto& world) {
    const int tp = world.size() / 2;
    const auto ranks = static_cast<std::uint64_t>(tp);
    const std::uint64_t slices = 15 * 8 + 7 * 4 + 8 * 8, others = (4 + 3 + 1) * 8;
    CHECK(cross(world, tp, nullptr) == slices + ranks * others);
    const smp::TpPlace alone{};
    CHECK(cross(world, tp, &alone) == ranks * (slices + others));
  });
}

TEST_CASE("stages send (p - 1) b s h 8 bytes in each direction, whatever the tensor-parallel degree; no bit changes") {
  on_few_ranks({2, 4, 8}, [](auto& world) {
    for (const int pp : {2, 4}) {
      if (world.size() % pp != 0) continue;
      const int tp = world.size() / pp;
      check_run(world, {.pp = pp, .tp = tp});
      check_run(world, {.pp = pp, .tp = tp, .samples = 4, .width = 3});  // slices of 2 and 1, or of 1, 1, 1 and 0
    }
    const int tp = world.size() / 2;
    check_run(world, {.schedule = "looped", .chunks = 2, .pp = 2, .tp = tp});
    check_run(world, {.schedule = "zero_bubble_v", .chunks = 2, .pp = 2, .tp = tp});
    check_run(world, {.pp = 2, .tp = tp, .samples = 4, .width = 3, .overlap = false});
    const auto worker = smp::HostStream::Mode::worker;
    if (!smp::comm::works_in_any_thread(world)) return;
    check_run(world, {.pp = 2, .tp = tp, .samples = 4, .width = 3, .overlap = false, .mode = worker});
  });
}
