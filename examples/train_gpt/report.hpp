// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What train_gpt says while it runs and when it ends: the log for programs, the progress for people.

#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/counted.hpp>
#include <smp/comm/objects.hpp>
#include <smp/degrees.hpp>
#include <smp/device/memory.hpp>

using Clock = std::chrono::steady_clock;

/// Seconds since `begin`.
inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What is logged of an optimizer step.
struct StepReport {
  int step = 0;                   ///< of --steps; the first is 1
  double loss = 0;                ///< mean over all tokens of the step, before the update
  double grad_norm = 0;           ///< before clipping
  double tokens_per_s = 0;        ///< over all ranks
  std::optional<double> heldout;  ///< mean loss of the held-out text after the update, if it was computed
};

/// What a rank contributes to the summary.
struct RankReport {
  std::vector<smp::comm::Counters::Row> traffic;        ///< of the last step
  std::array<std::uint64_t, smp::memory_uses> peaks{};  ///< bytes by category
};

/// How a report travels.
template <>
struct smp::comm::ObjectTraits<RankReport> {
  static void pack(const RankReport& report, Bytes& bytes) {
    comm::pack(std::uint64_t{report.traffic.size()}, bytes);
    for (const auto& [group, operation, purpose, count] : report.traffic) {
      comm::pack(group, bytes);
      comm::pack(operation, bytes);
      comm::pack(purpose, bytes);
      comm::pack(count, bytes);
    }
    comm::pack(report.peaks, bytes);
  }
  static RankReport unpack(ByteReader& reader) {
    RankReport report;
    for (auto rows = comm::unpack<std::uint64_t>(reader); rows > 0; --rows) {
      auto group = comm::unpack<std::string>(reader);
      const auto operation = comm::unpack<Operation>(reader);
      const auto purpose = comm::unpack<Purpose>(reader);
      report.traffic.push_back({std::move(group), operation, purpose, comm::unpack<Counters::Count>(reader)});
    }
    report.peaks = comm::unpack<decltype(report.peaks)>(reader);
    return report;
  }
};

/// What is logged at the end.
struct Summary {
  std::string transport;               ///< threads, mpi or nccl
  smp::Degrees degrees;                ///< of the topology
  std::vector<RankReport> ranks;       ///< of all ranks, in order
  std::optional<double> heldout_loss;  ///< mean over the held-out text
  std::string weights_sha256;          ///< of all parameters in the order of their paths
  double wall_s = 0;                   ///< of the whole program
};

/// The file of `--log`: one JSON object a line.
class Log {
 public:
  /// Opens `file`, or nothing if it is empty.
  /// @throws smp::ConfigError if it cannot be written
  explicit Log(const std::string& file);

  /// Adds the line of a step.
  void add(const StepReport& report);
  /// Adds the last line.
  void add(const Summary& summary);

 private:
  void line(const std::string& text);

  std::string name_;
  std::ofstream file_;
};

/// A line on the terminal that follows the training: nothing if stderr is something else.
class Progress {
 public:
  /// For a run of `steps`.
  explicit Progress(int steps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Shows `report`, a few times a second at most.
  void show(const StepReport& report);

 private:
  int steps_;
  bool terminal_;
  std::optional<double> heldout_;
  Clock::time_point begin_ = Clock::now(), shown_{};
};
