// SPDX-License-Identifier: Apache-2.0
// Arguments that one rank can see are wrong: refused before anything is sent, with what was found and what is right,
// and the communicator goes on.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::CommError;
using smp::comm::Transfer;

/// Every rank makes the same mistake, is told `sentence`, and can go on.
template <class Call>
void refused(World& world, const std::string& sentence, Call call) {
  smp::HostStream stream;
  std::string text;
  try {
    call(stream);
  } catch (const CommError& e) {
    text = e.what();
  }
  CAPTURE(sentence);
  CHECK(text.ends_with(sentence));
  CHECK(text.find(" at arguments.test.cpp:") != std::string::npos);
  CHECK(text.find("rank " + std::to_string(world.rank()) + ": ") != std::string::npos);
  int one = 1;
  world.all_reduce(stream, std::span(&one, 1), std::span(&one, 1), smp::sum);
  CHECK(one == world.size());
}

TEST_CASE("a wrong size is refused with the right one") {
  on_ranks({2}, [](World& world) {
    std::vector<float> four(4), three(3), two(2);
    const std::array<std::size_t, 2> counts{3, 3}, large{4, 3};
    const std::array<std::size_t, 1> one_count{3};
    refused(world, "the size of the output must be the input's 4, but it is 3",
            [&](auto& s) { world.all_reduce(s, four, three, smp::sum); });
    refused(world, "the size of the input must be the group's size times the output's 6, but it is 4",
            [&](auto& s) { world.reduce_scatter(s, four, three, smp::sum); });
    refused(world, "the size of the output must be the group's size times the input's 4, but it is 3",
            [&](auto& s) { world.all_gather(s, two, three); });
    refused(world, "the size of the input must be a multiple of the group's size: 2, but it is 3",
            [&](auto& s) { world.all_to_all(s, three, three); });
    refused(world, "the size of the output must be the input's 4, but it is 2",
            [&](auto& s) { world.all_to_all(s, four, two); });
    refused(world, "the size of the list of counts must be the group's: 2, but it is 1",
            [&](auto& s) { world.all_gather_v(s, three, three, one_count); });
    refused(world, "the size of the output must be the sum of the counts, 6, but it is 4",
            [&](auto& s) { world.all_gather_v(s, three, four, counts); });
    refused(
        world,
        "the size of the input must be counts[rank()], " + std::string(world.rank() == 0 ? "4" : "3") + ", but it is 2",
        [&](auto& s) { world.all_gather_v(s, two, four, large); });
    refused(world, "the size of the input must be the sum of the counts, 6, but it is 4",
            [&](auto& s) { world.reduce_scatter_v(s, four, three, counts, smp::sum); });
  });
}

TEST_CASE("only the root of a reduce is asked for its output") {
  on_ranks({1}, [](World& world) {
    std::vector<float> four(4), three(3);
    refused(world, "the size of the output must be the input's 4, but it is 3",
            [&](auto& s) { world.reduce(s, four, three, smp::sum, 0); });
  });
}

TEST_CASE("a rank that is not in the group is refused") {
  on_ranks({1, 2, 4}, [](World& world) {
    const std::string size = std::to_string(world.size());
    const auto sentence = [&](int r) {
      return "there is no rank " + std::to_string(r) + " in a group of size " + size;
    };
    std::vector<float> buffer(4), other(4);
    for (const int r : {-1, world.size()}) {
      refused(world, sentence(r), [&](auto& s) { world.broadcast(s, buffer, r); });
      refused(world, sentence(r), [&](auto& s) { world.reduce(s, buffer, buffer, smp::sum, r); });
      refused(world, sentence(r), [&](auto& s) { world.send(s, buffer, r); });
      refused(world, sentence(r), [&](auto& s) { world.recv(s, buffer, r); });
      refused(world, sentence(r), [&](auto& s) { world.send_recv(s, buffer, r, other, 0); });
      refused(world, sentence(r), [&](auto& s) { world.send_recv(s, buffer, 0, other, r); });
      const std::array transfers{Transfer::to(0, std::span<const float>(buffer)), Transfer::from(r, std::span(other))};
      refused(world, sentence(r), [&](auto& s) { world.exchange(s, transfers); });
    }
  });
}

TEST_CASE("buffers that overlap but are not in place are refused") {
  on_ranks({2}, [](World& world) {
    std::vector<int> memory(16);
    const std::span<int> all(memory);
    const auto self = static_cast<std::size_t>(world.rank());
    const auto other = 1 - self;
    const std::string place = "input and output overlap; pass the place where the result belongs, or another buffer";
    refused(world, place, [&](auto& s) { world.all_reduce(s, all.subspan(0, 8), all.subspan(1, 8), smp::sum); });
    refused(world, place,
            [&](auto& s) { world.reduce_scatter(s, all.subspan(0, 8), all.subspan(4 * other, 4), smp::sum); });
    refused(world, place, [&](auto& s) { world.all_gather(s, all.subspan(4 * other, 4), all.subspan(0, 8)); });
    refused(world, place, [&](auto& s) { world.all_to_all(s, all.subspan(0, 8), all.subspan(7, 8)); });
    const std::array<std::size_t, 2> counts{3, 5};
    refused(world, place,
            [&](auto& s) { world.all_gather_v(s, all.subspan(1, counts[self]), all.subspan(0, 8), counts); });
    refused(world, "input and output overlap; pass two buffers", [&](auto& s) {
      world.send_recv(s, all.subspan(0, 8), static_cast<int>(other), all.subspan(0, 8), static_cast<int>(other));
    });
    // Side by side is no overlap.
    smp::HostStream stream;
    world.all_reduce(stream, all.subspan(0, 8), all.subspan(8, 8), smp::sum);
  });
}

TEST_CASE("a wrong size names rank, group, operation, place, expected and found") {
  on_ranks({4}, [](World& world) {
    World pair = world.split(world.rank() / 2, 0, "PAIR");
    smp::HostStream stream;
    std::vector<smp::BFloat16> in(4), out(3);
    std::string text;
    try {
      pair.all_reduce(stream, in, out, smp::maximum);
    } catch (const CommError& e) {
      text = e.what();
    }
    const auto digits = text.find("test.cpp:") + 9;
    const std::string line = text.substr(digits, text.find(' ', digits) - digits);
    CHECK(text == "smp: all_reduce of 4 bf16 (maximum) at arguments.test.cpp:" + line + " on PAIR group (world ranks " +
                      (world.rank() < 2 ? "0,1" : "2,3") + "), rank " + std::to_string(world.rank() % 2) +
                      ": the size of the output must be the input's 4, but it is 3");
  });
}

}  // namespace
