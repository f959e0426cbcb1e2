// What one transformer layer sends over the tensor-parallel ranks, by formula; what it keeps.
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/nn/tensor_parallel.hpp>
#include <smp/nn/transformer_block.hpp>
#include <smp/testing/check_parts.hpp>
#include <smp/train/worker.hpp>

namespace {

using smp::Dim, smp::Dist, smp::Shape, smp::Tensor64;
using smp::comm::Operation;
using namespace smp::nn;
using Rows = smp::Shard<Dim::sequence>;

constexpr std::uint64_t samples = 2, places = 12, width = 24;
constexpr std::uint64_t state = samples * places * width * 8;  // bytes of a hidden state, b s h 8

/// Sums over the group.
struct Traffic {
  std::uint64_t bytes = 0;                   ///< of all operations
  std::map<Operation, std::uint64_t> calls;  ///< of each rank
};
struct Found {
  Traffic forward, backward;
  std::size_t kept = 0;  ///< bytes of activations between forward and backward, of a rank
};

template <class At>
Found run(int ranks) {
  Found all;
  std::mutex mutex;
  smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
    using Attn = smp::TensorParallel<Attention<double>, smp::Split::usual, At>;
    using Feed = smp::TensorParallel<Mlp<double>, smp::Split::usual, At>;
    using Block = TransformerBlock<double, KeyMask::none, Attn, Feed>;
    smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(ranks, {.tp = ranks})), 1);
    auto ctx = worker.context();
    smp::testing::OneRank<Block> rank(Block(static_cast<std::int64_t>(width),
                                            Attn(Attention<double>(width, 12), world.rank(), ranks),
                                            Feed(Mlp<double>(width), world.rank(), ranks)));
    auto counted = [&, before = Traffic()](Traffic& sum) mutable {
      Traffic now;
      for (const auto& row : worker.counters().rows()) {
        CHECK(row.group == "TP");
        CHECK(row.purpose == smp::Purpose::activation);
        now.bytes += row.count.bytes;
        now.calls[row.operation] = row.count.calls;
      }
      const std::lock_guard lock(mutex);
      sum.bytes += now.bytes - before.bytes;
      for (const auto& [operation, calls] : now.calls) {
        if (calls != before.calls[operation]) sum.calls[operation] = calls - before.calls[operation];
      }
      before = now;
    };
    const Dist<Tensor64, smp::Invariant> whole{smp::testing::numbers(ctx.memory(), {samples, places, width}, 1)};
    const auto rows = [&](const Shape& s) {
      return std::is_same_v<At, Rows> ? smp::slice_shape(s, Dim::sequence, ranks) : s;
    };
    const typename Block::Input x{smp::testing::numbers(ctx.memory(), rows(whole.local.shape()), 1)};
    typename Block::Saved saved{};
    const std::size_t before = ctx.memory()[smp::MemoryUse::activation].live;
    const auto y = rank.model.forward(ctx, x, saved);
    counted(all.forward);
    if (world.rank() == 0) {
      all.kept = ctx.memory()[smp::MemoryUse::activation].live - before - y.local.size() * 8;
    }
    (void)rank.model.backward(ctx, y, saved);
    counted(all.backward);
  });
  return all;
}

}  // namespace

TEST_CASE("a layer sends 4 (t - 1) b s h 8 bytes in each direction; memory gathers two inputs again in backward") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto others = static_cast<std::uint64_t>(ranks - 1);
    const Found speed = run<smp::Invariant>(ranks), memory = run<Rows>(ranks);
    using Calls = std::map<Operation, std::uint64_t>;

    CHECK(speed.forward.calls == Calls{{Operation::all_reduce, 2}});
    CHECK(speed.forward.bytes == 4 * others * state);
    CHECK(speed.backward.calls == Calls{{Operation::all_reduce, 2}});
    CHECK(speed.backward.bytes == 4 * others * state);

    CHECK(memory.forward.calls == Calls{{Operation::all_gather, 2}, {Operation::reduce_scatter, 2}});
    CHECK(memory.forward.bytes == 4 * others * state);
    // Only slices of the inputs of attention and MLP, the normalised states, are kept: two gathers more.
    CHECK(memory.backward.calls == Calls{{Operation::all_gather, 4}, {Operation::reduce_scatter, 2}});
    CHECK(memory.backward.bytes == (4 + 2) * others * state);
  }
}

TEST_CASE("in memory, what a layer keeps falls by the number of ranks, within 2 %") {
  const double whole = static_cast<double>(run<smp::Invariant>(1).kept);
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const double part = static_cast<double>(run<Rows>(ranks).kept);
    CHECK(part * ranks / whole == doctest::Approx(1).epsilon(0.02));
  }
}

TEST_CASE("attention to another state keeps slices of both states, and gathers both again") {
  const auto kept = [](int ranks) {
    std::size_t bytes = 0;
    smp::comm::launch(ranks, [&](smp::comm::Threads& world) {
      using Cross = smp::TensorParallel<CrossAttention<double>, smp::Split::usual, Rows>;
      smp::Worker worker(world, smp::DynamicTopology(smp::degrees_for(ranks, {.tp = ranks})), 1);
      auto ctx = worker.context();
      smp::testing::OneRank<Cross> rank(Cross(CrossAttention<double>(24, 12, 12, {}, 8), world.rank(), ranks));
      const Cross::Input x{{smp::testing::numbers(ctx.memory(), {2, 12 / ranks, 24}, 1)},
                           {smp::testing::numbers(ctx.memory(), {2, 24 / ranks, 8}, 2)}};
      Cross::Saved saved{};
      const auto y = rank.model.forward(ctx, x, saved);
      if (world.rank() == 0) bytes = ctx.memory()[smp::MemoryUse::activation].live - y.local.size() * 8;
      (void)rank.model.backward(ctx, y, saved);
      const auto count = worker.counters().get("TP", Operation::all_gather, smp::Purpose::activation);
      CHECK(count.calls == (ranks > 1 ? 2 + 1 + 2 : 0));  // forward; the output's gradient; both states again
    });
    return bytes;
  };
  CHECK(kept(1) == 8 * (2 * (12 * 24 + 24 * 8 + 12 * 24 + 24 * 48 + 12 * 24) + 2 * 12 * 12 * 24));
  for (const int ranks : {2, 3, 4}) CHECK(kept(ranks) * static_cast<std::size_t>(ranks) == kept(1));
}

TEST_CASE("parameters of a layer fall by the number of ranks, but for norms and the biases after the sums") {
  using Grouped = smp::TensorParallel<GroupedAttention<double>, smp::Split::usual, Rows>;
  using Feed = smp::TensorParallel<Mlp<double>, smp::Split::usual, Rows>;
  using Block = TransformerBlock<double, KeyMask::none, Grouped, Feed>;
  const auto numbers = [](int ranks, std::string& whole) {
    Block block(width, Grouped(GroupedAttention<double>(width, 24, 12), 0, ranks), Feed(Mlp<double>(width), 0, ranks));
    smp::Layout layout(block);
    std::size_t sum = 0;
    for (const smp::Block& b : layout.blocks()) {
      for (const auto& s : b.segments) {
        sum += s.end - s.begin;
        if (s.declaration->cut().parts == 1) whole += s.name + " ";
      }
    }
    return sum;
  };
  std::string names, none;
  const std::size_t all = numbers(1, none);
  constexpr std::size_t h = width, uncut = 4 * h + 2 * h;
  CHECK(all == (h * h + h) + (h * h + h) + (h * h + h) + (4 * h * h + 4 * h) + (4 * h * h + h) + 4 * h);
  for (const int ranks : {2, 3, 4}) {
    names.clear();
    CHECK(numbers(ranks, names) == (all - uncut) / static_cast<std::size_t>(ranks) + uncut);
    CHECK(names == "ln_1.weight ln_1.bias attn.c_proj.bias ln_2.weight ln_2.bias mlp.c_proj.bias ");
  }
}

TEST_CASE("one rank sends nothing") {
  const Found one = run<smp::Invariant>(1), rows = run<Rows>(1);
  CHECK(one.forward.calls.empty());
  CHECK(one.backward.bytes == 0);
  CHECK(rows.forward.calls.empty());
  CHECK(rows.backward.calls.empty());
}
