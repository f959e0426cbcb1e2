// Hierarchical gathers on paper: what every rank would send and receive, for any layout; and the layouts of groups.
#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/hierarchical.hpp>

namespace {

using namespace smp::comm;
using Ints = std::vector<int>;

std::size_t of(int i) { return static_cast<std::size_t>(i); }

/// Performs the steps of all ranks on sets of pieces: nobody sends what it does not have, every message is expected, in
/// its place in the order of its pair, and in the end all have all. Returns the pieces that came to each node.
Ints gathered_across(const NodeLayout& layout) {
  const int ranks = static_cast<int>(layout.node.size());
  std::vector<HierarchicalSteps> steps;
  std::vector<std::vector<int>> has(of(ranks), std::vector<int>(of(ranks), 0));  // how often a rank was given a piece
  for (int r = 0; r < ranks; ++r) {
    steps.push_back(hierarchical_steps(layout, r));
    has[of(r)][of(r)] = 1;
  }
  using Pair = std::pair<int, int>;
  const auto perform = [&](auto messages, auto peer) {
    std::map<Pair, Ints> sent, expected;
    const auto before = has;
    for (int r = 0; r < ranks; ++r) {
      for (const PieceMessage& m : messages(r)) {
        const int other = peer(r, m.peer);
        CHECK(other != r);
        (m.incoming ? expected[Pair(other, r)] : sent[Pair(r, other)]).push_back(m.piece);
        if (m.incoming) ++has[of(r)][of(m.piece)];
        if (!m.incoming) CHECK(before[of(r)][of(m.piece)] == 1);
      }
    }
    CHECK(sent == expected);
  };
  perform([&](int r) -> auto& { return steps[of(r)].across; }, [](int, int p) { return p; });
  Ints came(of(layout.nodes()), 0);
  for (int r = 0; r < ranks; ++r) {
    came[of(layout.node[of(r)])] += static_cast<int>(steps[of(r)].across.size()) - (layout.nodes() - 1);
    for (const PieceMessage& m : steps[of(r)].across) CHECK(layout.node[of(m.peer)] != layout.node[of(r)]);
  }
  perform([&](int r) -> auto& { return steps[of(r)].within; },
          [&](int r, int local) { return layout.ranks[of(layout.node[of(r)])][of(local)]; });
  for (const auto& pieces : has) CHECK(pieces == Ints(of(ranks), 1));
  return came;
}

TEST_CASE("every rank gets every piece once, and every node those of the others once") {
  const std::vector<Ints> nodes{{0},
                                {0, 1},
                                {0, 0, 1, 1},
                                {0, 1, 0, 1},
                                {0, 0, 1, 1, 1, 1},
                                {1, 1, 1, 1, 0, 0},
                                {0, 1, 1, 0, 1, 2, 1, 1, 2, 0, 3},
                                {0, 0, 0, 0, 0, 0, 0, 1},
                                {0, 0, 1, 1, 2, 2, 3, 3},
                                {0, 1, 2, 3, 4, 5}};
  for (const Ints& node : nodes) {
    const NodeLayout layout = nodes_by_number(node);
    const Ints came = gathered_across(layout);
    for (int n = 0; n < layout.nodes(); ++n)
      CHECK(came[of(n)] == static_cast<int>(node.size() - layout.ranks[of(n)].size()));
  }
}

TEST_CASE("the ranks of a node share what comes to it: their numbers of pieces differ by one at most") {
  for (const Ints& node :
       {Ints{0, 0, 1, 1, 1, 1}, Ints{0, 1, 1, 0, 1, 2, 1, 1, 2, 0, 3}, Ints{0, 0, 1, 1, 1, 2, 2, 2, 2}}) {
    const NodeLayout layout = nodes_by_number(node);
    for (const Ints& ranks : layout.ranks) {
      std::vector<std::ptrdiff_t> pieces;
      for (const int r : ranks) {
        const auto across = hierarchical_steps(layout, r).across;
        pieces.push_back(std::count_if(across.begin(), across.end(), [](const auto& m) { return m.incoming; }));
      }
      const auto [least, most] = std::minmax_element(pieces.begin(), pieces.end());
      CHECK(*most - *least <= 1);
    }
  }
}

TEST_CASE("on nodes of one size, ranks with one place on their nodes talk to each other, and to nobody else") {
  const NodeLayout layout = nodes_by_number(Ints{0, 0, 0, 1, 1, 1, 2, 2, 2});
  using M = PieceMessage;
  const auto steps = hierarchical_steps(layout, 4);
  CHECK(steps.across == std::vector<M>{{7, 7, true}, {7, 4, false}, {1, 1, true}, {1, 4, false}});
  CHECK(steps.within == std::vector<M>{{2, 4, false},
                                       {2, 7, false},
                                       {2, 1, false},
                                       {0, 3, true},
                                       {0, 6, true},
                                       {0, 0, true},
                                       {0, 4, false},
                                       {0, 7, false},
                                       {0, 1, false},
                                       {2, 5, true},
                                       {2, 8, true},
                                       {2, 2, true}});
}

TEST_CASE("a layout by number of node counts nodes by their lowest ranks, and local ranks by rank") {
  const NodeLayout layout = nodes_by_number(Ints{7, -2, 7, 7, -2});
  CHECK(layout.node == Ints{0, 1, 0, 0, 1});
  CHECK(layout.local_rank == Ints{0, 0, 1, 2, 1});
  CHECK(layout.ranks == std::vector<Ints>{{0, 2, 3}, {1, 4}});
  CHECK(nodes_by_number({}).nodes() == 0);
}

TEST_CASE("the layout of a group keeps who shares a node, and their order there") {
  NodeLayout world = nodes_by_number(Ints{0, 0, 0, 1, 1, 1});
  const NodeLayout group = nodes_of_group(world, Ints{5, 1, 4, 2});
  CHECK(group.node == Ints{0, 1, 0, 1});
  CHECK(group.ranks == std::vector<Ints>{{2, 0}, {1, 3}});  // world rank 4 comes before 5 on their node
  CHECK(group.local_rank == Ints{1, 0, 0, 1});
  CHECK(nodes_of_group(world, Ints{3, 4}).nodes() == 1);
  CHECK_THROWS_WITH_AS((void)nodes_of_group(world, Ints{0, 6}),
                       "smp: the node layout is of 6 ranks, but the group has a rank 6", smp::ConfigError);
}

}  // namespace
