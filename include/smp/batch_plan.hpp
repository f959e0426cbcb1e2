// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How many samples and tokens one optimizer step sees, and which of them each rank reads. Needs neither MPI nor CUDA.

#include <cstdint>
#include <limits>
#include <string>

#include <smp/degrees.hpp>
#include <smp/error.hpp>
#include <smp/topology.hpp>

namespace smp {

/// Samples `first` to `last - 1` of a global batch.
struct SampleRange {
  std::int64_t first = 0, last = 0;  ///< `last` is the first sample after the range
  /// How many samples these are.
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return last - first; }
  friend constexpr bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// The sizes of a global batch.
///
/// Ranks that read the same samples are one *feed*, and `batch` counts the samples of one feed:
/// - not `prescaled`: a feed is a pipeline group, so there are `dp = world / pp` feeds, told apart by dp rank;
/// - `prescaled`: a feed is a model-parallel group, whose tp ranks share samples (`batch` is then usually tp times as
///   large), so there are `rdp = world / (pp * tp)` feeds, told apart by rdp rank.
struct BatchPlan {
  int world = 1, pp = 1, tp = 1;  ///< as in `degrees_for`
  bool prescaled = false;         ///< the ranks of a tp group read the same samples
  std::int64_t batch = 1;         ///< samples that one feed reads for one optimizer step
  std::int64_t seq = 1;           ///< tokens in a sample

  /// How many different ranges of samples are read.
  /// @throws ConfigError if the degrees do not fill the world
  [[nodiscard]] constexpr int feeds() const {
    const Degrees degrees = degrees_for(world, {.pp = pp, .tp = tp, .rdp = dynamic});
    return prescaled ? degrees.rdp : degrees.rdp * degrees.tp;
  }

  /// Samples in the global batch.
  /// @throws ConfigError if the plan cannot work, or the number has more than 63 bits
  [[nodiscard]] constexpr std::int64_t samples() const { return product("batch", batch, "feeds", feeds()); }

  /// Tokens in the global batch.
  /// @throws ConfigError as `samples()`
  [[nodiscard]] constexpr std::int64_t tokens() const { return product("seq", seq, "samples", samples()); }

  /// What `rank` reads of each global batch. All ranks of a pipeline group read the same.
  /// @throws ConfigError if the topology is not that of the plan, or has no such rank
  template <Degrees D, Placement P>
  [[nodiscard]] constexpr SampleRange samples_of(const Topology<D, P>& topology, int rank) const {
    const Degrees degrees = topology.degrees();
    if (topology.world_size() != world || degrees.pp != pp || degrees.tp != tp) {
      throw ConfigError("the batch plan is for " + text(world, pp, tp) + ", but the topology has " +
                        text(topology.world_size(), degrees.pp, degrees.tp));
    }
    (void)samples();  // checks that the end of every range can be counted
    const std::int64_t feed = topology.rank_in(prescaled ? Group::rdp : Group::dp, rank);
    return {feed * batch, (feed + 1) * batch};
  }

 private:
  static constexpr std::int64_t product(const char* name, std::int64_t factor, const char* of, std::int64_t count) {
    if (factor < 1) throw ConfigError(std::string(name) + " is " + std::to_string(factor) + ", but must be at least 1");
    if (factor > std::numeric_limits<std::int64_t>::max() / count) {
      throw ConfigError(std::string(name) + " is " + std::to_string(factor) + ", but times " + std::to_string(count) +
                        " " + of + " that is more than 63 bits can count");
    }
    return factor * count;
  }
  static std::string text(int world, int pp, int tp) {
    return "a world of " + std::to_string(world) + " with pp " + std::to_string(pp) + " and tp " + std::to_string(tp);
  }
};

}  // namespace smp
