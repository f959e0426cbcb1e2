// SPDX-License-Identifier: Apache-2.0
// What is counted, against the formulas of bandwidth-optimal algorithms, summed over all ranks of a group.
#include <array>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/counted.hpp>
#include <smp/comm/recording.hpp>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::Purpose;
using smp::comm::Counted;
using smp::comm::Counters;
using smp::comm::Operation;
using smp::comm::Recording;
using smp::comm::Transfer;
using Count = Counters::Count;

constexpr std::array<int, 5> worlds{1, 2, 3, 4, 8};

/// Every operation once on buffers of `X` bytes (`X` floats of 4), with one purpose each.
template <class C>
struct EachOperationOnce {
  static constexpr std::size_t elements = 3 * 5 * 7 * 8;  // divisible by every world
  std::vector<float> a = std::vector<float>(elements), b = std::vector<float>(elements);
  std::vector<std::size_t> counts;
  std::vector<Transfer> transfers;

  void call(C& c, smp::HostStream& stream) {
    const auto n = static_cast<std::size_t>(c.size());
    const auto self = static_cast<std::size_t>(c.rank());
    const std::size_t piece = elements / n;
    counts.assign(n, 0);
    counts.back() = elements;
    const std::span<float> whole(a), own(b.data(), piece), own_v(b.data(), counts[self]);
    c.barrier(stream, Purpose::control);
    c.broadcast(stream, whole, c.size() - 1, Purpose::parameter);
    c.reduce(stream, whole, std::span(b), smp::sum, 0, Purpose::norm);
    c.all_reduce(stream, whole, std::span(b), smp::sum, Purpose::gradient);
    c.reduce_scatter(stream, whole, own, smp::sum, Purpose::gradient);
    c.reduce_scatter_v(stream, whole, own_v, counts, smp::sum, Purpose::gradient);
    c.all_gather(stream, own, whole, Purpose::parameter);
    c.all_gather_v(stream, own_v, whole, counts, Purpose::parameter);
    c.all_to_all(stream, whole, std::span(b), Purpose::activation);
    const int next = (c.rank() + 1) % c.size();
    const int previous = (c.rank() + c.size() - 1) % c.size();
    c.send_recv(stream, whole, next, std::span(b), previous, Purpose::activation);
    transfers = {Transfer::to(next, std::span<const float>(a)), Transfer::from(previous, std::span<float>(b))};
    c.exchange(stream, transfers, Purpose::activation);
    if (c.rank() % 2 == 0 && c.rank() + 1 < c.size()) c.send(stream, whole, c.rank() + 1, Purpose::checkpoint);
    if (c.rank() % 2 == 1) c.recv(stream, whole, c.rank() - 1, Purpose::checkpoint);
  }
};

/// The bytes of all ranks together.
std::uint64_t over_all_ranks(World& world, std::uint64_t mine) {
  smp::HostStream stream;
  world.all_reduce(stream, std::span(&mine, 1), std::span(&mine, 1), smp::sum);
  return mine;
}

TEST_CASE("all ranks together send 2(n-1)X for an all_reduce and (n-1)X for what needs half of that") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    Counted<World> counted(world);
    EachOperationOnce<Counted<World>> once;
    once.call(counted, stream);

    const auto n = static_cast<std::uint64_t>(world.size());
    const std::uint64_t x = 4 * once.elements;
    struct Expected {
      Operation operation;
      Purpose purpose;
      std::uint64_t bytes;
    };
    const std::array expected{
        Expected{Operation::barrier, Purpose::control, 0},
        Expected{Operation::broadcast, Purpose::parameter, (n - 1) * x},
        Expected{Operation::reduce, Purpose::norm, (n - 1) * x},
        Expected{Operation::all_reduce, Purpose::gradient, 2 * (n - 1) * x},
        Expected{Operation::reduce_scatter, Purpose::gradient, (n - 1) * x},
        Expected{Operation::reduce_scatter_v, Purpose::gradient, (n - 1) * x},
        Expected{Operation::all_gather, Purpose::parameter, (n - 1) * x},
        Expected{Operation::all_gather_v, Purpose::parameter, (n - 1) * x},
        Expected{Operation::all_to_all, Purpose::activation, (n - 1) * x},
        Expected{Operation::send_recv, Purpose::activation, n == 1 ? 0 : n * x},
        Expected{Operation::exchange, Purpose::activation, n == 1 ? 0 : n * x},
        Expected{Operation::send, Purpose::checkpoint, n / 2 * x},
        Expected{Operation::recv, Purpose::checkpoint, 0},
    };
    for (const Expected& e : expected) {
      const Count mine = counted.counters().get("WORLD", e.operation, e.purpose);
      CAPTURE(name(e.operation));
      CHECK(over_all_ranks(world, mine.bytes) == e.bytes);
      const bool every_rank = e.operation != Operation::send && e.operation != Operation::recv;
      CHECK(over_all_ranks(world, mine.calls) == (every_rank ? n : n / 2));
    }
  });
}

TEST_CASE("of an all_reduce every rank sends the same, up to one element") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    const auto n = static_cast<std::uint64_t>(world.size());
    for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{1000003}}) {
      Counted<World> counted(world);
      std::vector<double> buffer(elements);
      counted.all_reduce(stream, buffer, buffer, smp::sum);
      const std::uint64_t mine = counted.counters().get("WORLD", Operation::all_reduce, Purpose::other).bytes;
      CHECK(over_all_ranks(world, mine) == 2 * (n - 1) * 8 * elements);
      if (elements > 100) CHECK(mine <= 2 * (n - 1) * 8 * (elements / n + 1));
    }
  });
}

TEST_CASE("a plan of each rank counts what the ranks then count") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    Counted<World> real(world);
    EachOperationOnce<Counted<World>> real_calls;
    real_calls.call(real, stream);

    Counted<Recording> plan(Recording(world.rank(), world.size()));
    EachOperationOnce<Counted<Recording>> planned_calls;
    planned_calls.call(plan, stream);

    const auto rows = real.counters().rows();
    const auto planned = plan.counters().rows();
    REQUIRE(rows.size() == planned.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].group == planned[i].group);
      CHECK(rows[i].operation == planned[i].operation);
      CHECK(rows[i].purpose == planned[i].purpose);
      CHECK(rows[i].count == planned[i].count);
    }
  });
}

TEST_CASE("groups and purposes are counted apart, in one table") {
  on_ranks({4}, [](World& world) {
    smp::HostStream stream;
    Counted<World> counted(world);
    Counted<World> pair = counted.split(world.rank() / 2, 0, "TP");
    Counted<World> same_pair = pair;
    std::vector<float> data(100);
    counted.all_reduce(stream, data, data, smp::sum, Purpose::gradient);
    counted.all_reduce(stream, data, data, smp::sum, Purpose::norm);
    counted.all_reduce(stream, data, data, smp::sum, Purpose::norm);
    pair.all_reduce(stream, data, data, smp::sum, Purpose::gradient);
    same_pair.all_reduce(stream, data, data, smp::maximum, Purpose::gradient);
    const Counters& c = counted.counters();
    CHECK(c.get("WORLD", Operation::all_reduce, Purpose::gradient) == Count{1, 600});
    CHECK(c.get("WORLD", Operation::all_reduce, Purpose::norm) == Count{2, 1200});
    CHECK(c.get("TP", Operation::all_reduce, Purpose::gradient) == Count{2, 800});
    CHECK(c.get("TP", Operation::all_reduce, Purpose::norm) == Count{});
    CHECK(c.get("PP", Operation::all_reduce, Purpose::gradient) == Count{});
    CHECK(c.rows().size() == 3);
    CHECK(&pair.counters() == &c);
  });
}

TEST_CASE("of an exchange, messages of control are counted apart") {
  on_ranks({2}, [](World& world) {
    smp::HostStream stream;
    Counted<World> counted(world);
    const std::vector<float> sent(10, 1.5f);
    std::vector<float> received(10);
    const int says = world.rank(), peer = 1 - world.rank();
    int heard = -1;
    std::array transfers{Transfer::to(peer, std::span(sent)), Transfer::from(peer, std::span(received)),
                         Transfer::to(peer, std::span<const int>(&says, 1)),
                         Transfer::from(peer, std::span(&heard, 1))};
    transfers[2].control = transfers[3].control = true;
    counted.exchange(stream, transfers, Purpose::activation);
    CHECK(received == sent);
    CHECK(heard == peer);
    CHECK(counted.counters().get("WORLD", Operation::exchange, Purpose::activation) == Count{1, 40});
    CHECK(counted.counters().get("WORLD", Operation::exchange, Purpose::control) == Count{1, 4});
  });
}

TEST_CASE("counting changes no result") {
  on_ranks(worlds, [](World& world) {
    smp::HostStream stream;
    Counted<World> counted(world);
    int sum = world.rank();
    counted.all_reduce(stream, std::span(&sum, 1), std::span(&sum, 1), smp::sum);
    CHECK(sum == world.size() * (world.size() - 1) / 2);
    CHECK(counted.rank() == world.rank());
    CHECK(counted.group().world_ranks == world.group().world_ranks);
    CHECK_THROWS_AS(counted.send(stream, std::span(&sum, 1), world.size()), smp::CommError);
    CHECK(counted.counters().get("WORLD", Operation::send, Purpose::other) == Count{});
  });
}

}  // namespace
