// SPDX-License-Identifier: Apache-2.0
// The plan of one rank of a world of any size, written down without anybody else.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/groups.hpp>
#include <smp/comm/recording.hpp>

namespace {

using smp::HostStream;
using smp::Purpose;
using smp::comm::Call;
using smp::comm::Element;
using smp::comm::Groups;
using smp::comm::Operation;
using smp::comm::Recording;
using smp::comm::ReduceOp;

TEST_CASE("calls are written down in order, with what they were asked for") {
  HostStream stream;
  Recording world(3, 1024);
  CHECK(world.rank() == 3);
  CHECK(world.size() == 1024);
  std::vector<smp::BFloat16> a(7), b(7);
  std::vector<double> big(1024);
  world.all_reduce(stream, a, b, smp::maximum, Purpose::gradient);
  world.broadcast(stream, big, 1000, Purpose::parameter);
  world.send_recv(stream, std::span(a).first(2), 4, std::span(b).first(3), 2);
  world.barrier(stream);

  REQUIRE(world.log().size() == 4);
  const Call& reduced = world.log()[0].call;
  CHECK(world.log()[0].group == "WORLD");
  CHECK(reduced.operation == Operation::all_reduce);
  CHECK(reduced.purpose == Purpose::gradient);
  CHECK(reduced.element == Element::bf16);
  CHECK(reduced.element_bytes == 2);
  CHECK(reduced.reduction.op == ReduceOp::maximum);
  CHECK(reduced.count == 7);
  CHECK(reduced.input == reinterpret_cast<const std::byte*>(a.data()));
  CHECK(reduced.output == reinterpret_cast<std::byte*>(b.data()));
  CHECK(std::string(reduced.where.file_name()).ends_with("recording.test.cpp"));
  const Call& broadcast = world.log()[1].call;
  CHECK(broadcast.operation == Operation::broadcast);
  CHECK(broadcast.peer == 1000);
  CHECK(broadcast.count == 1024);
  const Call& message = world.log()[2].call;
  CHECK(message.operation == Operation::send_recv);
  CHECK(message.count == 2);
  CHECK(message.recv_count == 3);
  CHECK(message.peer == 4);
  CHECK(message.source == 2);
  CHECK(world.log()[3].call.operation == Operation::barrier);
}

TEST_CASE("buffers stay as they are, and wrong arguments are refused as everywhere") {
  HostStream stream;
  Recording world(0, 2);
  std::vector<int> in{1, 2}, out{8, 9, 10, 11};
  world.all_gather(stream, in, out);
  CHECK(out == std::vector{8, 9, 10, 11});
  CHECK_THROWS_AS(world.all_gather(stream, in, in), smp::CommError);
  CHECK(world.log().size() == 1);
}

TEST_CASE("parts write to the same log under their own names") {
  HostStream stream;
  Recording world(5, 8);
  Recording pair = world.part({1, 5}, "DP");
  CHECK(pair.rank() == 1);
  CHECK(pair.group().world_ranks == std::vector{1, 5});
  Recording part_of_part = pair.part({1}, "SHARD");
  CHECK(part_of_part.group().world_ranks == std::vector{5});
  pair.barrier(stream);
  part_of_part.barrier(stream);
  REQUIRE(world.log().size() == 2);
  CHECK(world.log()[0].group == "DP");
  CHECK(world.log()[1].group == "SHARD");
  CHECK_THROWS_WITH_AS(static_cast<void>(world.part({0, 1}, "TP")), "smp: rank 5 is no member of TP", smp::ConfigError);
  CHECK(world.split(0, 0, "ALONE").group().world_ranks == std::vector{5});
}

TEST_CASE("the groups of rank 1000 of 1536 are those of the topology") {
  const smp::DynamicTopology topology(smp::Degrees{.pp = 4, .tp = 8, .rdp = 48, .sdp = 16});
  Recording world(1000, 1536);
  Groups<Recording> groups(world, topology);
  for (const smp::Group kind : smp::all_groups) {
    const auto ranks = topology.group(kind, 1000);
    CHECK(groups[kind].group().world_ranks == std::vector<int>(ranks.begin(), ranks.end()));
    CHECK(groups[kind].group().name == smp::to_string(kind));
    CHECK(groups[kind].rank() == topology.rank_in(kind, 1000));
  }
}

TEST_CASE("a message names some of very many ranks") {
  std::vector<int> dummy(1);
  HostStream stream;
  Recording world(3, 10000);
  try {
    world.broadcast(stream, dummy, -1);
    FAIL("not refused");
  } catch (const smp::CommError& e) {
    const std::string text = e.what();
    CHECK(text.size() < 300);
    CHECK(text.find("on WORLD group (world ranks 0,1,2,3,4,5,6,7,...,9999), rank 3: there is no rank -1") !=
          std::string::npos);
  }
}

}  // namespace
