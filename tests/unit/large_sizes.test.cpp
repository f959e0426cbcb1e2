// Case 33: sizes of 2^31 elements and more, in buckets, shards and plans: everything is counted in 64 bits, ranges tile
// exactly. Nothing of that size is allocated.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <smp/optim/range.hpp>
#include <smp/parallel/gradient_buckets.hpp>
#include <smp/plan/gather_plan.hpp>
#include <smp/plan/sharded_plan.hpp>

namespace {

constexpr std::size_t two31 = std::size_t{1} << 31;
const std::vector<std::size_t> sizes{two31, two31 + 1, 2 * two31 + 1, 1024};

static_assert(std::is_same_v<decltype(smp::optim::Range<float>::size), std::int64_t>);

}  // namespace

TEST_CASE("case 33: buckets of large parameters tile the range, none is split") {
  for (const std::size_t limit : {std::size_t{1024}, two31 + 1025, 4 * two31}) {
    CAPTURE(limit);
    std::size_t last = sizes.size(), total = 0;
    for (const smp::ParameterRange& bucket : smp::plan_buckets(sizes, limit)) {
      CHECK(bucket.last == last);
      std::size_t filled = 0;
      for (std::size_t i = bucket.first; i < bucket.last; ++i) filled += sizes[i];
      CHECK((filled <= limit || bucket.last - bucket.first == 1));
      total += filled;
      last = bucket.first;
    }
    CHECK(last == 0);
    CHECK(total == 4 * two31 + 2 + 1024);
  }
}

TEST_CASE("case 33: a plan of large gathers has exact offsets") {
  const std::vector<std::vector<int>> units{{0}, {1}, {2}, {3}};
  const std::vector<smp::GatherUse> order{{0, 1}, {1, 2}, {2, 3}, {3, 4}};
  const auto all = smp::make_gather_plan(order, units, sizes, std::numeric_limits<std::size_t>::max() / 4);
  CHECK(all.arena == 4 * two31 + 2 + 1024);
  std::size_t end = 0;
  for (const smp::GatherOp& op : all.gathered) {
    CHECK(op.offset == end);
    end += sizes[static_cast<std::size_t>(op.block)];
  }
  const auto one = smp::make_gather_plan(order, units, sizes, 0);
  CHECK(one.arena == 2 * two31 + 1);
  CHECK(one.gathers() == 4);
}

TEST_CASE("case 33: shards of large parameters") {
  smp::GroupPlaces places = smp::GroupPlaces::of(smp::Topology<smp::Degrees{.rdp = 8, .sdp = 8}>(), 7);
  const std::vector<smp::ParameterSizes> one{{.unit = 1, .elements = 2 * two31 + 1, .element_bytes = 4}};
  const std::vector<int> parents{-1, 0};
  const auto plan = smp::plan_sharded(smp::make_model_sizes(one, parents, {}), places, {.plain = true});
  CHECK(plan.shard_elements == (2 * two31 + 1 + 7) / 8);
  CHECK(plan.rank.parameter == 4 * plan.shard_elements);
  CHECK(plan.gathers.arena == 8 * plan.rank.parameter);
  CHECK(plan.rank.sent(smp::Group::shard, smp::Collective::reduce_scatter).bytes == 7 * plan.rank.parameter);
}
