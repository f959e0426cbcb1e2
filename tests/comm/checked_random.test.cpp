// SPDX-License-Identifier: Apache-2.0
// Checked: random programs in which, mostly, one rank deviates at a random place. Every rank throws exactly once for
// each deviation, none without one, and no message of a round that failed turns up in a later one.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>

#include "comm/steps.hpp"
#include "support/full.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

namespace {

using namespace smp::testing;
using smp::comm::Checked;
using smp::comm::CheckOptions;

/// The same numbers on every rank and with every compiler.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  /// 0 to n-1
  int operator()(int n) { return static_cast<int>(mixed(seed_, i_++) % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t seed_;
  std::uint64_t i_ = 0;
};

using Programs = std::vector<std::vector<Step>>;

constexpr Operation first_message = Operation::send;
constexpr int collectives = static_cast<int>(first_message);

/// One round: what each rank calls, and whether one of them deviates.
class Round {
 public:
  Round(std::uint64_t seed, int world) : dice_(seed), world_(world), programs(static_cast<std::size_t>(world)) {
    const int events = 1 + dice_(6);
    for (int i = 0; i < events; ++i) add_event();
    if (dice_(3) > 0) deviate();
    for (std::vector<Step>& program : programs) {
      for (Step& s : program) s.value = static_cast<int>(seed % 10000);
    }
  }

 private:
  Dice dice_;
  int world_;

 public:
  Programs programs;
  bool deviates = false;
  std::string deviation;

 private:
  std::vector<Step>& program(int rank) { return programs[static_cast<std::size_t>(rank)]; }

  static Step message(Operation o, int to, int from) {
    Step s;
    s.operation = o;
    if (o == Operation::exchange) {
      s.legs = {{to, false}, {from, true}};
    } else {
      s.to = o == Operation::recv ? -1 : to;
      s.from = o == Operation::send ? -1 : from;
    }
    return s;
  }

  Step collective() {
    Step s;
    s.operation = static_cast<Operation>(dice_(collectives));
    s.type = static_cast<Type>(dice_(3));
    s.reduction = dice_(2) == 0 ? ReduceOp::sum : ReduceOp::maximum;
    s.count = static_cast<std::size_t>(dice_(8));
    s.root = dice_(world_);
    return s;
  }

  void add_event() {
    switch (dice_(4)) {
      case 0: {
        const Step s = collective();
        for (std::vector<Step>& p : programs) p.push_back(s);
        return;
      }
      case 1:
        return add_ring();
      case 2: {
        for (int r = 0; r < world_; ++r) {
          Step s = message(Operation::exchange, r, r);
          s.legs.clear();
          for (int i = 1; i < world_; ++i) {
            s.legs.push_back({(r + i) % world_, i % 2 == 0});
            s.legs.push_back({(r + i) % world_, i % 2 != 0});
          }
          program(r).push_back(s);
        }
        return;
      }
      default:
        return add_pair();
    }
  }

  /// Every rank sends to the next; all but one may take their messages one after the other.
  void add_ring() {
    const int together = dice_(world_);
    for (int r = 0; r < world_; ++r) {
      const int next = (r + 1) % world_;
      const int before = (r + world_ - 1) % world_;
      if (r != together && dice_(3) == 0) {
        program(r).push_back(message(Operation::recv, next, before));
        program(r).push_back(message(Operation::send, next, before));
      } else {
        program(r).push_back(message(dice_(2) == 0 ? Operation::send_recv : Operation::exchange, next, before));
      }
    }
  }

  /// Two ranks between themselves, in forms that fit.
  void add_pair() {
    const int a = dice_(world_);
    const int b = (a + 1 + dice_(world_ - 1)) % world_;
    const Step out = message(Operation::send, b, b);
    const Step in = message(Operation::recv, b, b);
    const Step send = message(Operation::send, a, a);
    const Step recv = message(Operation::recv, a, a);
    std::vector<Step> at_a;
    std::vector<Step> at_b{recv, send};
    switch (dice_(6)) {
      case 0:
        at_a = {out};
        at_b = {recv};
        break;
      case 1:
        at_a = {out, in};
        break;
      case 2:
        at_a = {message(Operation::send_recv, b, b)};
        break;
      case 3:
        at_a = {message(Operation::exchange, b, b)};
        at_b = {message(Operation::send_recv, a, a)};
        break;
      case 4:
        at_a = {message(Operation::send_recv, b, b)};
        at_b = {send, recv};
        break;
      default:
        at_a = {message(Operation::exchange, b, b)};
        at_a[0].legs.push_back({b, false});
        at_b = {recv, send, recv};
        break;
    }
    program(a).insert(program(a).end(), at_a.begin(), at_a.end());
    program(b).insert(program(b).end(), at_b.begin(), at_b.end());
  }

  /// Changes one step of one rank in a way that the others cannot match.
  void deviate() {
    const int rank = dice_(world_);
    std::vector<Step>& p = program(rank);
    deviates = true;
    deviation = "rank " + std::to_string(rank) + " ";
    const int peer = (rank + 1 + dice_(world_ - 1)) % world_;
    if (p.empty() || dice_(4) == 0) {
      Step extra = dice_(2) == 0 ? collective() : message(static_cast<Operation>(collectives + dice_(4)), peer, peer);
      const int place = dice_(static_cast<int>(p.size()) + 1);
      p.insert(p.begin() + place, extra);
      deviation +=
          std::string("calls ") + smp::comm::name(extra.operation) + " more, as number " + std::to_string(place);
      return;
    }
    const int place = dice_(static_cast<int>(p.size()));
    Step& s = p[static_cast<std::size_t>(place)];
    const std::string what = std::string(smp::comm::name(s.operation)) + ", number " + std::to_string(place);
    if (dice_(2) == 0) {
      p.erase(p.begin() + place);
      deviation += "leaves out " + what;
    } else if (!is_point_to_point(s.operation)) {
      deviation += "changes " + what;
      switch (s.operation == Operation::barrier ? 0 : dice_(3)) {
        case 0:
          s.site = 1;
          break;
        case 1:
          ++s.count;
          break;
        default:
          s.type = s.type == Type::i64 ? Type::f32 : Type::i64;
          break;
      }
    } else {
      deviation += "has another size in " + what;
      ++s.count;
      ++s.recv_count;
    }
  }
};

/// What a rank experienced in a round.
struct Outcome {
  int thrown = 0;
  bool right = true;
  std::string text;
};

template <class C>
Outcome run(Performer<C>& perform, const std::vector<Step>& program, Dice& pauses) {
  Outcome outcome;
  const auto attempt = [&](const Step& s) {
    if (pauses(6) == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses(150)));
    try {
      outcome.right = perform(s) && outcome.right;
      return true;
    } catch (const smp::CommError& e) {
      ++outcome.thrown;
      outcome.text += std::string(outcome.text.empty() ? "" : "; then ") + e.what();
      return false;
    }
  };
  for (const Step& s : program) {
    if (!attempt(s)) break;
  }
  Step last;
  last.operation = Operation::all_reduce;
  last.count = 1;
  last.site = 2;
  for (int i = 0; i < 3 && !attempt(last); ++i) {
  }
  return outcome;
}

int rounds_wanted() {
#if SMP_TEST_MPI
  return full() ? 5000 : 500;
#else
  return full() ? 30000 : sanitized ? 1000 : 3000;
#endif
}

#if SMP_TEST_MPI
constexpr std::chrono::milliseconds timeout{1500};
#else
constexpr std::chrono::milliseconds timeout{sanitized ? 1500 : 700};
#endif

TEST_CASE("random programs with random deviations: one exception a rank and deviation, and everything matches again") {
  on_ranks({2, 3, 4}, [](World& world) {
    // Short, because about one deviation in a hundred makes ranks wait in a circle, where only the time can tell.
    Checked<World> checked(world, CheckOptions{.timeout = timeout});
    Performer<Checked<World>> perform(checked);
    Dice pauses(static_cast<std::uint64_t>(1000 + world.rank()));
    int deviations = 0;
    int timeouts = 0;
    for (int i = 0; i < rounds_wanted(); ++i) {
      const std::uint64_t seed = static_cast<std::uint64_t>(world.size() * 1000000 + i);
      const Round round(seed, world.size());
      const Outcome o = run(perform, round.programs[static_cast<std::size_t>(world.rank())], pauses);
      deviations += round.deviates ? 1 : 0;
      timeouts += o.text.find(" not come to ") != std::string::npos ? 1 : 0;
      if (o.right && o.thrown == (round.deviates ? 1 : 0)) continue;
      INFO("seed " << seed << ": " << round.deviation << "; rank " << world.rank() << ", thrown " << o.thrown
                   << " times: " << o.text);
      CHECK(o.right);
      CHECK(o.thrown == (round.deviates ? 1 : 0));
      break;
    }
    CHECK(deviations > rounds_wanted() / 2);
    if (world.rank() == 0) {
      MESSAGE("world " << world.size() << ": " << deviations << " deviations, " << timeouts
                       << " named by the time-out");
    }
  });
}

}  // namespace
