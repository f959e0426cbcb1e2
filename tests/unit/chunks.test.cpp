// SPDX-License-Identifier: Apache-2.0
// Messages of 2^31 bytes and more, planned without buffers. MPI counts are ints; where totals were multiplied in int,
// counts turned negative and pieces landed in the wrong place.
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <sys/mman.h>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/chunks.hpp>
#include <smp/comm/counted.hpp>
#include <smp/comm/recording.hpp>

namespace {

using smp::comm::Call;
using smp::comm::Chunk;
using smp::comm::Chunks;
using smp::comm::Pieces;
using smp::comm::Recording;

constexpr std::size_t int_max = std::numeric_limits<std::int32_t>::max();

/// The chunks of `total` bytes tile it, and each has a count that MPI can state. Returns how many there are.
std::size_t check_tiling(std::size_t total, std::size_t limit = smp::comm::max_mpi_count) {
  const Chunks chunks(total, limit);
  std::size_t end = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Chunk c = chunks[i];
    if (c.offset != end || c.bytes > limit || c.bytes > int_max || (c.bytes == 0 && total != 0)) {
      FAIL("chunk ", i, " of ", total, " bytes begins at ", c.offset, " and has ", c.bytes);
    }
    end += c.bytes;
  }
  CHECK(end == total);
  return chunks.size();
}

/// A buffer of up to 32 GiB that nobody can look into: addresses without memory, others for every `T`.
template <class T>
std::span<T> imagined(std::size_t size) {
  static void* const addresses =
      ::mmap(nullptr, std::size_t{1} << 35, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(addresses != MAP_FAILED);
  return {static_cast<T*>(addresses), size};
}

/// The one call that `f` makes of rank `rank` of `ranks`.
template <class F>
Call planned(int rank, int ranks, F f) {
  Recording world(rank, ranks);
  smp::HostStream stream;
  f(world, stream);
  REQUIRE(world.log().size() == 1);
  return world.log().front().call;
}

TEST_CASE("chunks tile messages around every power of two") {
  CHECK(check_tiling(0) == 1);
  CHECK(check_tiling(1) == 1);
  CHECK(check_tiling(int_max) == 1);
  CHECK(check_tiling(int_max + 1) == 2);
  CHECK(check_tiling(2 * int_max) == 2);
  CHECK(check_tiling(2 * int_max + 1) == 3);
  CHECK(check_tiling(std::size_t{1} << 40) == 513);
  for (const std::size_t limit : {std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{4096}}) {
    for (std::size_t total = 0; total < 100; ++total) check_tiling(total * limit / 8 + total % 3, limit);
  }
  static_assert(Chunks(10, 4).size() == 3 && Chunks(10, 4)[2].offset == 8 && Chunks(10, 4)[2].bytes == 2);
}

TEST_CASE("an all_gather of 2048 ranks x 524288 int32 has offsets beyond 2^32 bytes") {
  const int ranks = 2048;
  const std::size_t own = 524288;
  const auto all = static_cast<std::size_t>(ranks) * own;
  const Call call = planned(2047, ranks, [&](auto& world, auto& stream) {
    world.all_gather(stream, imagined<const std::int32_t>(own), imagined<std::int32_t>(all));
  });
  const Pieces pieces(call);
  std::size_t end = 0;
  for (std::size_t r = 0; r < 2048; ++r) {
    CHECK(pieces.offset(r) == end);
    CHECK(pieces.size(r) == own);
    CHECK(check_tiling(pieces.size(r) * call.element_bytes) == 1);
    end += pieces.size(r);
  }
  CHECK(end * call.element_bytes == 4'294'967'296);
  CHECK(pieces.offset(2047) * call.element_bytes == 4'294'967'296 - 2'097'152);
  CHECK(smp::comm::bytes_sent(call, Recording(2047, ranks).group()) == std::uint64_t{2047} * 2'097'152);
}

TEST_CASE("a reduce_scatter whose counts sum to 2^31+5 has pieces that tile it") {
  const std::size_t total = (std::size_t{1} << 31) + 5;
  for (const std::size_t ranks : {std::size_t{2}, std::size_t{3}, std::size_t{8}}) {
    std::vector<std::size_t> counts(ranks, total / ranks);
    counts.back() += total % ranks;
    counts.front() += counts[1];  // one piece of its own beyond 2^31 bytes, one empty
    counts[1] = 0;
    const Call call = planned(0, static_cast<int>(ranks), [&](auto& world, auto& stream) {
      world.reduce_scatter_v(stream, imagined<const float>(total), imagined<float>(counts[0]), counts, smp::sum);
    });
    const Pieces pieces(call);
    std::size_t end = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      CHECK(pieces.offset(r) == end);
      check_tiling(pieces.size(r) * call.element_bytes);
      end += pieces.size(r);
    }
    CHECK(end == total);
    CHECK(smp::comm::bytes_sent(call, Recording(0, static_cast<int>(ranks)).group()) == 4 * (total - counts[0]));
  }
}

TEST_CASE("a broadcast of 2^31+5 elements is cut into counts of at most INT_MAX") {
  const std::size_t count = (std::size_t{1} << 31) + 5;
  const auto bytes_of = [&](auto element) {
    const Call call = planned(
        1, 2, [&](auto& world, auto& stream) { world.broadcast(stream, imagined<decltype(element)>(count), 0); });
    CHECK(call.count == count);
    return call.count * call.element_bytes;
  };
  CHECK(check_tiling(bytes_of(std::uint8_t{})) == 2);
  CHECK(check_tiling(bytes_of(float{})) == 5);
  CHECK(check_tiling(bytes_of(double{})) == 9);
}

TEST_CASE("the pieces of an all_reduce of 2^33+1 elements tile it and begin on cache lines") {
  const std::size_t count = (std::size_t{1} << 33) + 1;
  for (const std::size_t ranks : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{1000}}) {
    const Pieces pieces(count, ranks, 16);
    std::size_t end = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (pieces.offset(r) != end) FAIL("piece ", r, " begins at ", pieces.offset(r), ", not at ", end);
      if (end != count) CHECK(end % 16 == 0);
      end += pieces.size(r);
    }
    CHECK(end == count);
  }
}

TEST_CASE("an all_reduce of fewer elements than ranks leaves the last ranks without a piece") {
  const Pieces pieces(3, 8, 1);
  for (std::size_t r = 0; r < 8; ++r) CHECK(pieces.size(r) == (r < 3 ? 1u : 0u));
  const Pieces nothing(0, 8, 16);
  for (std::size_t r = 0; r < 8; ++r) CHECK((nothing.offset(r) == 0 && nothing.size(r) == 0));
}

}  // namespace
