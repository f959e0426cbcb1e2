// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The timelines of all ranks, as a file for Perfetto or chrome://tracing, and as a picture.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/objects.hpp>
#include <smp/pipeline/timeline_svg.hpp>
#include <smp/timeline.hpp>

namespace smp {

/// How an event travels.
template <>
struct comm::ObjectTraits<TimelineEvent> {
  static void pack(const TimelineEvent& event, Bytes& bytes) {
    for (const std::string* text : {&event.row, &event.name, &event.category}) comm::pack(*text, bytes);
    comm::pack(event.begin, bytes);
    comm::pack(event.end, bytes);
  }
  static TimelineEvent unpack(ByteReader& reader) {
    auto row = comm::unpack<std::string>(reader);
    auto name = comm::unpack<std::string>(reader);
    auto category = comm::unpack<std::string>(reader);
    const auto begin = comm::unpack<double>(reader);
    return {std::move(row), std::move(name), std::move(category), begin, comm::unpack<double>(reader)};
  }
};

/// The events of all ranks, by rank. All ranks of the group call it.
template <comm::HostCommunicator C>
[[nodiscard]] std::vector<std::vector<TimelineEvent>> gather_timelines(C& group, const Timeline& own) {
  return comm::all_gather_object(group, own.events());
}

/// In the JSON of Chrome's trace events: a process for each rank, a thread for each row, times in microseconds.
[[nodiscard]] inline std::string chrome_trace(const std::vector<std::vector<TimelineEvent>>& ranks) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  auto add = [&, first = true](const std::string& event) mutable {
    text += (std::exchange(first, false) ? "\n" : ",\n") + event;
  };
  const auto micros = [](double seconds) {
    char digits[48];
    std::snprintf(digits, sizeof digits, "%.3f", seconds * 1e6);
    return std::string(digits);
  };
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string process = "\"pid\":" + std::to_string(rank);
    add("{\"ph\":\"M\",\"name\":\"process_name\"," + process + ",\"args\":{\"name\":\"rank " + std::to_string(rank) +
        "\"}}");
    std::map<std::string, std::size_t> rows;
    for (const TimelineEvent& e : ranks[rank]) {
      const auto [row, fresh] = rows.try_emplace(e.row, rows.size());
      const std::string thread = process + ",\"tid\":" + std::to_string(row->second);
      if (fresh) add("{\"ph\":\"M\",\"name\":\"thread_name\"," + thread + ",\"args\":{\"name\":\"" + e.row + "\"}}");
      add("{\"ph\":\"X\",\"name\":\"" + e.name + "\",\"cat\":\"" + e.category + "\"," + thread +
          ",\"ts\":" + micros(e.begin) + ",\"dur\":" + micros(e.end - e.begin) + "}");
    }
  }
  return text + "\n]}\n";
}

/// As a picture: for each rank a row of what it computes, and a thin one of what it sends and receives.
[[nodiscard]] inline std::string trace_svg(const std::vector<std::vector<TimelineEvent>>& ranks,
                                           const std::string& title) {
  double length = 1e-9;
  for (const auto& events : ranks) {
    for (const TimelineEvent& e : events) length = std::max(length, e.end);
  }
  constexpr double left = 74, top = 66, row = 26, thin = 8, gap = 8, span = 1320;
  const double scale = span / length, bottom = top + static_cast<double>(ranks.size()) * (row + thin + gap);
  detail::SvgPage page;
  page.add("<svg xmlns='http://www.w3.org/2000/svg' width='", left + span + 24, "' height='", bottom + 40,
           "' font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#2b2f36'>\n");
  page.rect(0, 0, left + span + 24, bottom + 40, "fill='white'");
  page.text(18, 30, "font-size='17' font-weight='bold'", title);
  const double step = detail::round_step(1000 * length, 20);
  for (double at = 0; at <= 1000 * length; at += step) {
    page.rect(left + at * scale / 1000 - 0.5, top - 6, 1, bottom - top + 6, "fill='#e3e6ea'");
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g ms", at);
    page.text(left + at * scale / 1000, bottom + 16, "text-anchor='middle' fill='#6a7280' font-size='11'", digits);
  }
  const std::map<std::string, ActionKind> kinds{{"forward", ActionKind::forward},
                                                {"backward", ActionKind::backward},
                                                {"backward_input", ActionKind::backward_input},
                                                {"backward_params", ActionKind::backward_params}};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = top + static_cast<double>(rank) * (row + thin + gap);
    page.text(left - 10, y + row / 2 + 4, "text-anchor='end'", "rank " + std::to_string(rank));
    page.rect(left, y, span, row, "rx='3' fill='#f1f3f5'");
    for (const TimelineEvent& e : ranks[rank]) {
      const auto kind = kinds.find(e.category);
      const double x = left + e.begin * scale, w = std::max((e.end - e.begin) * scale, 0.3);
      page.add("<g><title>", e.row + ": " + e.name + " (" + e.category + ")", "</title>\n");
      if (kind == kinds.end()) {
        page.rect(x, y + row + 1, w, thin - 2, "fill='#b0b7c1'");
      } else {
        page.rect(x, y, w, row, "rx='2' fill='" + detail::colour(kind->second, 0, 1) + "'");
        if (w > 7.0 * static_cast<double>(e.name.size())) {
          page.text(x + w / 2, y + row / 2 + 4, "text-anchor='middle' font-size='11' fill='white'", e.name);
        }
      }
      page.add("</g>\n");
    }
  }
  page.add("</svg>\n");
  return page.words();
}

}  // namespace smp
