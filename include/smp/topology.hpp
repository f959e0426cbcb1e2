// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which place a global rank has in a job that is pipeline-, tensor- and data-parallel at once, and with whom it shares
/// its groups. Everything is `constexpr` and computed from four degrees and a placement: nothing is stored per rank,
/// nothing allocates, and neither MPI nor CUDA is needed.
///
///     constexpr smp::Topology<smp::Degrees{.pp = 2, .tp = 2, .rdp = 2}> topology;  // 8 ranks, known to the compiler
///     static_assert(topology.coordinate(5) == smp::Coordinate{.pp = 0, .tp = 1, .rdp = 1});
///     for (int peer : topology.group(smp::Group::dp, 5)) ...  // 0, 1, 4, 5
///
/// How it works: a global rank is a number with one digit for each axis, and the placement says which digit is worth
/// most. The members of a group differ in some digits and share the others, so every question is a change of base.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

#include <smp/degrees.hpp>
#include <smp/error.hpp>
#include <smp/placement.hpp>

namespace smp {

/// Where one rank sits on each axis.
struct Coordinate {
  int pp = 0, tp = 0, rdp = 0;  ///< from 0 to the degree - 1
  friend constexpr bool operator==(const Coordinate&, const Coordinate&) = default;
};

/// The kinds of group a rank belongs to; each kind cuts the world into groups of equal size.
enum class Group : unsigned char {
  world,    ///< all ranks
  tp,       ///< same stage, same copy of the model: share each layer
  pp,       ///< same part of each layer, same copy: hand activations along
  rdp,      ///< same stage, same part of each layer: hold the same parameters
  dp,       ///< same stage: all who work on these layers
  mp,       ///< same copy: hold the model once between them
  shard,    ///< `sdp` consecutive members of an rdp group: hold its state once between them
  replica,  ///< members of an rdp group with the same place in their shard groups: hold the same shard
};

/// Every kind of group; communicators are made in this order on every rank.
inline constexpr std::array<Group, 8> all_groups{Group::world, Group::tp, Group::pp,    Group::rdp,
                                                 Group::dp,    Group::mp, Group::shard, Group::replica};

/// "WORLD", "TP", ...
[[nodiscard]] constexpr std::string_view to_string(Group kind) noexcept {
  constexpr std::array<std::string_view, 8> names{"WORLD", "TP", "PP", "RDP", "DP", "MP", "SHARD", "REPLICA"};
  return names[static_cast<std::size_t>(kind)];
}

namespace detail {

// Two digits for rdp = replica * sdp + shard: so SHARD and REPLICA are groups like all others.
enum class Digit : unsigned char { pp, tp, shard, replica };

// Do the members of one group of this kind differ in this digit? All that tells the kinds apart.
constexpr bool varies(Group kind, Digit digit) noexcept {
  switch (kind) {
    case Group::world:
      return true;
    case Group::tp:
      return digit == Digit::tp;
    case Group::pp:
      return digit == Digit::pp;
    case Group::rdp:
      return digit == Digit::shard || digit == Digit::replica;
    case Group::dp:
      return digit != Digit::pp;
    case Group::mp:
      return digit == Digit::pp || digit == Digit::tp;
    case Group::shard:
      return digit == Digit::shard;
    case Group::replica:
      return digit == Digit::replica;
  }
  return false;
}

// Some of the digits of a global rank, the one that is worth most first; a digit left out has size 1.
struct Digits {
  struct Place {
    int size = 1, stride = 1;
  };
  std::array<Place, 4> places{};

  // How many numbers these digits can write.
  constexpr int count() const noexcept {
    int product = 1;
    for (const Place& p : places) product *= p.size;
    return product;
  }
  // What these digits of `rank` read as one number.
  constexpr int number_of(int rank) const noexcept {
    int number = 0;
    for (const Place& p : places) number = number * p.size + rank / p.stride % p.size;
    return number;
  }
  // The rank in which these digits read `number` and all others are zero. Rises with `number`, as strides only fall.
  constexpr int rank_of(int number) const noexcept {
    int rank = 0;
    for (std::size_t i = places.size(); i-- > 0; number /= places[i].size) {
      rank += number % places[i].size * places[i].stride;
    }
    return rank;
  }
};

// The digits of a rank under each placement, the one that is worth most first.
inline constexpr auto digit_orders = [] {
  std::array<std::array<Digit, 4>, all_placements.size()> orders{};
  for (std::size_t p = 0; p < orders.size(); ++p) {
    std::size_t place = 0;
    for (const char axis : to_string(all_placements[p])) {
      if (axis == 'D') orders[p][place++] = Digit::replica;
      orders[p][place++] = axis == 'D' ? Digit::shard : axis == 'P' ? Digit::pp : Digit::tp;
    }
  }
  return orders;
}();

constexpr int size_of(const Degrees& degrees, Digit digit) noexcept {
  switch (digit) {
    case Digit::pp:
      return degrees.pp;
    case Digit::tp:
      return degrees.tp;
    case Digit::shard:
      return degrees.sdp;
    case Digit::replica:
      return degrees.rdp / degrees.sdp;
  }
  return 1;
}

// The digits in which members of one group of this kind differ, or (`varying` = false) those which they share.
constexpr Digits digits(const Degrees& degrees, Placement placement, Group kind, bool varying) noexcept {
  const std::array<Digit, 4>& order = digit_orders[static_cast<std::size_t>(placement)];
  Digits kept;
  int stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const int size = size_of(degrees, order[i]);
    kept.places[i] = {varies(kind, order[i]) == varying ? size : 1, stride};
    stride *= size;
  }
  return kept;
}

}  // namespace detail

/// The members of one group in ascending order of global rank: a small value that computes them.
class Ranks {
 public:
  class Iterator;

  constexpr Ranks() noexcept = default;
  /// What `Topology` makes.
  constexpr Ranks(int first, const detail::Digits& members) noexcept : first_(first), members_(members) {}

  [[nodiscard]] constexpr int size() const noexcept { return members_.count(); }

  /// @pre `0 <= position < size()`
  [[nodiscard]] constexpr int operator[](int position) const noexcept { return first_ + members_.rank_of(position); }

  [[nodiscard]] constexpr Iterator begin() const noexcept;
  [[nodiscard]] constexpr Iterator end() const noexcept;

 private:
  int first_ = 0;
  detail::Digits members_;
};

/// Holds a copy of the group, so it may outlive it.
class Ranks::Iterator {
 public:
  using value_type = int;
  using difference_type = std::ptrdiff_t;

  constexpr Iterator() noexcept = default;
  /// At a position of these ranks.
  constexpr Iterator(const Ranks& ranks, int position) noexcept : ranks_(ranks), position_(position) {}

  [[nodiscard]] constexpr int operator*() const noexcept { return ranks_[position_]; }
  constexpr Iterator& operator++() noexcept { return ++position_, *this; }
  constexpr Iterator operator++(int) noexcept { return {ranks_, position_++}; }
  friend constexpr bool operator==(const Iterator& a, const Iterator& b) noexcept { return a.position_ == b.position_; }

 private:
  Ranks ranks_;
  int position_ = 0;
};

constexpr Ranks::Iterator Ranks::begin() const noexcept { return {*this, 0}; }
constexpr Ranks::Iterator Ranks::end() const noexcept { return {*this, size()}; }

/// Maps global ranks to coordinates and groups, and back. What the type says is checked by the compiler; what it leaves
/// open (`dynamic` degrees, `runtime` placement) by the constructor; everything after that is the same code.
/// Shard groups cut each rdp group whatever pp and tp are. The reference library has them only at pp = 1.
template <Degrees D, Placement P = Placement::cluster>
class Topology {
  static_assert(detail::positive(detail::known(D)),
                "smp::Topology: every degree must be at least 1; write a number of ranks, or smp::dynamic");
  static_assert(!detail::positive(detail::known(D)) || detail::countable(detail::known(D)),
                "smp::Topology: pp * tp * rdp are more ranks than an int can count; write smaller degrees");
  static_assert(!detail::positive(detail::known(D)) || D.rdp == dynamic || D.rdp % detail::known(D).sdp == 0,
                "smp::Topology: sdp must divide rdp; write an sdp that does, or an rdp that is a multiple of sdp");

 public:
  static constexpr Degrees static_degrees = D;      ///< `dynamic` where the type leaves a degree open
  static constexpr Placement static_placement = P;  ///< `runtime` if the type leaves it open
  static constexpr bool is_static = detail::positive(D) && P != Placement::runtime;  ///< the type says it all

  /// For a type that says it all.
  constexpr Topology() noexcept : stored_{} {
    static_assert(is_static,
                  "smp::Topology: the type leaves something open; give the constructor degrees and placement");
  }

  /// @throws ConfigError if the degrees cannot work or are not those of the type
  constexpr explicit Topology(const Degrees& degrees, Placement placement = default_placement)
      : stored_{degrees, placement} {
    detail::check(degrees);
    for (const detail::NamedDegree& d : detail::named_degrees) {
      if (D.*d.value == dynamic || D.*d.value == degrees.*d.value) continue;
      throw ConfigError(std::string(d.name) + " is " + std::to_string(degrees.*d.value) +
                        ", but the type of the topology says " + std::to_string(D.*d.value));
    }
    if (placement == Placement::runtime) throw ConfigError("placement has no value");
    if (P != Placement::runtime && P != placement) {
      throw ConfigError("placement is " + std::string(to_string(placement)) + ", but the type of the topology says " +
                        std::string(to_string(P)));
    }
  }

  /// A world of so many ranks, for a type that leaves open at most rdp.
  /// @throws ConfigError if the degrees do not fill it
  constexpr explicit Topology(int world) : Topology(degrees_for(world, D)) {
    static_assert(D.pp != dynamic && D.tp != dynamic && D.sdp != dynamic && P != Placement::runtime,
                  "smp::Topology: a world tells nothing but rdp; give the constructor degrees and placement");
  }

  /// All four, none of them `dynamic`.
  [[nodiscard]] constexpr Degrees degrees() const noexcept {
    if constexpr (is_static) {
      return D;
    } else {
      return stored_.degrees;
    }
  }

  /// One of the six.
  [[nodiscard]] constexpr Placement placement() const noexcept {
    if constexpr (is_static) {
      return P;
    } else {
      return stored_.placement;
    }
  }

  /// pp * tp * rdp
  [[nodiscard]] constexpr int world_size() const noexcept { return group_size(Group::world); }

  /// @throws ConfigError if there is no such rank
  [[nodiscard]] constexpr Coordinate coordinate(int rank) const {
    return {rank_in(Group::pp, rank), rank_in(Group::tp, rank), rank_in(Group::rdp, rank)};
  }

  /// @throws ConfigError if the coordinate is outside of the degrees
  [[nodiscard]] constexpr int rank(const Coordinate& c) const {
    check_index("pp rank", c.pp, degrees().pp);
    check_index("tp rank", c.tp, degrees().tp);
    check_index("rdp rank", c.rdp, degrees().rdp);
    return varying(Group::pp).rank_of(c.pp) + varying(Group::tp).rank_of(c.tp) + varying(Group::rdp).rank_of(c.rdp);
  }

  /// How many ranks a group of this kind has.
  [[nodiscard]] constexpr int group_size(Group kind) const noexcept { return varying(kind).count(); }

  /// How many groups of this kind the world has.
  [[nodiscard]] constexpr int group_count(Group kind) const noexcept { return shared(kind).count(); }

  /// Which group of this kind `rank` is in: the colour of a split. Groups count from 0, in order of their first ranks.
  /// @throws ConfigError if there is no such rank
  [[nodiscard]] constexpr int group_index(Group kind, int rank) const { return shared(kind).number_of(checked(rank)); }

  /// The position of `rank` in its group of this kind: its dp rank, mp rank, ...; the key of a split.
  /// @throws ConfigError if there is no such rank
  [[nodiscard]] constexpr int rank_in(Group kind, int rank) const { return varying(kind).number_of(checked(rank)); }

  /// The group of this kind with the given index.
  /// @throws ConfigError if there is no such group
  [[nodiscard]] constexpr Ranks group_at(Group kind, int index) const {
    check_index("group index", index, group_count(kind));
    return {shared(kind).rank_of(index), varying(kind)};
  }

  /// The group of this kind that `rank` is in.
  /// @throws ConfigError if there is no such rank
  [[nodiscard]] constexpr Ranks group(Group kind, int rank) const { return group_at(kind, group_index(kind, rank)); }

  /// Calls `f` with the pipeline stage of `rank`, as a `std::integral_constant` if pp is in the type and as an `int` if
  /// it is `dynamic`: the one place where a run-time rank becomes a compile-time stage.
  /// @throws ConfigError if there is no such rank
  template <class F>
  constexpr decltype(auto) dispatch_stage(int rank, F&& f) const {
    const int stage = rank_in(Group::pp, rank);
    if constexpr (D.pp == dynamic) {
      return f(stage);
    } else {
      return dispatch_from<0>(stage, f);
    }
  }

 private:
  struct InTheType {
    constexpr InTheType() noexcept = default;
    constexpr InTheType(const Degrees&, Placement) noexcept {}
  };
  struct Stored {
    Degrees degrees;
    Placement placement;
  };
  static constexpr Placement default_placement = P == Placement::runtime ? Placement::cluster : P;

  constexpr detail::Digits varying(Group kind) const noexcept {
    return detail::digits(degrees(), placement(), kind, true);
  }
  constexpr detail::Digits shared(Group kind) const noexcept {
    return detail::digits(degrees(), placement(), kind, false);
  }

  static constexpr void check_index(const char* what, int value, int size) {
    if (value >= 0 && value < size) return;
    throw ConfigError(std::string(what) + " is " + std::to_string(value) + ", but must be 0 to " +
                      std::to_string(size - 1));
  }
  constexpr int checked(int rank) const {
    check_index("rank", rank, world_size());
    return rank;
  }

  template <int Stage, class F>
  static constexpr decltype(auto) dispatch_from(int stage, F& f) {
    static_assert(std::is_same_v<std::invoke_result_t<F&, std::integral_constant<int, Stage>>,
                                 std::invoke_result_t<F&, std::integral_constant<int, 0>>>,
                  "smp::Topology::dispatch_stage: f must return the same type for every stage");
    if constexpr (Stage + 1 < D.pp) {
      if (stage != Stage) return dispatch_from<Stage + 1>(stage, f);
    }
    return f(std::integral_constant<int, Stage>{});
  }

  [[no_unique_address]] std::conditional_t<is_static, InTheType, Stored> stored_;
};

/// All known when the program runs: what a program with a command line uses.
using DynamicTopology = Topology<Degrees{dynamic, dynamic, dynamic, dynamic}, Placement::runtime>;

}  // namespace smp
