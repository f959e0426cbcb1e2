// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Times two things in turn, so that what else the machine does meets both alike, and reports their ratio.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

namespace smp::benchmarks {

/// Seconds of one round of each side.
struct Round {
  double ours = 0;
  double theirs = 0;
};

/// Runs both sides in turn, several calls a time, until about `seconds` have passed or `most` rounds are done.
/// @param barrier called by every rank between the sides: a side's time ends when its last rank is done
/// @param agree `agree(bool)` gives every rank the first rank's answer
template <class Barrier, class Agree, class Ours, class Theirs>
std::vector<Round> alternate(double seconds, std::size_t calls, Barrier barrier, Agree agree, Ours ours, Theirs theirs,
                             std::size_t most = 400) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](auto& side) {
    barrier();
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) side();
    barrier();
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) {
    timed(ours);
    timed(theirs);
  }
  std::vector<Round> rounds;
  const auto begin = Clock::now();
  while (rounds.size() < 5 ||
         agree(rounds.size() < most && std::chrono::duration<double>(Clock::now() - begin).count() < seconds)) {
    // Both orders equally often: the second of two finds the caches as the first has left them.
    Round round;
    const bool ours_first = rounds.size() % 2 == 0;
    if (ours_first) round.ours = timed(ours);
    round.theirs = timed(theirs);
    if (!ours_first) round.ours = timed(ours);
    rounds.push_back(round);
  }
  return rounds;
}

/// The middle one of `f(round)` over all rounds.
template <class F>
double median(const std::vector<Round>& rounds, F f) {
  std::vector<double> values;
  for (const Round& r : rounds) values.push_back(f(r));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Hands the rounds to Google Benchmark: the manual time is ours, the counters are `theirs_us` (median microseconds of
/// the other side) and `ratio` (median of ours / theirs, round by round).
inline void report(benchmark::State& state, const std::vector<Round>& rounds, double bytes) {
  const double ours = median(rounds, [](const Round& r) { return r.ours; });
  for (auto _ : state) state.SetIterationTime(ours);
  state.counters["theirs_us"] = 1e6 * median(rounds, [](const Round& r) { return r.theirs; });
  state.counters["ratio"] = median(rounds, [](const Round& r) { return r.ours / r.theirs; });
  state.counters["rounds"] = static_cast<double>(rounds.size());
  state.counters["GB/s"] = bytes / ours / 1e9;
}

/// So many calls a round that the clock and the barrier do not count.
inline std::size_t calls_for(std::size_t bytes) {
  return std::max<std::size_t>(1, (std::size_t{1} << 20) / (bytes + 512));
}

/// "4KiB", "16MiB"
inline std::string size_name(std::size_t bytes) {
  return bytes >= (std::size_t{1} << 20) ? std::to_string(bytes >> 20) + "MiB" : std::to_string(bytes >> 10) + "KiB";
}

}  // namespace smp::benchmarks
