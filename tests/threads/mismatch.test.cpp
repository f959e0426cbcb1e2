// SPDX-License-Identifier: Apache-2.0
// Thread ranks compare collective operations even without Checked: they see each other's calls.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/launch.hpp>

#include "comm/steps.hpp"

namespace {

using namespace smp::testing;
using smp::comm::launch;
using smp::comm::Threads;

constexpr int collectives = static_cast<int>(Operation::send);

bool reduces(Operation o) {
  return o == Operation::reduce || o == Operation::all_reduce || o == Operation::reduce_scatter ||
         o == Operation::reduce_scatter_v;
}

struct Deviation {
  std::string field;
  Step step;
};

/// All ways in which a rank may deviate from `right`, and the field that is named.
std::vector<Deviation> deviations_from(const Step& right, int world) {
  std::vector<Deviation> all;
  for (int o = 0; o < collectives; ++o) {
    Step s = right;
    s.operation = static_cast<Operation>(o);
    if (s.operation != right.operation) all.push_back({"operation", s});
  }
  if (right.operation == Operation::barrier) return all;
  const bool v = right.operation == Operation::reduce_scatter_v || right.operation == Operation::all_gather_v;
  const auto add = [&](const char* field, auto change) {
    Step s = right;
    change(s);
    all.push_back({field, s});
  };
  add("element type", [](Step& s) { s.type = Type::f32; });
  add("element type", [](Step& s) { s.type = Type::i64; });
  add(v ? "counts" : "count", [](Step& s) { ++s.count; });
  if (v) add("counts", [&](Step& s) { s.longer = world - 1; });
  if (reduces(right.operation)) add("reduction", [](Step& s) { s.reduction = ReduceOp::maximum; });
  if (right.operation == Operation::broadcast || right.operation == Operation::reduce) {
    add("root", [&](Step& s) { s.root = world - 1; });
  }
  return all;
}

/// What the exception says that `action` throws, or nothing.
template <class F>
std::string thrown_by(F action) {
  try {
    action();
  } catch (const smp::CommError& e) {
    return e.what();
  }
  return {};
}

/// Whether all ranks can still sum.
bool is_usable(Performer<Threads>& perform) {
  Step s;
  s.operation = Operation::all_reduce;
  bool right = false;
  return thrown_by([&] { right = perform(s); }).empty() && right;
}

TEST_CASE("collective operations that differ are named on every rank, and the communicator stays usable") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    launch(ranks, [&](Threads& world) {
      Performer<Threads> perform(world);
      int cases = 0;
      for (int o = 0; o < collectives; ++o) {
        Step right;
        right.operation = static_cast<Operation>(o);
        for (const Deviation& d : deviations_from(right, ranks)) {
          for (int deviating = 0; deviating < ranks; ++deviating) {
            const Step& mine = world.rank() == deviating ? d.step : right;
            const std::string text = thrown_by([&] { perform(mine); });
            const std::string field = "the ranks disagree about the " + d.field + ": rank 0 calls ";
            const std::string both = "rank " + std::to_string(deviating == 0 ? 1 : deviating) + " calls ";
            if (text.find(field) == std::string::npos || text.find(both) == std::string::npos || !is_usable(perform)) {
              CAPTURE(text);
              FAIL_CHECK(smp::comm::name(right.operation) << ", other " << d.field << ", rank " << deviating);
            }
            ++cases;
          }
        }
      }
      CHECK(cases >= 100 * ranks);
    });
  }
}

TEST_CASE("a split against another operation is named on every rank, and the communicator stays usable") {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    launch(ranks, [&](Threads& world) {
      Performer<Threads> perform(world);
      for (int o = 0; o < collectives; ++o) {
        for (int deviating = 0; deviating < ranks; ++deviating) {
          Step other;
          other.operation = static_cast<Operation>(o);
          const std::string text = thrown_by([&] {
            if (world.rank() == deviating) {
              (void)world.split(0, 0, "PART");
            } else {
              perform(other);
            }
          });
          CAPTURE(text);
          CHECK(text.find("the ranks disagree about the operation: rank 0 calls ") != std::string::npos);
          CHECK(text.find("rank " + std::to_string(deviating) + " calls split at mismatch.test.cpp:") !=
                std::string::npos);
          CHECK(is_usable(perform));
        }
      }
    });
  }
}

TEST_CASE("messages whose sizes differ are an error on both sides, and the communicator stays usable") {
  launch(3, [](Threads& world) {
    Performer<Threads> perform(world);
    const std::string said = "the ranks disagree about the size of a message: rank ";
    for (int sender = 0; sender < 3; ++sender) {
      const int receiver = (sender + 1) % 3;
      for (const std::size_t sent : {0u, 5u, 7u}) {
        Step s;
        s.operation = world.rank() == sender ? Operation::send : Operation::recv;
        s.to = receiver;
        s.from = sender;
        s.count = sent;
        const bool takes_part = world.rank() == sender || world.rank() == receiver;
        const std::string text = takes_part ? thrown_by([&] { perform(s); }) : said;
        CAPTURE(text);
        CHECK(text.find(said) != std::string::npos);
        if (takes_part) {
          CHECK(text.find(std::to_string(sender) + " sends " + std::to_string(4 * sent) + " bytes, rank " +
                          std::to_string(receiver) + " expects 24 bytes") != std::string::npos);
        }
        CHECK(is_usable(perform));
      }
    }
    // In a ring the other messages arrive.
    Step ring;
    ring.operation = Operation::send_recv;
    ring.to = (world.rank() + 1) % 3;
    ring.from = (world.rank() + 2) % 3;
    if (world.rank() == 0) ++ring.count;
    bool right = false;
    const std::string text = thrown_by([&] { right = perform(ring); });
    CHECK((text.find(said + "0 sends 28 bytes, rank 1 expects 24") != std::string::npos) == (world.rank() != 2));
    CHECK(right == (world.rank() == 2));
    CHECK(is_usable(perform));
  });
}

}  // namespace
