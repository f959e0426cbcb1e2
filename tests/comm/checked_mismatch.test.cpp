// SPDX-License-Identifier: Apache-2.0
// Checked: calls that do not match are named on every rank, and the communicator stays usable. The cases are generated:
// in each, one rank deviates from the program of the others.
#include <array>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <smp/comm/checked.hpp>

#include "comm/steps.hpp"
#include "support/ranks.hpp"

namespace {

using namespace smp::testing;
using smp::comm::Checked;
using smp::comm::CheckOptions;

constexpr std::array all_operations{Operation::barrier,    Operation::broadcast,      Operation::reduce,
                                    Operation::all_reduce, Operation::reduce_scatter, Operation::reduce_scatter_v,
                                    Operation::all_gather, Operation::all_gather_v,   Operation::all_to_all,
                                    Operation::send,       Operation::recv,           Operation::send_recv,
                                    Operation::exchange};
static_assert(all_operations.size() == smp::comm::operations);

/// Sites: the deviating rank calls from another line than the others, and all from a third one in the end.
constexpr int program_site = 0;
constexpr int deviating_site = 1;
constexpr int last_site = 2;

/// What each rank calls, and what every message about it must say. No text: the calls match.
struct Case {
  std::string name;
  std::vector<std::vector<Step>> programs;
  std::vector<std::string> says{};
};

/// Operation `o` as a rank calls it that has to do with `peer`, if it is one between two ranks.
Step with_peer(Operation o, int peer) {
  Step s;
  s.operation = o;
  if (o == Operation::send || o == Operation::send_recv) s.to = peer;
  if (o == Operation::recv || o == Operation::send_recv) s.from = peer;
  if (o == Operation::exchange) s.legs = {{peer, false}, {peer, true}};
  return s;
}

/// What the peer of a rank that calls `o` calls.
Operation other_side(Operation o) {
  if (o == Operation::send) return Operation::recv;
  return o == Operation::recv ? Operation::send : o;
}

class Generator {
 public:
  Generator(int world, int deviating) : world_(world), deviating_(deviating), peer_((deviating + 1) % world) {}

  std::vector<Case> cases() {
    for (const Operation o : all_operations) {
      other_operations(o);
      omission(o);
      repetition(o);
      if (is_point_to_point(o)) {
        other_messages(o);
      } else {
        other_fields(o);
      }
    }
    rings();
    return std::move(cases_);
  }

 private:
  static std::string text(Operation o) { return smp::comm::name(o); }
  static std::string field(const char* name) { return std::string("the ranks disagree about the ") + name + ": "; }
  [[nodiscard]] std::string deviator_calls(Operation o) const {
    return "rank " + std::to_string(deviating_) + " calls " + text(o);
  }

  /// All ranks call `o`: those that have nothing to do with a message nothing.
  [[nodiscard]] std::vector<std::vector<Step>> all_call(Operation o) const {
    std::vector<std::vector<Step>> programs(static_cast<std::size_t>(world_));
    for (int r = 0; r < world_; ++r) {
      if (!is_point_to_point(o)) programs[at(r)].push_back(with_peer(o, 0));
    }
    if (is_point_to_point(o)) {
      programs[at(deviating_)].push_back(with_peer(o, peer_));
      programs[at(peer_)].push_back(with_peer(other_side(o), deviating_));
    }
    return programs;
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  void add(std::string name, std::vector<std::vector<Step>> programs, std::vector<std::string> says) {
    cases_.push_back({name + ", world " + std::to_string(world_) + ", rank " + std::to_string(deviating_),
                      std::move(programs), std::move(says)});
  }

  /// The deviating rank calls each other operation.
  void other_operations(Operation o) {
    for (const Operation other : all_operations) {
      if (other == o) continue;
      std::vector<std::vector<Step>> programs = all_call(o);
      // Both towards each other: a send against a send, unless it is the send against a receive that fits.
      if (is_point_to_point(o)) programs[at(peer_)] = {with_peer(o, deviating_)};
      programs[at(deviating_)] = {with_peer(other, peer_)};
      programs[at(deviating_)][0].site = deviating_site;
      const bool fits = (is_point_to_point(o) && other_side(o) == other) ||
                        (o == Operation::send_recv && other == Operation::exchange) ||
                        (o == Operation::exchange && other == Operation::send_recv);
      if (fits) {
        add(text(o) + " fits " + text(other), programs, {});
      } else {
        // Ranks that have gone on to the last all_reduce may meet another one there.
        const bool early = is_point_to_point(o) && other == Operation::all_reduce && world_ > 2;
        add(text(o) + " against " + text(other), programs,
            {early ? "the ranks disagree about the " : field("operation")});
      }
    }
  }

  /// The deviating rank leaves `o` out, and goes on to the next, which is another.
  void omission(Operation o) {
    for (const Operation next : {Operation::all_gather, Operation::reduce, Operation::send_recv}) {
      if (next == o) continue;
      std::vector<std::vector<Step>> programs = all_call(o);
      programs[at(deviating_)].clear();
      const std::vector<std::vector<Step>> second = all_call(next);
      for (std::size_t r = 0; r < programs.size(); ++r) {
        programs[r].insert(programs[r].end(), second[r].begin(), second[r].end());
      }
      add(text(o) + " left out before " + text(next), programs, {field("operation")});
    }
  }

  /// The deviating rank calls `o` twice.
  void repetition(Operation o) {
    std::vector<std::vector<Step>> programs = all_call(o);
    programs[at(deviating_)].push_back(programs[at(deviating_)].back());
    add(text(o) + " repeated", programs,
        {field(o == Operation::all_reduce ? "count" : "operation"), deviator_calls(o)});
  }

  template <class Change>
  void deviate(Operation o, const char* what, const char* named, Change change) {
    std::vector<std::vector<Step>> programs = all_call(o);
    Step& s = programs[at(deviating_)].back();
    change(s);
    s.site = deviating_site;
    add(text(o) + " with another " + what, programs,
        {field(named), deviator_calls(s.operation), site_name(deviating_site)});
  }

  void other_fields(Operation o) {
    const bool v = o == Operation::reduce_scatter_v || o == Operation::all_gather_v;
    const bool reduces = o == Operation::reduce || o == Operation::all_reduce || o == Operation::reduce_scatter ||
                         o == Operation::reduce_scatter_v;
    deviate(o, "call site", "call site", [](Step&) {});  // which they all have
    if (o == Operation::barrier) return;
    deviate(o, "element type", "element type", [](Step& s) { s.type = Type::f32; });
    deviate(o, "element size", "element type", [](Step& s) { s.type = Type::i64; });
    deviate(o, "count", v ? "counts" : "count", [](Step& s) { ++s.count; });
    if (v) deviate(o, "distribution of counts", "counts", [&](Step& s) { s.longer = world_ - 1; });
    if (reduces) deviate(o, "reduction", "reduction", [](Step& s) { s.reduction = ReduceOp::maximum; });
    if (o == Operation::broadcast || o == Operation::reduce) {
      deviate(o, "root", "root", [&](Step& s) { s.root = (s.root + 1) % world_; });
    }
  }

  void other_messages(Operation o) {
    const bool sends = o != Operation::recv;
    const bool receives = o != Operation::send;
    if (sends) deviate(o, "size sent", "size of a message", [](Step& s) { ++s.count; });
    if (receives) deviate(o, "size expected", "size of a message", [](Step& s) { --s.recv_count; });
    deviate(o, "element size", "size of a message", [](Step& s) { s.type = Type::i64; });
    if (o != Operation::exchange) {  // which moves bytes
      deviate(o, "element type", "element type", [](Step& s) { s.type = Type::f32; });
    }
    if (o == Operation::send || o == Operation::recv) {
      deviate(o, "direction", "direction of a message",
              [&](Step& s) { s = with_peer(other_side(s.operation), peer_); });
    } else {
      deviate(o, "direction, twice the same", "direction of a message", [&](Step& s) {
        s = with_peer(Operation::exchange, peer_);
        s.legs[1].incoming = false;
      });
    }
    // The rank next to the right one: of two ranks the deviating one itself, else one that has gone on to the end.
    std::vector<std::vector<Step>> programs = all_call(o);
    programs[at(deviating_)] = {with_peer(o, (peer_ + 1) % world_)};
    const bool one_way = o == Operation::send || o == Operation::recv;
    add(text(o) + " with another peer", programs,
        {field(world_ == 2 && one_way ? "direction of a message" : "operation")});
  }

  /// Operations in which every rank sends to the next and receives from the one before.
  void rings() {
    for (const Operation o : {Operation::send_recv, Operation::exchange}) {
      std::vector<std::vector<Step>> ring(static_cast<std::size_t>(world_));
      const auto step = [&](int rank, int to, int from) {
        Step s = with_peer(o, to);
        if (o == Operation::exchange) {
          s.legs = {{to, false}, {from, true}};
        } else {
          s.from = from;
        }
        s.site = rank == deviating_ ? deviating_site : program_site;
        ring[at(rank)] = {s};
      };
      for (int r = 0; r < world_; ++r) step(r, (r + 1) % world_, (r + world_ - 1) % world_);
      const int d = deviating_;
      const std::vector<std::vector<Step>> right = ring;
      ++ring[at(d)][0].count;
      add("ring of " + text(o) + " with another size sent", ring, {field("size of a message"), deviator_calls(o)});
      ring = right;
      ++ring[at(d)][0].recv_count;
      add("ring of " + text(o) + " with another size expected", ring, {field("size of a message"), deviator_calls(o)});
      ring = right;
      ring[at(d)].clear();
      add("ring of " + text(o) + " left out", ring, {field("operation")});
      if (world_ == 2) continue;
      step(d, (d + world_ - 1) % world_, (d + 1) % world_);
      add("ring of " + text(o) + " in the other direction", ring, {field("direction of a message"), deviator_calls(o)});
      ring = right;
      step(d, (d + 2) % world_, (d + world_ - 1) % world_);
      add("ring of " + text(o) + " to another peer", ring,
          {field("operation"), deviator_calls(o), site_name(deviating_site)});
    }
  }

  int world_;
  int deviating_;
  int peer_;
  std::vector<Case> cases_;
};

/// What happened to one rank in one case.
struct Outcome {
  int thrown = 0;
  std::string text;
  std::chrono::duration<double> time{};
  bool right_data = true;
  bool right_sum = false;
};

/// Runs the program of this rank, and then, whatever happened, an all_reduce that all ranks call alike.
template <class C>
Outcome run(C& world, const std::vector<Step>& program) {
  Performer<C> perform(world);
  Step last;
  last.operation = Operation::all_reduce;
  last.count = 1;
  last.site = last_site;
  Outcome outcome;
  const auto begin = smp::Clock::now();
  const auto attempt = [&](auto action) {
    try {
      action();
      return true;
    } catch (const smp::CommError& e) {
      ++outcome.thrown;
      outcome.text = e.what();
      outcome.time = smp::Clock::now() - begin;
      return false;
    }
  };
  attempt([&] {
    for (const Step& s : program) outcome.right_data = perform(s) && outcome.right_data;
  });
  for (int i = 0; i < 3 && !outcome.right_sum; ++i) attempt([&] { outcome.right_sum = perform(last); });
  return outcome;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// What is wrong with the outcome of a case on one rank, or nothing.
std::string fault(const Outcome& o, const Case& c) {
  if (!o.right_sum) return "the communicator is not usable afterwards";
  if (!o.right_data) return "wrong data";
  if (o.thrown != (c.says.empty() ? 0 : 1)) return "thrown " + std::to_string(o.thrown) + " times";
  if (c.says.empty()) return {};
  if (o.time > std::chrono::seconds(2)) return "took " + std::to_string(o.time.count()) + " s";
  for (const std::string& part : c.says) {
    if (o.text.find(part) == std::string::npos) return "does not say: " + part;
  }
  const std::string both = o.text.substr(o.text.find("the ranks disagree about the "));
  if (occurrences(both, " calls ") != 2) return "does not name two ranks";
  if (occurrences(both, "steps.hpp:") != 2) return "does not name two call sites";
  return {};
}

TEST_CASE("every mismatch of calls is named on every rank within 2 s, and the communicator stays usable") {
  std::set<std::string> names;
  on_ranks({2, 3, 4}, [&](World& world) {
    Checked<World> checked(world, CheckOptions{.timeout = std::chrono::seconds(2)});
    for (int deviating = 0; deviating < world.size(); ++deviating) {
      for (const Case& c : Generator(world.size(), deviating).cases()) {
        if (world.rank() == 0) names.insert(c.name);
        const Outcome o = run(checked, c.programs[static_cast<std::size_t>(world.rank())]);
        const std::string wrong = fault(o, c);
        if (wrong.empty()) continue;
        INFO(c.name << ": " << wrong << "; rank " << world.rank() << " threw: " << o.text);
        CHECK(wrong.empty());
      }
    }
  });
  if (!names.empty()) {
    MESSAGE(names.size() << " distinct cases");
    CHECK(names.size() >= 400);
  }
}

}  // namespace
