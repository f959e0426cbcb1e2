// Timelines: what is kept, and what the files of all ranks say.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/objects.hpp>
#include <smp/timeline.hpp>
#include <smp/trace/trace.hpp>

namespace {

using smp::Timeline, smp::TimelineEvent;

TEST_CASE("events are kept from start to stop, and not by those without timeline") {
  Timeline timeline;
  { const Timeline::Scope scope(&timeline, "compute", "F0", "forward"); }
  CHECK(timeline.events().empty());
  timeline.start();
  { const Timeline::Scope scope(nullptr, "compute", "F0", "forward"); }
  {
    const Timeline::Scope scope(&timeline, "compute", "F1", "forward");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  timeline.stop();
  { const Timeline::Scope scope(&timeline, "compute", "F2", "forward"); }
  const auto events = timeline.events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].name == "F1");
  CHECK(events[0].begin >= 0);
  CHECK(events[0].end - events[0].begin >= 0.005);
  timeline.start();
  CHECK(timeline.events().empty());
}

TEST_CASE("a Chrome trace has a process for each rank, a thread for each row, and microseconds") {
  const std::vector<std::vector<TimelineEvent>> ranks{
      {{"compute", "F0", "forward", 0, 0.001}, {"PP", "exchange", "activation", 0.001, 0.0015}},
      {{"compute", "B0", "backward", 0.25, 0.5}}};
  CHECK(smp::chrome_trace(ranks) ==
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"name\":\"rank 0\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"compute\"}},\n"
        "{\"ph\":\"X\",\"name\":\"F0\",\"cat\":\"forward\",\"pid\":0,\"tid\":0,\"ts\":0.000,\"dur\":1000.000},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":0,\"tid\":1,\"args\":{\"name\":\"PP\"}},\n"
        "{\"ph\":\"X\",\"name\":\"exchange\",\"cat\":\"activation\",\"pid\":0,\"tid\":1,\"ts\":1000.000,\"dur\":500."
        "000},\n"
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"rank 1\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"compute\"}},\n"
        "{\"ph\":\"X\",\"name\":\"B0\",\"cat\":\"backward\",\"pid\":1,\"tid\":0,\"ts\":250000.000,\"dur\":250000.000}\n"
        "]}\n");
  const std::string svg = smp::trace_svg(ranks, "two ranks");
  CHECK(svg.find("<title>compute: F0 (forward)</title>") != std::string::npos);
  CHECK(svg.find("<title>PP: exchange (activation)</title>") != std::string::npos);
  CHECK(svg.find(">rank 1</text>") != std::string::npos);
  CHECK(svg.find("</svg>") == svg.size() - 7);
}

TEST_CASE("an event travels") {
  const std::vector<TimelineEvent> events{{"TP", "all_reduce", "gradient", 0.5, 0.75}};
  smp::comm::Bytes bytes;
  smp::comm::pack(events, bytes);
  const auto found = smp::comm::unpack_all<std::vector<TimelineEvent>>(bytes);
  REQUIRE(found.size() == 1);
  CHECK(found[0].row + found[0].name + found[0].category == "TPall_reducegradient");
  CHECK(found[0].begin == 0.5);
  CHECK(found[0].end == 0.75);
}

}  // namespace
