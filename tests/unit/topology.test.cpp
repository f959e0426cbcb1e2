// SPDX-License-Identifier: Apache-2.0
// Ranks, groups and placements, held against the published rank formula and listings of SageMaker's model-parallel
// library, and against groups found by searching the whole world.
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/topology.hpp>

namespace {

using smp::ConfigError;
using smp::Coordinate;
using smp::Degrees;
using smp::DynamicTopology;
using smp::Group;
using smp::Placement;
using smp::Topology;

// The published formula: rank = (c(L2) * size(L1) + c(L1)) * size(L0) + c(L0) for a strategy of letters L2 L1 L0.
constexpr Coordinate published_coordinate(const Degrees& d, std::string_view letters, int rank) {
  Coordinate c;
  const auto take = [&](char letter) {
    const int size = letter == 'D' ? d.rdp : letter == 'P' ? d.pp : d.tp;
    (letter == 'D' ? c.rdp : letter == 'P' ? c.pp : c.tp) = rank % size;
    rank /= size;
  };
  take(letters[2]);
  take(letters[1]);
  take(letters[0]);
  return c;
}

// The closed form of dp_rank and mp_rank: the axis whose letter is further left counts slower.
constexpr int closed_form(std::string_view letters, char a, int a_rank, int a_size, int tp_rank, int tp_size) {
  return letters.find(a) < letters.find('T') ? a_rank * tp_size + tp_rank : tp_rank * a_size + a_rank;
}

constexpr bool together(Group kind, const Coordinate& a, const Coordinate& b, int sdp) {
  switch (kind) {
    case Group::world:
      return true;
    case Group::tp:
      return a.pp == b.pp && a.rdp == b.rdp;
    case Group::pp:
      return a.tp == b.tp && a.rdp == b.rdp;
    case Group::rdp:
      return a.pp == b.pp && a.tp == b.tp;
    case Group::dp:
      return a.pp == b.pp;
    case Group::mp:
      return a.rdp == b.rdp;
    case Group::shard:
      return a.pp == b.pp && a.tp == b.tp && a.rdp / sdp == b.rdp / sdp;
    case Group::replica:
      return a.pp == b.pp && a.tp == b.tp && a.rdp % sdp == b.rdp % sdp;
  }
  return false;
}

// The first law that is broken, or null.
template <class T>
constexpr const char* broken_law_of_kind(const T& topology, Group kind, const Coordinate* coordinates) {
  const int world = topology.world_size();
  int groups = 0;
  for (int rank = 0; rank < world; ++rank) {
    const smp::Ranks group = topology.group(kind, rank);
    int size = 0;
    for (int other = 0; other < world; ++other) {
      if (!together(kind, coordinates[rank], coordinates[other], topology.degrees().sdp)) continue;
      if (size == group.size() || group[size] != other) return "a group is who belongs together, in ascending order";
      if (other == rank && topology.rank_in(kind, rank) != size) return "rank_in is the position in the group";
      if (topology.group_index(kind, other) != topology.group_index(kind, rank)) return "a group has one index";
      ++size;
    }
    if (size != group.size() || size != topology.group_size(kind)) return "group_size counts the members";
    if (group[0] == rank && topology.group_index(kind, rank) != groups++) return "groups count in order of first ranks";
    if (topology.group_at(kind, topology.group_index(kind, rank))[0] != group[0]) return "group_at undoes group_index";
  }
  return groups == topology.group_count(kind) ? nullptr : "group_count counts the groups";
}

template <class T>
constexpr const char* broken_law(const T& topology) {
  const Degrees d = topology.degrees();
  const std::string_view letters = to_string(topology.placement());
  const int world = topology.world_size();
  if (world != d.pp * d.tp * d.rdp) return "world = pp * tp * rdp";
  if (topology.group_size(Group::mp) * topology.group_size(Group::rdp) != world) return "mp * rdp = world";
  if (topology.group_size(Group::pp) * topology.group_size(Group::dp) != world) return "pp * dp = world";
  if (topology.group_size(Group::shard) * topology.group_size(Group::replica) != d.rdp) return "shard * replica = rdp";
  std::array<Coordinate, 32> coordinates{};
  for (int rank = 0; rank < world; ++rank) {
    const Coordinate c = coordinates[static_cast<std::size_t>(rank)] = published_coordinate(d, letters, rank);
    if (topology.coordinate(rank) != c) return "the published coordinate";
    if (topology.rank(c) != rank) return "rank undoes coordinate";
    if (topology.rank_in(Group::dp, rank) != closed_form(letters, 'D', c.rdp, d.rdp, c.tp, d.tp)) return "dp_rank";
    if (topology.rank_in(Group::mp, rank) != closed_form(letters, 'P', c.pp, d.pp, c.tp, d.tp)) return "mp_rank";
  }
  for (const Group kind : smp::all_groups) {
    if (const char* law = broken_law_of_kind(topology, kind, coordinates.data())) return law;
  }
  return nullptr;
}

// All (pp, tp, rdp) of all worlds up to 16: there are 110.
template <class F>
constexpr void for_each_shape(F f) {
  for (int world = 1; world <= 16; ++world) {
    for (int pp = 1; pp <= world; ++pp) {
      for (int tp = 1; tp <= world / pp; ++tp) {
        if (world % (pp * tp) == 0) f(Degrees{.pp = pp, .tp = tp, .rdp = world / (pp * tp)});
      }
    }
  }
}
constexpr std::size_t shape_count = [] {
  std::size_t n = 0;
  for_each_shape([&](const Degrees&) { ++n; });
  return n;
}();

// The shapes, sharded as far as possible without one group becoming the whole (rdp 12: sdp 6).
constexpr std::array<Degrees, shape_count> sharded_shapes = [] {
  std::array<Degrees, shape_count> shapes{};
  std::size_t n = 0;
  for_each_shape([&](Degrees d) {
    for (int sdp = 1; sdp < d.rdp; ++sdp) {
      if (d.rdp % sdp == 0) d.sdp = sdp;
    }
    shapes[n++] = d;
  });
  return shapes;
}();

template <class T>
std::string listing(const T& topology, Group kind) {
  std::string text;
  for (int i = 0; i < topology.group_count(kind); ++i) {
    if (i != 0) text += ' ';
    for (const int rank : topology.group_at(kind, i)) text += std::to_string(rank);
  }
  return text;
}

std::vector<int> members(const smp::Ranks& ranks) { return {ranks.begin(), ranks.end()}; }

template <class F>
std::string config_error(F f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

static_assert(std::forward_iterator<smp::Ranks::Iterator>);

// Above the sweep over types: nvcc 13 mistranslates a literal degree whose type it has met as a computed one.
using Topo = Topology<Degrees{.pp = 2, .tp = 2, .rdp = 2}>;
static_assert(std::is_empty_v<Topo>, "degrees in the type cost nothing at run time");
static_assert(Topo{}.coordinate(3) == Coordinate{.pp = 1, .tp = 1, .rdp = 0});
static_assert(Topo{}.world_size() == 8);

// A sample of the sweep below, run by the compiler.
static_assert(broken_law(Topology<Degrees{}>{}) == nullptr);
static_assert(broken_law(Topology<Degrees{.pp = 2, .tp = 2, .rdp = 2, .sdp = 2}>{}) == nullptr);
static_assert(broken_law(Topology<Degrees{.pp = 3, .tp = 2}, Placement::tdp>{}) == nullptr);
static_assert(broken_law(DynamicTopology{Degrees{.pp = 2, .rdp = 4, .sdp = 2}, Placement::ptd}) == nullptr);

// Every shape and placement as a type of its own.
constexpr int middle_rank(const Degrees& d) { return d.pp * d.tp * d.rdp / 2; }
template <Degrees D, Placement P>
constexpr bool type_agrees =
    Topology<D, P>{}.coordinate(middle_rank(D)) == published_coordinate(D, to_string(P), middle_rank(D));
template <std::size_t... I>
constexpr bool all_types_agree(std::index_sequence<I...>) {
  for (const bool agrees : {type_agrees<sharded_shapes[I / 6], smp::all_placements[I % 6]>...}) {
    if (!agrees) return false;
  }
  return true;
}
static_assert(all_types_agree(std::make_index_sequence<6 * shape_count>{}));

}  // namespace

TEST_CASE("every placement of every shape of worlds up to 16 keeps the laws, with all sharding degrees") {
  REQUIRE(shape_count == 110);
  for (const Placement placement : smp::all_placements) {
    for_each_shape([&](Degrees d) {
      for (d.sdp = 1; d.sdp <= d.rdp; ++d.sdp) {
        if (d.rdp % d.sdp != 0) continue;
        const char* law = broken_law(DynamicTopology(d, placement));
        CAPTURE(to_string(placement));
        CAPTURE(d.pp);
        CAPTURE(d.tp);
        CAPTURE(d.rdp);
        CAPTURE(d.sdp);
        CHECK(std::string(law == nullptr ? "" : law) == "");
      }
    });
  }
}

TEST_CASE("the 8-rank tables of the ranking documentation, for all six strategies") {
  struct Table {
    const char* strategy;
    std::array<const char*, 8> ranks;  // rdp_rank pp_rank tp_rank | dp_rank mp_rank
    const char *pp, *tp, *rdp, *dp, *mp;
  };
  const std::array tables{
      Table{"DPT",
            {"000|00", "001|11", "010|02", "011|13", "100|20", "101|31", "110|22", "111|33"},
            "02 13 46 57",
            "01 23 45 67",
            "04 15 26 37",
            "0145 2367",
            "0123 4567"},
      Table{"DTP",
            {"000|00", "010|01", "001|12", "011|13", "100|20", "110|21", "101|32", "111|33"},
            "01 23 45 67",
            "02 13 46 57",
            "04 15 26 37",
            "0246 1357",
            "0123 4567"},
      Table{"PDT",
            {"000|00", "001|11", "100|20", "101|31", "010|02", "011|13", "110|22", "111|33"},
            "04 15 26 37",
            "01 23 45 67",
            "02 13 46 57",
            "0123 4567",
            "0145 2367"},
      Table{"PTD",
            {"000|00", "100|10", "001|21", "101|31", "010|02", "110|12", "011|23", "111|33"},
            "04 15 26 37",
            "02 13 46 57",
            "01 23 45 67",
            "0123 4567",
            "0246 1357"},
      Table{"TDP",
            {"000|00", "010|01", "100|10", "110|11", "001|22", "011|23", "101|32", "111|33"},
            "01 23 45 67",
            "04 15 26 37",
            "02 13 46 57",
            "0246 1357",
            "0145 2367"},
      Table{"TPD",
            {"000|00", "100|10", "010|01", "110|11", "001|22", "101|32", "011|23", "111|33"},
            "02 13 46 57",
            "04 15 26 37",
            "01 23 45 67",
            "0145 2367",
            "0246 1357"},
  };
  for (const Table& table : tables) {
    CAPTURE(table.strategy);
    const DynamicTopology topology(Degrees{.pp = 2, .tp = 2, .rdp = 2}, smp::parse_placement(table.strategy));
    for (int rank = 0; rank < 8; ++rank) {
      const Coordinate c = topology.coordinate(rank);
      const std::string text = std::to_string(c.rdp) + std::to_string(c.pp) + std::to_string(c.tp) + '|' +
                               std::to_string(topology.rank_in(Group::dp, rank)) +
                               std::to_string(topology.rank_in(Group::mp, rank));
      CHECK(text == table.ranks[static_cast<std::size_t>(rank)]);
    }
    CHECK(listing(topology, Group::pp) == table.pp);
    CHECK(listing(topology, Group::tp) == table.tp);
    CHECK(listing(topology, Group::rdp) == table.rdp);
    CHECK(listing(topology, Group::dp) == table.dp);
    CHECK(listing(topology, Group::mp) == table.mp);
    CHECK(listing(topology, Group::world) == "01234567");
  }
}

TEST_CASE(
    "the reference's listing of 8 ranks, with pipeline pairs (0,1) and tensor pairs (0,2), is DTP and not cluster") {
  const Degrees degrees{.pp = 2, .tp = 2, .rdp = 2};
  const DynamicTopology dtp(degrees, Placement::dtp), cluster(degrees, smp::parse_placement("cluster"));
  CHECK(members(dtp.group(Group::pp, 0)) == std::vector{0, 1});
  CHECK(members(dtp.group(Group::tp, 0)) == std::vector{0, 2});
  CHECK(members(cluster.group(Group::pp, 0)) == std::vector{0, 2});
  CHECK(members(cluster.group(Group::tp, 0)) == std::vector{0, 1});
}

TEST_CASE("8 ranks in 2 stages without tensor parallelism, spread and cluster") {
  const Degrees degrees{.pp = 2, .rdp = 4};
  CHECK(listing(DynamicTopology(degrees, Placement::spread), Group::mp) == "04 15 26 37");
  CHECK(listing(DynamicTopology(degrees, Placement::cluster), Group::mp) == "01 23 45 67");
}

TEST_CASE("32 ranks with tp 4 and sdp 4 shard over (0,4,8,12) and (16,20,24,28), in 2 replicas") {
  const Topology<Degrees{.tp = 4, .rdp = 8, .sdp = 4}> topology;
  CHECK(members(topology.group_at(Group::tp, 0)) == std::vector{0, 1, 2, 3});
  CHECK(members(topology.group_at(Group::tp, 7)) == std::vector{28, 29, 30, 31});
  CHECK(members(topology.group(Group::rdp, 0)) == std::vector{0, 4, 8, 12, 16, 20, 24, 28});
  CHECK(members(topology.group(Group::shard, 0)) == std::vector{0, 4, 8, 12});
  CHECK(members(topology.group(Group::shard, 28)) == std::vector{16, 20, 24, 28});
  CHECK(members(topology.group(Group::replica, 4)) == std::vector{4, 20});
  CHECK(topology.group_size(Group::replica) == 2);
}

TEST_CASE("pure sharding: rows of arange(world).reshape(-1, sdp) are shard groups, columns replica groups") {
  const DynamicTopology topology(Degrees{.rdp = 6, .sdp = 3});
  CHECK(listing(topology, Group::shard) == "012 345");
  CHECK(listing(topology, Group::replica) == "03 14 25");
}

TEST_CASE("with a pipeline, each rdp group is cut into shard groups of its own") {
  const DynamicTopology topology(Degrees{.pp = 2, .rdp = 4, .sdp = 2}, Placement::cluster);
  CHECK(listing(topology, Group::rdp) == "0246 1357");
  CHECK(listing(topology, Group::shard) == "02 13 46 57");
  CHECK(listing(topology, Group::replica) == "04 15 26 37");
}

TEST_CASE("dispatch_stage hands out the stage as a type where pp is in the type, else as a number") {
  const Topo fixed;
  const DynamicTopology dynamic(Topo::static_degrees, Topo::static_placement);
  for (int rank = 0; rank < 8; ++rank) {
    CAPTURE(rank);
    const int stage = fixed.coordinate(rank).pp;
    CHECK(fixed.dispatch_stage(rank, [](auto s) { return int{decltype(s)::value}; }) == stage);
    CHECK(dynamic.dispatch_stage(rank, [](int s) { return s; }) == stage);
  }
  int calls = 0;
  fixed.dispatch_stage(7, [&](auto) { ++calls; });
  CHECK(calls == 1);
}

TEST_CASE("a type that leaves only rdp open takes it from the world") {
  using Open = Topology<Degrees{.pp = 2, .tp = 2, .rdp = smp::dynamic, .sdp = 2}>;
  CHECK_FALSE(Open::is_static);
  CHECK(Open(16).degrees() == Degrees{.pp = 2, .tp = 2, .rdp = 4, .sdp = 2});
  CHECK(Topo(8).degrees() == Topo::static_degrees);
  CHECK(config_error([] { return Topo(6); }) ==
        "smp: tp is 2, but must divide world / pp = 6 / 2 = 3; legal values are 1, 3");
  CHECK(config_error([] { return Topo(16); }) == "smp: rdp is 2, but must be world / (pp * tp) = 16 / (2 * 2) = 4");
  CHECK(config_error([] { return Open(12); }) ==
        "smp: sdp is 2, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 12 / 4 = 3; legal "
        "values are 1, 3");
}

TEST_CASE("wrong degrees at run time are a sentence with degree, value, world and legal values") {
  using smp::degrees_for;
  using smp::dynamic;
  struct Row {
    int world;
    Degrees degrees;
    const char* sentence;
  };
  constexpr int most = std::numeric_limits<int>::max();
  const std::array rows{
      Row{8, {.pp = 3, .rdp = dynamic}, "smp: pp is 3, but must divide world = 8; legal values are 1, 2, 4, 8"},
      Row{8, {.pp = 16, .rdp = dynamic}, "smp: pp is 16, but must divide world = 8; legal values are 1, 2, 4, 8"},
      Row{36,
          {.pp = 5, .rdp = dynamic},
          "smp: pp is 5, but must divide world = 36; legal values are 1, 2, 3, 4, 6, 9, 12, 18, 36"},
      Row{1, {.tp = 2, .rdp = dynamic}, "smp: tp is 2, but must divide world / pp = 1 / 1 = 1; legal values are 1"},
      Row{8,
          {.pp = 2, .tp = 3, .rdp = dynamic},
          "smp: tp is 3, but must divide world / pp = 8 / 2 = 4; legal values are 1, 2, 4"},
      Row{8,
          {.tp = 2, .rdp = dynamic, .sdp = 8},
          "smp: sdp is 8, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 8 / 2 = 4; legal "
          "values are 1, 2, 4"},
      Row{8, {.rdp = dynamic, .sdp = 0}, "smp: sdp is 0, but must be at least 1"},
      Row{8, {.pp = 0, .rdp = dynamic}, "smp: pp is 0, but must be at least 1"},
      Row{8, {.tp = -2, .rdp = dynamic}, "smp: tp is -2, but must be at least 1"},
      Row{8, {.tp = dynamic, .rdp = dynamic}, "smp: tp has no value, but must be at least 1"},
      Row{8, {.rdp = -8}, "smp: rdp is -8, but must be world / (pp * tp) = 8 / (1 * 1) = 8"},
      Row{0, {.rdp = dynamic}, "smp: world is 0, but must be at least 1"},
      Row{-8, {.rdp = dynamic}, "smp: world is -8, but must be at least 1"},
      Row{most,
          {.pp = 2, .rdp = dynamic},
          "smp: pp is 2, but must divide world = 2147483647; legal values are 1, 2147483647"},
  };
  for (const Row& row : rows) CHECK(config_error([&] { return degrees_for(row.world, row.degrees); }) == row.sentence);
  CHECK(degrees_for(most, {.rdp = dynamic}).rdp == most);

  CHECK(config_error([] { return DynamicTopology(Degrees{.pp = 65536, .tp = 65536}); }) ==
        "smp: pp 65536 x tp 65536 x rdp 1 are more ranks than an int can count");
  CHECK(config_error([] { return DynamicTopology(Degrees{.pp = 65536, .tp = 32767, .rdp = 2}); }) ==
        "smp: pp 65536 x tp 32767 x rdp 2 are more ranks than an int can count");
  CHECK(config_error([] { return DynamicTopology(Degrees{.rdp = dynamic}); }) ==
        "smp: rdp has no value, but must be at least 1");
  CHECK(config_error([] { return DynamicTopology(Degrees{.rdp = 4, .sdp = 3}); }) ==
        "smp: sdp is 3, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 4 / 1 = 4; legal "
        "values are 1, 2, 4");
  CHECK(config_error([] { return Topo(Degrees{.pp = 4, .tp = 2, .rdp = 2}); }) ==
        "smp: pp is 4, but the type of the topology says 2");
  CHECK(config_error([] { return Topo(Topo::static_degrees, Placement::spread); }) ==
        "smp: placement is TPD, but the type of the topology says DPT");
  CHECK(config_error([] { return DynamicTopology(Degrees{}, Placement::runtime); }) == "smp: placement has no value");
}

TEST_CASE("ranks, coordinates and groups that do not exist are refused") {
  const DynamicTopology topology(Degrees{.pp = 2, .tp = 2, .rdp = 2});
  CHECK(config_error([&] { return topology.coordinate(8); }) == "smp: rank is 8, but must be 0 to 7");
  CHECK(config_error([&] { return topology.group(Group::tp, -1); }) == "smp: rank is -1, but must be 0 to 7");
  CHECK(config_error([&] { return topology.group_index(Group::tp, 8); }) == "smp: rank is 8, but must be 0 to 7");
  CHECK(config_error([&] { return topology.group_at(Group::tp, 4); }) == "smp: group index is 4, but must be 0 to 3");
  CHECK(config_error([&] { return topology.rank({.tp = 2}); }) == "smp: tp rank is 2, but must be 0 to 1");
  CHECK(config_error([&] { return topology.dispatch_stage(8, [](int s) { return s; }); }) ==
        "smp: rank is 8, but must be 0 to 7");
}

TEST_CASE("names of placements") {
  CHECK(smp::parse_placement("cluster") == Placement::dpt);
  CHECK(smp::parse_placement("spread") == Placement::tpd);
  for (const Placement placement : smp::all_placements) {
    CHECK(smp::parse_placement(to_string(placement)) == placement);
  }
  CHECK(to_string(Placement::dpt) == "DPT");
  CHECK(to_string(Placement::dtp) == "DTP");
  CHECK(to_string(Placement::pdt) == "PDT");
  CHECK(to_string(Placement::ptd) == "PTD");
  CHECK(to_string(Placement::tdp) == "TDP");
  CHECK(to_string(Placement::tpd) == "TPD");
  for (const char* wrong : {"", "dpt", "DPP", "DP", "DPTD", " DPT", "Cluster", "runtime"}) {
    CHECK(config_error([&] { return smp::parse_placement(wrong); }) ==
          "smp: placement is \"" + std::string(wrong) +
              "\"; legal values are cluster (= DPT), spread (= TPD), DPT, DTP, PDT, PTD, TDP and TPD");
  }
}

TEST_CASE("names of groups") {
  std::string names;
  for (const Group kind : smp::all_groups) names += std::string(to_string(kind)) + ' ';
  CHECK(names == "WORLD TP PP RDP DP MP SHARD REPLICA ");
}
