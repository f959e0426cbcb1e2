// A rank that alone uses another unit, whose block has another size than that which the others gather.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/launch.hpp>
#include <smp/parallel/as_unit.hpp>
#include <smp/parallel/sharded.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/tiny_modules.hpp"

namespace {

using namespace smp::testing;
using smp::AsUnit, smp::comm::Threads;
using T = double;
using Values = smp::TensorOf<T>;
using Plain = Dense<T>;

/// Two heads, of 20 and of 16 parameters. Ranks use the first one, but from step `deviates` on the second one.
struct Heads {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved head;
    bool second = false;
  };
  AsUnit<Plain> large{Plain(4, 4)}, small{Plain(4, 4, false, false)};
  std::uint64_t deviates = 0;
  static constexpr auto fields() {
    return smp::fields(smp::field("large", &Heads::large), smp::field("small", &Heads::small));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    s.second = ctx.position.step >= deviates;
    return (s.second ? small : large).forward(ctx, x, s.head);
  }
  smp::GradOf<Input> backward(auto& ctx, const smp::GradOf<Output>& dy, Saved& s) {
    return (s.second ? small : large).backward(ctx, dy, s.head);
  }
};

constexpr auto npos = std::string::npos;
constexpr std::uint64_t steps = 4, never = steps;

/// Trains until something is thrown.
/// @param deviates the first step in which this rank uses the other head
void train(Threads& world, std::uint64_t deviates, bool checked) {
  smp::Worker worker(
      world, smp::DynamicTopology(smp::degrees_for(world.size(), {.rdp = smp::dynamic, .sdp = world.size()})), 3);
  auto ctx = worker.context();
  smp::Sharded<Heads, smp::dynamic> trainer(ctx, Heads{.deviates = deviates}, smp::optim::AdamW{},
                                            {.clip = 0, .persistence_threshold = 0, .checked = checked});
  Values x(worker.memory(), {2, 4});
  for (std::size_t i = 0; i < x.size(); ++i) x.data()[i] = 0.1 * static_cast<double>(i);
  for (std::uint64_t s = 0; s < steps; ++s) {
    smp::step(ctx, trainer, SquaredError<T>{}, x, x);
    trainer.step(ctx, 0.01);
  }
}

/// What each rank is told if one of them deviates from step `from` on.
std::vector<std::string> told(int ranks, int deviating, std::uint64_t from, bool checked) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  try {
    smp::comm::launch(ranks, [&](Threads& world) {
      try {
        train(world, world.rank() == deviating ? from : never, checked);
      } catch (const std::exception& e) {
        all[static_cast<std::size_t>(world.rank())] = e.what();
        throw;
      }
    });
  } catch (const smp::CommError&) {  // that of the first rank
  }
  return all;
}

}  // namespace

TEST_CASE("a rank that alone gathers a block of another size: each rank is told which one and what, at once") {
  for (const int ranks : {2, 4}) {
    for (int deviating = 0; deviating < ranks; ++deviating) {
      for (const std::uint64_t from : {0U, 1U, 3U}) {  // recorded, replayed for the first time, and later
        CAPTURE(ranks);
        CAPTURE(deviating);
        CAPTURE(from);
        const int other = deviating == 0 ? 1 : deviating;  // the first one that does not do what rank 0 does
        const auto call = [&](int rank) {
          const int bytes = (rank == deviating ? 16 : 20) * static_cast<int>(sizeof(T)) / ranks;
          return "rank " + std::to_string(rank) + " calls all_gather of " + std::to_string(bytes) + " bytes at ";
        };
        const auto begin = smp::Clock::now();
        for (const std::string& sentence : told(ranks, deviating, from, false)) {
          CAPTURE(sentence);
          CHECK(sentence.find("the ranks disagree about the count: " + call(0)) != npos);
          CHECK(sentence.find(call(other)) != npos);
        }
        const std::string name = "rank " + std::to_string(deviating);
        for (const std::string& sentence : told(ranks, deviating, from, true)) {
          CAPTURE(sentence);
          // Which of two ranks is named first depends on which one speaks.
          const bool first = sentence.find(name + " of the SHARD group gathers block 1 (small.weight, ...)") != npos;
          const bool second = sentence.find("while " + name + " gathers block 1 (small.weight, ...)") != npos;
          CHECK((first || second));
          CHECK(sentence.find(" gathers block 0 (large.weight, ...)") != npos);
          CHECK(sentence.find(": the ranks use units in different orders") != npos);
        }
        CHECK(smp::Clock::now() - begin < std::chrono::seconds(30));  // nobody has waited for the time-out of 60 s
      }
    }
  }
}
