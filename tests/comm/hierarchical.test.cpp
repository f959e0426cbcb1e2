// Gathers that take other ways than the transport's own: the same bytes in the same places, fewer of them between
// nodes, and a sentence about which way was taken.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>
#include <smp/comm/counted.hpp>
#include <smp/comm/gathering.hpp>
#include <smp/comm/hierarchical.hpp>

#include "support/full.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using namespace smp::comm;
using smp::HostStream;
using smp::Purpose;
using Element = std::uint16_t;
using Ints = std::vector<int>;

#if SMP_TEST_MPI
constexpr bool over_mpi = true;  // where making groups takes its time
constexpr std::array worlds{2, 3, 4, 8};
#else
constexpr bool over_mpi = false;
constexpr std::array worlds{2, 3, 4, 5, 6, 7, 8};
#endif

std::size_t of(int i) { return static_cast<std::size_t>(i); }

/// The node of each rank: `k` consecutive ones on each; every n-th on one; a small and a large node; anything.
std::vector<Ints> layouts(int ranks) {
  std::vector<Ints> all;
  const auto add = [&](auto node_of) {
    Ints node;
    for (int r = 0; r < ranks; ++r) node.push_back(node_of(r));
    all.push_back(node);
  };
  const bool many = !over_mpi || full();
  for (int k = many ? 1 : 2; k <= (many ? ranks : 2); k += ranks > 4 && !full() ? 2 : 1) {
    add([&](int r) { return r / k; });
  }
  add([&](int r) { return r % ((ranks + 1) / 2); });
  add([&](int r) { return r < 2 ? 0 : 1; });
  for (std::uint64_t seed = 1; seed <= (full() ? 20 : 2); ++seed) {
    if (many) add([&](int r) { return static_cast<int>(mixed(seed, of(r)) % 3); });
  }
  add([&](int r) { return r % 2; });
  return all;
}

/// Gathers pieces of `counts` elements by `group`, and by `flat`; both outputs must have the same bits. In a stream
/// with a worker, the calls of `in_flight` gathers are made before the first is over.
void check_gathers(Any& group, World& flat, std::span<const std::size_t> counts, HostStream& stream, int in_flight) {
  const std::size_t self = of(flat.rank());
  std::size_t total = 0, before = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    total += counts[r];
    before += r < self ? counts[r] : 0;
  }
  const bool equal = std::count(counts.begin(), counts.end(), counts[0]) == static_cast<std::ptrdiff_t>(counts.size());
  HostStream now;
  std::vector<std::vector<Element>> inputs, outputs;
  for (int i = 0; i < in_flight; ++i) {
    auto& in = inputs.emplace_back(counts[self]);
    for (std::size_t e = 0; e < in.size(); ++e) in[e] = static_cast<Element>(mixed(self * 100 + of(i), e));
    outputs.emplace_back(total + 1, Element{0xabcd});
    std::copy(in.begin(), in.end(), outputs.back().begin() + static_cast<std::ptrdiff_t>(before));
  }
  for (int i = 0; i < in_flight; ++i) {
    const std::span<Element> out(outputs[of(i)].data(), total);
    const bool in_place = (flat.rank() + i) % 2 == 0;
    const std::span<const Element> in = in_place ? out.subspan(before, counts[self]) : std::span(inputs[of(i)]);
    group.all_gather_v(stream, in, out, counts, Purpose::parameter);
    if (equal) group.all_gather(stream, in, out, Purpose::parameter);
  }
  stream.synchronize();
  std::vector<Element> expected(total + 1, Element{0xabcd});
  for (int i = 0; i < in_flight; ++i) {
    flat.all_gather_v(now, inputs[of(i)], std::span(expected).first(total), counts);
    if (outputs[of(i)] != expected) FAIL_CHECK("other bytes than the flat gather, gather " << i);
  }
}

void check_sizes(Any group, World& flat, HostStream::Mode mode = HostStream::Mode::at_once) {
  HostStream stream(mode);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{3001}}) {
    CAPTURE(n);
    std::vector<std::size_t> counts(of(flat.size()), n);
    check_gathers(group, flat, counts, stream, n < 10 ? 3 : 1);
    for (std::size_t r = 0; r < counts.size(); ++r) counts[r] = (n * (r % 3) + r) / 2;  // some are empty
    check_gathers(group, flat, counts, stream, 1);
  }
}

std::string text(const Ints& node) {
  std::string result;
  for (const int n : node) result += std::to_string(n) + ' ';
  return result;
}

TEST_CASE("a hierarchical gather has the bytes of a flat one, for every layout") {
  on_ranks(worlds, [](World& world) {
    for (const Ints& node : layouts(world.size())) {
      CAPTURE(text(node));
      check_sizes(Any(Hierarchical<World>(world, nodes_by_number(node))), world);
    }
  });
}

TEST_CASE("a one-hop gather has the bytes of a flat one, alone too") {
  on_ranks({1, 2, 3, 4, 8}, [](World& world) { check_sizes(Any(OneHop<World>(world)), world); });
}

TEST_CASE("gathers in streams with a worker, several under way") {
  on_ranks(worlds, [](World& world) {
    if (!works_in_any_thread(world)) return;
    const NodeLayout layout = nodes_by_number(layouts(world.size()).back());
    check_sizes(Any(Hierarchical<World>(world, layout)), world, HostStream::Mode::worker);
    check_sizes(Any(OneHop<World>(world)), world, HostStream::Mode::worker);
  });
}

TEST_CASE("the transports on a node and between nodes may be of two types") {
  on_ranks({4}, [](World& world) {
    const NodeLayout layout = nodes_by_number(Ints{0, 1, 0, 1});
    World node = world.split(world.rank() % 2, world.rank(), "node");
    check_sizes(Any(Hierarchical<World, Counted<World>>(Counted<World>(world), layout, node)), world);
  });
}

TEST_CASE("a hierarchical gather can be checked as a whole, and in its parts") {
  on_ranks({4}, [](World& world) {
    const NodeLayout layout = nodes_by_number(Ints{0, 0, 1, 1});
    check_sizes(Any(Hierarchical<Checked<World>>(Checked<World>(world), layout)), world);
    Checked whole(Hierarchical<World>(world, layout));
    check_sizes(Any(whole), world);
    HostStream stream;
    const std::size_t n = world.rank() == 1 ? 5 : 4;
    std::vector<Element> in(n), out(4 * n);
    CHECK_THROWS_WITH_AS(whole.all_gather(stream, in, out), doctest::Contains("rank 1 calls all_gather of 5 uint16"),
                         smp::CommError);
    check_sizes(Any(whole), world);
  });
}

TEST_CASE("a part of a group gathers as the whole does, each of its ranks where it was") {
  on_ranks({4, 6}, [](World& world) {
    const int last = world.rank() == world.size() - 1 ? 1 : 0;
    Gathering<World> whole(world, {.ranks_per_node = world.size() / 2});
    Gathering<World> part = whole.split(last, -world.rank(), "PART");  // in reverse
    World flat = world.split(last, -world.rank(), "PART");
    CHECK(part.group().world_ranks == flat.group().world_ranks);
    CHECK(part.node_layout().nodes() == 2 - last);
    check_sizes(Any(part), flat);
    CHECK((part.report()->rows()[0].choice.backend == GatherBackend::hierarchical) == (last == 0));
    Hierarchical<World> hierarchical(world, whole.node_layout());
    check_sizes(Any(hierarchical.split(last, -world.rank(), "PART")), flat);
  });
}

TEST_CASE("a layout of another number of ranks is refused before any group is made") {
  on_ranks({2}, [](World& world) {
    CHECK_THROWS_WITH_AS(Hierarchical<World>(world, nodes_by_number(Ints{0, 1, 1})),
                         doctest::Contains("is of 3 ranks, but must be of 2"), smp::ConfigError);
    HostStream stream;
    world.barrier(stream);
  });
}

/// What a group of the first `ranks` ranks of the world sends for one gather, over all of them.
struct Traffic {
  std::uint64_t across = 0, node = 0, flat = 0, most_across = 0;
};

Traffic traffic(World& world, int ranks, const GatherOptions& options, std::size_t elements) {
  const bool member = world.rank() < ranks;
  Counted<World> counted(world);
  Counted<World> shard = counted.split(member ? 0 : 1, world.rank(), "SHARD");
  std::array<std::uint64_t, 3> bytes{};
  if (member) {
    GroupGather gather(shard, options);
    HostStream stream;
    std::vector<Element> in(elements, static_cast<Element>(world.rank())), out(elements * of(ranks));
    gather.all_gather(stream, in, out, Purpose::parameter);
    bool right = true;
    for (std::size_t i = 0; i < out.size(); ++i) right = right && out[i] == i / elements;
    CHECK(right);
    const Counters& c = counted.counters();
    bytes = {c.get("SHARD.across", Operation::exchange, Purpose::parameter).bytes,
             c.get("SHARD.node", Operation::exchange, Purpose::parameter).bytes,
             c.get("SHARD", Operation::all_gather, Purpose::parameter).bytes +
                 c.get("SHARD", Operation::exchange, Purpose::parameter).bytes};
  }
  HostStream stream;
  Traffic t;
  world.all_reduce(stream, std::span(&bytes[0], 1), std::span(&t.most_across, 1), smp::maximum);
  world.all_reduce(stream, bytes, bytes, smp::sum);
  t.across = bytes[0];
  t.node = bytes[1];
  t.flat = bytes[2];
  return t;
}

TEST_CASE("of what p ranks gather, (p-k)/p crosses the network to each node of k ranks") {
  on_ranks({8}, [](World& world) {
    constexpr std::size_t n = 1000;
    constexpr std::uint64_t bytes = n * sizeof(Element);
    struct Case {
      const char* name;
      GatherOptions options;
      int ranks;
      std::uint64_t pieces;  // that come to all nodes together: the sum of p - k
      std::uint64_t most;    // that one rank sends to other nodes
    };
    const auto on = [](Ints node) { return GatherOptions{.nodes = nodes_by_number(node)}; };
    for (const Case& c : {Case{"2 nodes of 2", {.ranks_per_node = 2}, 4, 2 * (4 - 2), 1},
                          Case{"2 nodes of 4", {.ranks_per_node = 4}, 8, 2 * (8 - 4), 1},
                          Case{"4 nodes of 2", {.ranks_per_node = 2}, 8, 4 * (8 - 2), 3},
                          Case{"2 nodes of 4, in turn", on({0, 1, 0, 1, 0, 1, 0, 1}), 8, 2 * (8 - 4), 1},
                          Case{"nodes of 2 and 4", on({0, 0, 1, 1, 1, 1, 2, 2}), 6, (6 - 2) + (6 - 4), 1},
                          Case{"nodes of 4 and 2", {.ranks_per_node = 4}, 6, (6 - 4) + (6 - 2), 1}}) {
      CAPTURE(c.name);
      if (over_mpi && !full() && c.options.nodes.node.empty()) continue;
      const Traffic t = traffic(world, c.ranks, c.options, n);
      CHECK(t.across == c.pieces * bytes);
      CHECK(t.most_across == c.most * bytes);
      CHECK(t.flat == 0);
      const auto p = static_cast<std::uint64_t>(c.ranks);
      CHECK(t.across + t.node == p * (p - 1) * bytes);  // all that p ranks need, as a flat gather
    }
    const Traffic one_hop = traffic(world, 8, {.backend = GatherBackend::one_hop, .ranks_per_node = 2}, n);
    CHECK(one_hop.across + one_hop.node == 0);
    CHECK(one_hop.flat == 8 * 7 * bytes);
  });
}

TEST_CASE("a gather says which way it took, and why") {
  on_ranks({4}, [](World& world) {
    HostStream stream;
    const std::size_t mebibyte = std::size_t{1} << 20;
    std::vector<std::byte> in(mebibyte), out(4 * mebibyte);
    const auto lines = [&](const GatherOptions& options) {
      Gathering<World> group(world, options);
      group.all_gather(stream, in, out);
      group.all_gather(stream, std::span(in).first(10), std::span(out).first(40));
      group.all_gather(stream, in, out);
      return group.report()->lines();
    };
    using Lines = std::vector<std::string>;
    CHECK(lines({.scratch_bytes = 8192, .sort_bytes = 8192, .ranks_per_node = 2}) ==
          Lines{"WORLD: 2 gathers flat: the piece of a rank, 1048576 bytes, is larger than scratch_bytes, 8192",
                "WORLD: 1 gather hierarchical: 4 ranks on 2 nodes"});
    CHECK(
        lines(
            {.backend = GatherBackend::one_hop, .scratch_bytes = mebibyte, .sort_bytes = 8192, .ranks_per_node = 2}) ==
        Lines{"WORLD: 2 gathers flat: a rank collects 2097152 bytes for its node, which is more than sort_bytes, 8192",
              "WORLD: 1 gather one-hop: asked for"});
    CHECK(lines({.scratch_bytes = mebibyte, .sort_bytes = 2 * mebibyte, .ranks_per_node = 2}) ==
          Lines{"WORLD: 3 gathers hierarchical: 4 ranks on 2 nodes"});
    CHECK(lines({}) == Lines{"WORLD: 3 gathers flat: the ranks are on one node"});
    CHECK(lines({.ranks_per_node = 1}) == Lines{"WORLD: 3 gathers flat: no two ranks share a node"});
    CHECK(lines({.hierarchical = false, .ranks_per_node = 2}) ==
          Lines{"WORLD: 3 gathers flat: hierarchical gathers are switched off"});
    CHECK(lines({.backend = GatherBackend::flat, .ranks_per_node = 2}) == Lines{"WORLD: 3 gathers flat: asked for"});
    CHECK(lines({.backend = GatherBackend::hierarchical, .hierarchical = false, .ranks_per_node = 3}) ==
          Lines{"WORLD: 3 gathers hierarchical: asked for"});
  });
}

TEST_CASE("options that differ on one rank are named on all, and nobody waits") {
  on_ranks({3}, [](World& world) {
    const bool odd = world.rank() == 2;
    const auto other = [&](const GatherOptions& a, const GatherOptions& b, const char* option) {
      CHECK_THROWS_WITH_AS(GroupGather(world, odd ? b : a),
                           ("smp: the ranks of the " + describe(world.group()) + ", disagree about the gather option " +
                            option + ": rank 2 has another value than rank 0")
                               .c_str(),
                           smp::ConfigError);
    };
    other({}, {.backend = GatherBackend::one_hop}, "backend");
    other({}, {.hierarchical = false}, "hierarchical");
    other({.scratch_bytes = 16384}, {.scratch_bytes = 8192}, "scratch_bytes");
    other({.ranks_per_node = 1}, {.ranks_per_node = 2}, "nodes");
    other({.nodes = nodes_by_number(Ints{0, 0, 1})}, {.nodes = nodes_by_number(Ints{0, 1, 1})}, "nodes");
    check_sizes(Any(Gathering<World>(world, {.ranks_per_node = 2})), world);
  });
}

TEST_CASE("a communicator knows its nodes through what is around it") {
  on_ranks({4}, [](World& world) {
    Counted<Any> around(Any{world});
    const NodeLayout layout = node_layout(around);
    CHECK(layout.node == Ints(of(world.size()), 0));  // all ranks of a test are on one machine
    CHECK(layout.local_size(0) == world.size());
    Hierarchical<World> knows(world, nodes_by_number(layouts(4).back()));
    Counted<Any> around_that(Any{knows});
    CHECK(node_layout(around_that).ranks == std::vector<Ints>{{0, 2}, {1, 3}});
    GroupGather gather(around);
    CHECK(gather.report().choose(1000) == GatherChoice{GatherBackend::flat, GatherReason::one_node});
    CHECK(gather.rank() == world.rank());
  });
}

}  // namespace
