// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <smp/error.hpp>

namespace {

using Json = nlohmann::ordered_json;

/// All digits that a double has; JSON has no word for what is not finite.
std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return digits;
}

/// The operation as it is counted: by what it does, however the sizes are given. Null for what moves nothing by itself.
const char* counted_as(smp::comm::Operation operation) {
  using enum smp::comm::Operation;
  switch (operation) {
    case barrier:
    case recv:
      return nullptr;
    case reduce_scatter_v:
      return name(reduce_scatter);
    case all_gather_v:
      return name(all_gather);
    case send_recv:
    case exchange:
      return name(send);
    default:
      return name(operation);
  }
}

/// {GROUP: {OPERATION: {PURPOSE: n}}}, summed over all ranks. Groups have the name of their role: without tensor
/// parallelism the ranks that hold the same parameters are simply the data-parallel ones.
Json traffic(const Summary& summary, std::uint64_t smp::comm::Counters::Count::*what) {
  std::map<std::string, std::map<std::string, std::map<std::string, std::uint64_t>>> sums;
  for (const RankReport& rank : summary.ranks) {
    for (const auto& row : rank.traffic) {
      const std::string group = row.group == "RDP" && summary.degrees.tp == 1 ? "DP" : row.group;
      if (const char* operation = counted_as(row.operation))
        sums[group][operation][name(row.purpose)] += row.count.*what;
    }
  }
  return sums;
}

}  // namespace

Log::Log(const std::string& file) : name_(file) {
  if (name_.empty()) return;
  file_.open(name_);
  if (!file_) throw smp::ConfigError("cannot write '" + name_ + "'");
}

void Log::line(const std::string& text) {
  if (name_.empty()) return;
  file_ << text << std::endl;  // whoever follows the file sees whole lines
  if (!file_) throw smp::ConfigError("cannot write '" + name_ + "'");
}

void Log::add(const StepReport& r) {
  line("{\"step\": " + std::to_string(r.step) + ", \"loss\": " + number(r.loss) +
       ", \"grad_norm\": " + number(r.grad_norm) + ", \"tokens_per_s\": " + number(std::round(r.tokens_per_s)) +
       (r.heldout ? ", \"heldout_loss\": " + number(*r.heldout) : "") + "}");
}

void Log::add(const Summary& s) {
  Json peaks, per_rank;
  for (std::size_t use = 0; use < smp::memory_uses; ++use) {
    std::vector<std::uint64_t> values;
    for (const RankReport& rank : s.ranks) values.push_back(rank.peaks[use]);
    const char* category = smp::name(static_cast<smp::MemoryUse>(use));
    peaks[category] = *std::max_element(values.begin(), values.end());
    per_rank[category] = values;
  }
  const Json degrees = {{"pp", s.degrees.pp}, {"tp", s.degrees.tp}, {"rdp", s.degrees.rdp}, {"sdp", s.degrees.sdp}};
  const Json summary = {{"transport", s.transport},
                        {"world", s.ranks.size()},
                        {"degrees", degrees},
                        {"bytes", traffic(s, &smp::comm::Counters::Count::bytes)},
                        {"calls", traffic(s, &smp::comm::Counters::Count::calls)},
                        {"peak_bytes", peaks},
                        {"peak_bytes_per_rank", per_rank},
                        {"heldout_loss", s.heldout_loss ? Json(*s.heldout_loss) : Json(nullptr)},
                        {"weights_sha256", s.weights_sha256},
                        {"wall_s", s.wall_s}};
  line(Json{{"summary", summary}}.dump());
}

Progress::Progress(int steps) : steps_(steps), terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (terminal_) std::fputc('\n', stderr);
}

void Progress::show(const StepReport& r) {
  if (!terminal_) return;
  if (r.heldout) heldout_ = r.heldout;
  if (r.step != steps_ && seconds_since(shown_) < 0.2) return;
  shown_ = Clock::now();
  const double left = seconds_since(begin_) / r.step * (steps_ - r.step);
  const auto seconds = static_cast<long>(left + 0.5);
  std::fprintf(stderr, "\rstep %d/%d  loss %.4f  ", r.step, steps_, r.loss);
  if (heldout_) std::fprintf(stderr, "held out %.4f  ", *heldout_);
  std::fprintf(stderr, "%.0f tokens/s  %ld:%02ld left \033[K", r.tokens_per_s, seconds / 60, seconds % 60);
}
