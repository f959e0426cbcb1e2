// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A picture of a simulated plan: a row for each rank, time to the right, as one SVG without scripts or fonts of its
/// own.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include <smp/pipeline/simulate.hpp>

namespace smp {

namespace detail {

/// Appends SVG elements to a text; lengths are pixels.
class SvgPage {
 public:
  template <class... Parts>
  SvgPage& add(const Parts&... parts) {
    (append(parts), ...);
    return *this;
  }
  SvgPage& rect(double x, double y, double width, double height, const std::string& style) {
    return add("<rect x='", x, "' y='", y, "' width='", width, "' height='", height, "' ", style, "/>\n");
  }
  SvgPage& text(double x, double y, const std::string& style, const std::string& words) {
    return add("<text x='", x, "' y='", y, "' ", style, ">", words, "</text>\n");
  }
  [[nodiscard]] const std::string& words() const noexcept { return words_; }

 private:
  void append(const std::string& part) { words_ += part; }
  void append(const char* part) { words_ += part; }
  void append(double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g", std::round(value * 100) / 100);
    words_ += digits;
  }
  std::string words_;
};

/// The colour of an action: a hue for each kind, paler for later chunks.
[[nodiscard]] inline std::string colour(ActionKind kind, int chunk, int chunks) {
  constexpr int hues[][3] = {{64, 124, 200}, {46, 150, 104}, {126, 168, 52}, {230, 160, 50}, {90, 90, 90}};
  const double pale = chunks > 1 ? 0.55 * chunk / (chunks - 1) : 0;
  char hex[8];
  const auto mixed = [&](int part) {
    const int from = hues[static_cast<int>(kind)][part];
    return static_cast<unsigned>(from + pale * (255 - from)) & 0xffU;
  };
  std::snprintf(hex, sizeof hex, "#%02x%02x%02x", mixed(0), mixed(1), mixed(2));
  return hex;
}

/// A step of 1, 2 or 5 times a power of ten, so that about `parts` of them make `length`.
[[nodiscard]] inline double round_step(double length, int parts) {
  const double power = std::pow(10, std::floor(std::log10(length / parts)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (length / (factor * power) <= parts) return factor * power;
  return 10 * power;
}

}  // namespace detail

/// The timeline of `plan` as `simulation` ran it with `times`. `title` is printed above (plain text, without markup).
[[nodiscard]] inline std::string timeline_svg(const PipelinePlan& plan, const PipelineSimulation& simulation,
                                              const ActionTimes& times, const std::string& title) {
  const double makespan = std::max(simulation.makespan, 1e-9);
  double shortest = makespan;
  for (const Action& action : plan.actions)
    if (times.of(action.kind) > 0) shortest = std::min(shortest, times.of(action.kind));
  // Wide enough to read every micro-batch, unless that would be three screens; then an overview without numbers.
  const double characters = static_cast<double>(std::to_string(plan.shape.microbatches - 1).size());
  const double legible = (4 + 5 * characters) / shortest;
  const double fitted = std::min(1320 / makespan, 30 / shortest);
  const double scale = legible * makespan <= 4000 ? std::max(fitted, legible) : fitted;
  const double font = std::min(12.0, shortest * scale / (0.45 + 0.6 * characters));
  constexpr double left = 74, top = 78, row = 30, gap = 5;
  const double span = makespan * scale, bottom = top + plan.ranks() * (row + gap);
  const double width = std::max(left + span + 24, 560.0), height = bottom + 62;
  const auto number = [](double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3g", value);
    return value < 1000 ? std::string(digits) : std::to_string(std::llround(value));
  };

  detail::SvgPage page;
  page.add("<svg xmlns='http://www.w3.org/2000/svg' width='", width, "' height='", height, "' viewBox='0 0 ", width,
           " ", height, "' font-family='Helvetica, Arial, sans-serif' font-size='12' fill='#2b2f36'>\n");
  page.rect(0, 0, width, height, "fill='white'");
  page.text(18, 30, "font-size='17' font-weight='bold'", title);
  page.text(18, 52, "fill='#6a7280'",
            "makespan " + number(simulation.makespan) + ", idle " + number(simulation.idle) + " a rank, bubble " +
                number(100 * simulation.bubble) + " %");

  const double step = detail::round_step(makespan, static_cast<int>(std::max(span / 60, 2.0)));
  for (double at = 0; at <= makespan * 1.0001; at += step) {
    page.rect(left + at * scale - 0.5, top - 6, 1, bottom - top + 8, "fill='#e3e6ea'");
    page.text(left + at * scale, bottom + 16, "text-anchor='middle' fill='#6a7280' font-size='11'", number(at));
  }
  bool seen[4] = {}, overlaps = false;
  const std::string dark_label = "text-anchor='middle' font-size='" + number(font) + "'";
  const std::string white_label = dark_label + " fill='white'";
  const std::string join = "rx='2' fill='#2b2f36'";  // between two actions that overlap
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    const double y = top + rank * (row + gap);
    page.text(left - 10, y + row / 2 + 4, "text-anchor='end'", "rank " + std::to_string(rank));
    page.rect(left, y, span, row, "rx='3' fill='#f1f3f5'");
    for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i) {
      const Action& action = plan.actions[i];
      if (action.kind == ActionKind::update) continue;
      seen[static_cast<int>(action.kind)] = true;
      const double x = left + simulation.timeline.start[i] * scale, w = times.of(action.kind) * scale;
      const double inset = std::min(0.6, w / 8);
      page.add("<g><title>", plan.cell(i), "</title>\n");
      page.rect(x + inset, y, w - 2 * inset, row,
                "rx='2.5' fill='" + detail::colour(action.kind, action.chunk, plan.shape.chunks) + "'");
      const std::string label = std::to_string(action.microbatch);
      const bool dark = plan.shape.chunks > 1 && 2 * action.chunk >= plan.shape.chunks;
      if (font >= 6) page.text(x + w / 2, y + row / 2 + font / 3, dark ? dark_label : white_label, label);
      page.add("</g>\n");
      if (i > plan.first[rank] && plan.actions[i - 1].overlaps_next) {
        overlaps = true;
        page.rect(x - 3, y + row / 2 - 4, 6, 8, join);
      }
    }
  }
  constexpr const char* words[] = {"forward", "backward", "backward, input only", "backward, parameters"};
  double x = left;
  for (const ActionKind kind :
       {ActionKind::forward, ActionKind::backward, ActionKind::backward_input, ActionKind::backward_params}) {
    if (!seen[static_cast<int>(kind)]) continue;
    for (int chunk = 0; chunk < plan.shape.chunks; ++chunk, x += 14)
      page.rect(x, bottom + 32, 13, 13, "rx='2' fill='" + detail::colour(kind, chunk, plan.shape.chunks) + "'");
    const std::string word = words[static_cast<int>(kind)];
    page.text(x + 4, bottom + 43, "", word);
    x += 6.4 * static_cast<double>(word.size()) + 24;
  }
  if (overlaps) {
    page.rect(x, bottom + 35, 6, 8, join).text(x + 10, bottom + 43, "", "overlapped");
    x += 88;
  }
  if (plan.shape.chunks > 1) page.text(x, bottom + 43, "fill='#6a7280'", "paler: later chunks");
  page.add("</svg>\n");
  return page.words();
}

}  // namespace smp
