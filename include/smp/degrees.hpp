// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Into how many ranks a job is cut along each axis, and whether that fills a world. Needs neither MPI nor CUDA.

#include <array>
#include <limits>
#include <string>
#include <string_view>

#include <smp/error.hpp>

namespace smp {

/// A number that is known when the program runs, not when it is compiled (compare `std::dynamic_extent`).
inline constexpr int dynamic = std::numeric_limits<int>::min();

/// How many ranks a job has along each axis; the world has `pp * tp * rdp` of them.
/// Structural, so that a value is a template argument: `Topology<Degrees{.pp = 2}>`.
struct Degrees {
  int pp = 1;   ///< stages of the pipeline
  int tp = 1;   ///< ranks that share each layer (tensor parallelism)
  int rdp = 1;  ///< copies of pipeline x tensor: the reduced data-parallel degree
  int sdp = 1;  ///< ranks that hold one copy of the model state together (sharded data parallelism); divides `rdp`
  friend constexpr bool operator==(const Degrees&, const Degrees&) = default;
};

namespace detail {

struct NamedDegree {
  std::string_view name;
  int Degrees::*value;
};
inline constexpr std::array<NamedDegree, 4> named_degrees{
    {{"pp", &Degrees::pp}, {"tp", &Degrees::tp}, {"rdp", &Degrees::rdp}, {"sdp", &Degrees::sdp}}};

// With 1 for what is not known yet, so that the rest can be checked.
constexpr Degrees known(Degrees degrees) noexcept {
  for (const NamedDegree& d : named_degrees) {
    if (degrees.*d.value == dynamic) degrees.*d.value = 1;
  }
  return degrees;
}

constexpr bool positive(const Degrees& degrees) noexcept {
  for (const NamedDegree& d : named_degrees) {
    if (degrees.*d.value < 1) return false;
  }
  return true;
}

// Needs positive degrees.
constexpr bool countable(const Degrees& d) noexcept {
  constexpr int most = std::numeric_limits<int>::max();
  return d.tp <= most / d.pp && d.rdp <= most / (d.pp * d.tp);
}

constexpr void check_positive(std::string_view name, int value) {
  if (value >= 1) return;
  throw ConfigError(std::string(name) + (value == dynamic ? " has no value" : " is " + std::to_string(value)) +
                    ", but must be at least 1");
}

// `whole` says in words what `value` is.
[[noreturn]] inline void throw_not_a_divisor(std::string_view name, int degree, const std::string& whole, int value) {
  std::string low = "1", high;
  for (int d = 2; d <= value / d; ++d) {
    if (value % d != 0) continue;
    low += ", " + std::to_string(d);
    if (d != value / d) high = ", " + std::to_string(value / d) + high;
  }
  if (value != 1) high += ", " + std::to_string(value);
  throw ConfigError(std::string(name) + " is " + std::to_string(degree) + ", but must divide " + whole + " = " +
                    std::to_string(value) + "; legal values are " + low + high);
}

// Degrees that all have a value: can they work?
constexpr void check(const Degrees& d) {
  for (const NamedDegree& degree : named_degrees) check_positive(degree.name, d.*degree.value);
  if (!countable(d)) {
    throw ConfigError("pp " + std::to_string(d.pp) + " x tp " + std::to_string(d.tp) + " x rdp " +
                      std::to_string(d.rdp) + " are more ranks than an int can count");
  }
  if (d.rdp % d.sdp != 0) {
    const int mp = d.pp * d.tp;
    throw_not_a_divisor("sdp", d.sdp,
                        "the reduced data-parallel degree rdp = world / (pp * tp) = " + std::to_string(mp * d.rdp) +
                            " / " + std::to_string(mp),
                        d.rdp);
  }
}

}  // namespace detail

/// The degrees of a world of `world` ranks: where `rdp` is `dynamic`, it becomes `world / (pp * tp)`.
/// @throws ConfigError naming the degree, its value, the world and the legal values, if they do not fill the world
[[nodiscard]] constexpr Degrees degrees_for(int world, Degrees degrees) {
  detail::check_positive("world", world);
  detail::check_positive("pp", degrees.pp);
  detail::check_positive("tp", degrees.tp);
  if (world % degrees.pp != 0) detail::throw_not_a_divisor("pp", degrees.pp, "world", world);
  const int rest = world / degrees.pp;
  if (rest % degrees.tp != 0) {
    detail::throw_not_a_divisor("tp", degrees.tp,
                                "world / pp = " + std::to_string(world) + " / " + std::to_string(degrees.pp), rest);
  }
  const int rdp = rest / degrees.tp;
  if (degrees.rdp != dynamic && degrees.rdp != rdp) {
    throw ConfigError("rdp is " + std::to_string(degrees.rdp) +
                      ", but must be world / (pp * tp) = " + std::to_string(world) + " / (" +
                      std::to_string(degrees.pp) + " * " + std::to_string(degrees.tp) + ") = " + std::to_string(rdp));
  }
  degrees.rdp = rdp;
  detail::check(degrees);
  return degrees;
}

}  // namespace smp
