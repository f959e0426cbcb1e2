// SPDX-License-Identifier: Apache-2.0
// Operations enqueued in streams with workers: every operation, several groups at the same time, order by events, and
// what becomes of errors.
#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm/operations.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::CommError;
using smp::HostEvent;
using smp::HostStream;

constexpr auto worker = HostStream::Mode::worker;

TEST_CASE("every operation can be enqueued in a stream with a worker") {
  const auto calls = reduction_calls<smp::BFloat16, smp::Sum, World>();
  on_ranks({1, 2, 3, 4}, [&](World& world) {
    for (const std::size_t n : {std::size_t{0}, std::size_t{17}, std::size_t{30011}}) {
      for (const InPlace choice : in_place_choices) {
        check_moves(world, choice, n, calls, worker);
        check_reductions(world, choice, n, calls, worker);
      }
    }
  });
}

TEST_CASE("the caller is ahead of communication that other ranks have not come to") {
  std::atomic<bool> last_may_come{false};
  on_ranks({2, 3}, [&](World& world) {
    HostStream now, stream(worker);
    HostEvent done;
    std::vector<int> data(1000, 1);
    last_may_come = false;
    world.barrier(now);
    if (world.rank() == world.size() - 1) {
      while (!last_may_come) std::this_thread::yield();
    }
    for (int i = 0; i < 10; ++i) world.all_reduce(stream, data, data, smp::sum);
    stream.record(done);
    if (world.rank() == 0) {
      CHECK_FALSE(done.ready());  // one rank has not called anything
      last_may_come = true;
    }
    done.wait();
    int power = 1;
    for (int i = 0; i < 10; ++i) power *= world.size();
    CHECK(data == std::vector<int>(1000, power));
  });
}

TEST_CASE("two groups communicate in two streams at the same time, ordered with computation by events only") {
  on_ranks({2, 4}, [](World& world) {
    World second = world.split(0, -world.rank(), "SECOND");
    HostStream compute(worker), gather(worker), reduce(worker);
    HostEvent computed, gathered, reduced;
    constexpr std::size_t n = 5000;
    std::vector<int> shard(n), whole(n * static_cast<std::size_t>(world.size())), sums(n);
    bool right = true;
    for (int step = 1; step <= 50; ++step) {
      compute.wait(reduced);
      compute.wait(gathered);
      compute.enqueue([&, step] { shard.assign(n, step * (world.rank() + 1)); });
      compute.record(computed);
      gather.wait(computed);
      world.all_gather(gather, shard, whole);
      gather.record(gathered);
      reduce.wait(computed);
      second.all_reduce(reduce, shard, sums, smp::sum);
      reduce.record(reduced);
      compute.wait(gathered);
      compute.wait(reduced);
      compute.enqueue([&, step] {
        const int ranks = world.size();
        right = right && whole.front() == step && whole.back() == step * ranks &&
                sums.back() == step * ranks * (ranks + 1) / 2;
      });
    }
    compute.synchronize();
    gather.synchronize();
    reduce.synchronize();
    CHECK(right);
  });
}

TEST_CASE("a mismatch in a stream is thrown by synchronize, skips what is behind it, and the communicator is usable") {
  on_ranks({2}, [](World& world) {
    HostStream stream(worker);
    std::vector<int> data(8, 1), other(8, 1);
    // The counts differ.
    world.all_reduce(stream, std::span(data).first(world.rank() == 0 ? 4 : 8),
                     std::span(data).first(world.rank() == 0 ? 4 : 8), smp::sum);
    world.all_reduce(stream, other, other, smp::sum);  // skipped on both ranks
    CHECK_THROWS_WITH_AS(stream.synchronize(), doctest::Contains("the ranks disagree about the count"), CommError);
    CHECK(data == std::vector<int>(8, 1));
    CHECK(other == std::vector<int>(8, 1));
    world.all_reduce(stream, other, other, smp::sum);
    stream.synchronize();
    CHECK(other == std::vector<int>(8, 2));
  });
}

TEST_CASE("a wrong argument is refused when it is enqueued") {
  on_ranks({2}, [](World& world) {
    HostStream stream(worker);
    std::vector<int> in(4), out(3);
    CHECK_THROWS_AS(world.all_reduce(stream, in, out, smp::sum), CommError);
    stream.synchronize();
  });
}

TEST_CASE("an exception of user code ends communication that is enqueued on other ranks") {
  std::string text = "nothing";
  try {
    smp::comm::launch(3, [](World& world) {
      HostStream stream(worker);
      int data = 1;
      world.all_reduce(stream, std::span(&data, 1), std::span(&data, 1), smp::sum);
      stream.synchronize();
      if (world.rank() == 1) throw std::runtime_error("no such file: vocab.json");
      for (int i = 0; i < 100; ++i) world.all_reduce(stream, std::span(&data, 1), std::span(&data, 1), smp::sum);
      CHECK_THROWS_WITH_AS(stream.synchronize(), doctest::Contains("world rank 1 has thrown: no such file: vocab.json"),
                           CommError);
    });
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  CHECK(text == "no such file: vocab.json");
}

}  // namespace
