// SPDX-License-Identifier: Apache-2.0
// The proof: every shipped schedule is free of deadlock and of mismatched messages, and the checker names what is not.
#include <random>
#include <string>
#include <support/full.hpp>
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/check.hpp>
#include <smp/pipeline/schedules.hpp>

using namespace smp;

namespace {

// What a user gets: proved by the compiler, for a realistic size, within its default limits.
static_assert(VerifiedSchedule<Schedule::Looped<4>, 8, 32>::facts.max_in_flight[0] == 3 * 8 + 14 + 1);
static_assert(VerifiedSchedule<Schedule::ZeroBubbleV, 4, 8>::facts.max_in_flight[3] == 8);
static_assert(VerifiedSchedule<Schedule::ZeroBubbleV, 4, 8>::facts.activation_slots[2 * 0 + 0] == 8);
static_assert(VerifiedSchedule<Schedule::Interleaved, 4, 8>::facts.receive_slots[0] == 1);

// And a grid of small shapes of every schedule.
template <class S>
constexpr bool proved_up_to(int most_ranks, int most_microbatches) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (int m = 1; m <= most_microbatches; ++m)
      if (microbatch_rule(S{}, {ranks, m}).allows(m) && check_schedule(make_pipeline_plan(S{}, {ranks, m})).defect)
        return false;
  return true;
}
static_assert(proved_up_to<Schedule::Simple>(4, 8) && proved_up_to<Schedule::Interleaved>(4, 8));
static_assert(proved_up_to<Schedule::ZeroBubble>(4, 8));
static_assert(proved_up_to<Schedule::ZeroBubbleV>(3, 8) && proved_up_to<Schedule::DualPipeV>(3, 8));
static_assert(proved_up_to<Schedule::Looped<3>>(4, 8));
static_assert(proved_up_to<Schedule::Looped<2, LoopOrder::breadth_first>>(3, 6));
static_assert(proved_up_to<Schedule::ForwardOnly<Schedule::ZeroBubbleV>>(4, 8));

// A rank that runs its last backward before a forward that it depends on: refused by the same constant expression.
struct Backwards {
  static constexpr void order(const PipelineShape& shape, int, RankOrder& next) {
    for (int m = 0; m < shape.microbatches; ++m) next.backward();
    for (int m = 0; m < shape.microbatches; ++m) next.forward();
  }
};

// Any map of stages to ranks: rank 0 holds the first and the last of three stages, so rank 1 talks to it both ways.
struct FirstAndLast {
  static constexpr int chunks = 2;
  static constexpr int stages(const PipelineShape&) { return 3; }
  static constexpr int stage_rank(const PipelineShape&, int stage) { return stage % 2; }
  static constexpr void order(const PipelineShape& shape, int rank, RankOrder& next) {
    for (int m = 0; m < shape.microbatches; ++m)
      rank == 0 ? next.forward(0).forward(1).backward(1).backward(0) : next.forward(0).backward(0);
  }
};
static_assert(VerifiedSchedule<FirstAndLast, 2, 4>::facts.max_in_flight[0] == 2);
static_assert(check_schedule(make_pipeline_plan(Backwards{}, {2, 2})).defect.kind == DefectKind::wrong_order);

/// Calls `f(schedule)` for every shipped schedule with `chunks` chunks a rank.
template <class F>
void for_each_schedule(int chunks, F f) {
  const auto if_it_has = [&](const char* name) {
    auto schedule = RuntimeSchedule::named(name);
    if (schedule.chunks == chunks) f(schedule);
  };
  for (const char* const name : {"simple", "interleaved", "zero_bubble", "zero_bubble_v", "dual_pipe_v"})
    if_it_has(name);
  for (const char* const name : {"looped", "looped_breadth", "forward_only"}) f(RuntimeSchedule::named(name, chunks));
}

struct Count {
  long legal = 0, refused = 0, defects = 0;
};

/// Checks `schedule` in all shapes up to the given size on all transports.
void sweep(const RuntimeSchedule& schedule, int most_ranks, int most_microbatches, Count& count) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (int m = 1; m <= most_microbatches; ++m) {
      const PipelineShape shape{ranks, m, 0, schedule.chunks};
      if (!schedule.microbatches(shape).allows(m)) {
        ++count.refused;
        continue;
      }
      const PipelinePlan plan = make_pipeline_plan(schedule, shape);
      const CheckedPlan checked = check_schedule(plan);
      ScheduleDefect defect = checked.defect;
      for (const int slots : {1, 2, 1 << 28})
        if (!defect) defect = find_deadlock(plan, checked.dependencies, checked.exchange, Transport::slots(slots));
      ++count.legal;
      if (!defect) continue;
      ++count.defects;
      MESSAGE(schedule.name << " " << ranks << " x " << m << ": " << to_string(defect));
    }
}

CheckedPlan naive(const PipelinePlan& plan) { return check_schedule(plan, ReceivePosting::at_use); }
bool deadlocks(const PipelinePlan& plan, const CheckedPlan& checked, Transport transport, Grouping grouping) {
  return find_deadlock(plan, checked.dependencies, checked.exchange, transport, grouping).kind ==
         DefectKind::cyclic_wait;
}

}  // namespace

TEST_CASE("every schedule is proved in every shape, on every transport") {
  const int ranks = testing::full() ? 64 : 16, microbatches = testing::full() ? 256 : 64;
  Count count;
  for (int chunks = 1; chunks <= 4; ++chunks)
    for_each_schedule(chunks, [&](const RuntimeSchedule& schedule) { sweep(schedule, ranks, microbatches, count); });
  CHECK(count.defects == 0);
  CHECK(count.legal + count.refused == (3 + 2 + 4 * 3) * ranks * microbatches);
  if (!testing::full()) CHECK(count.legal == 11 * 1024 + 4 * 211 + 784 + 768);
}

TEST_CASE("control: plain blocking 1F1B deadlocks in 945 of 960 shapes, fused in none") {
  int shapes = 0, blocking = 0, fused = 0, buffered = 0;
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (int m = 1; m <= 64; ++m, ++shapes) {
      const PipelinePlan plan = make_pipeline_plan(Schedule::Interleaved{}, {ranks, m});
      const CheckedPlan checked = naive(plan);
      blocking += deadlocks(plan, checked, Transport::rendezvous(), Grouping::blocking);
      fused += deadlocks(plan, checked, Transport::rendezvous(), Grouping::fused);
      buffered += deadlocks(plan, checked, Transport::unbounded(), Grouping::blocking);
    }
  CHECK(shapes == 960);
  CHECK(blocking == 945);
  CHECK(fused == 0);
  CHECK(buffered == 0);
}

TEST_CASE("control: plain looped deadlocks in 441 of 441 shapes, in 93 with one slot") {
  int shapes = 0, blocking = 0, one_slot = 0, buffered = 0;
  for (int chunks = 2; chunks <= 4; ++chunks)
    for (int ranks = 2; ranks <= 16; ++ranks)
      for (int m = ranks; m <= 64; m += ranks, ++shapes) {
        const PipelinePlan plan = make_pipeline_plan(RuntimeSchedule::named("looped", chunks), {ranks, m});
        const CheckedPlan checked = naive(plan);
        blocking += deadlocks(plan, checked, Transport::rendezvous(), Grouping::blocking);
        one_slot += deadlocks(plan, checked, Transport::slots(1), Grouping::blocking);
        buffered += deadlocks(plan, checked, Transport::unbounded(), Grouping::blocking);
      }
  CHECK(shapes == 441);
  CHECK(blocking == 441);
  CHECK(one_slot == 93);
  CHECK(buffered == 0);
}

TEST_CASE("control: of the naive orders under rendezvous only GPipe lives") {
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    for (const char* const name :
         {"simple", "interleaved", "looped", "looped_breadth", "zero_bubble", "zero_bubble_v", "dual_pipe_v"}) {
      CAPTURE(name);
      const PipelinePlan plan = make_pipeline_plan(RuntimeSchedule::named(name), {ranks, 2 * ranks});
      const CheckedPlan checked = naive(plan);
      CHECK(deadlocks(plan, checked, Transport::rendezvous(), Grouping::blocking) == (std::string(name) != "simple"));
      CHECK_FALSE(deadlocks(plan, checked, Transport::unbounded(), Grouping::blocking));
    }
  }
}

TEST_CASE("control: receives posted at their use take wrong messages from a channel without tags") {
  const auto count = [](auto schedule, int ranks) {
    const PipelinePlan plan = make_pipeline_plan(schedule, {ranks, 2 * ranks});
    const CheckedPlan at_use = naive(plan), shipped = check_schedule(plan);
    CHECK(find_mismatches(plan, shipped.dependencies, shipped.exchange).count == 0);
    const Mismatches found = find_mismatches(plan, at_use.dependencies, at_use.exchange);
    CHECK((found.first.kind == DefectKind::mismatched_receive) == (found.count > 0));
    return found.count;
  };
  const auto counts = [&](auto schedule) {
    return std::vector{count(schedule, 2), count(schedule, 4), count(schedule, 8)};
  };
  CHECK(counts(Schedule::ZeroBubbleV{}) == std::vector{1, 6, 28});
  CHECK(counts(Schedule::DualPipeV{}) == std::vector{0, 3, 21});
  CHECK(counts(Schedule::Looped<2>{}) == std::vector{0, 0, 0});
  CHECK(counts(Schedule::Interleaved{}) == std::vector{0, 0, 0});
}

// Field case 49: both neighbours send first, chunks wait for each other, or with two ranks next == previous and
// messages cannot be told apart.
TEST_CASE("two chunks on 2 and 4 ranks, 4 micro-batches: rendezvous and channels without tags") {
  for (const int ranks : {2, 4}) {
    const PipelinePlan plan = make_pipeline_plan(Schedule::Looped<2>{}, {ranks, 4});
    const CheckedPlan checked = check_schedule(plan);
    CHECK_FALSE(checked.defect);
    CHECK(find_mismatches(plan, checked.dependencies, checked.exchange).count == 0);
    CHECK(deadlocks(plan, naive(plan), Transport::rendezvous(), Grouping::blocking));
  }
}

namespace {

/// Another way to run the exchanges, as an oracle: messages with names in queues, ranks in a random order, every call
/// looked at again in every round.
class MovedMessages {
 public:
  MovedMessages(const PipelinePlan& plan, const CheckedPlan& checked, int capacity)
      : plan_(plan), d_(checked.dependencies), exchange_(checked.exchange), capacity_(capacity) {}

  bool mismatched = false;

  /// Runs until all ranks are done, or nothing has happened for a long time.
  bool finishes(std::mt19937& random) {
    const int ranks = plan_.ranks();
    for (int idle = 0; idle < 400; ++idle) {
      const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
      while (step(rank)) idle = 0;
    }
    for (int rank = 0; rank < ranks; ++rank)
      if (at_[rank] < plan_.first[rank + 1] || open_calls(rank)) return false;
    return true;
  }

 private:
  struct Message {
    int action = 0;
    bool taken = false;
  };
  struct Call {
    bool sends = false, done = false;
    int channel = 0;
    int message = 0;  // sends: its number on the channel; receives: the action that should have sent it
  };

  void post(int rank) {
    const int ranks = plan_.ranks();
    for (int i = before_[rank]; i < at_[rank]; ++i) {
      if (d_.receiver[i] < 0) continue;
      const int channel = rank * ranks + d_.receiver[i];
      calls_[rank].append({true, false, channel, channels_[channel].size()});
      channels_[channel].append({i});
    }
    if (at_[rank] < plan_.first[rank + 1])
      for (int k = exchange_.first[at_[rank]]; k < exchange_.first[at_[rank] + 1]; ++k) {
        const int use = exchange_.receives[k];
        calls_[rank].append({false, false, d_.sender[use] * ranks + rank, d_.needs[use]});
      }
    posted_[rank] = true;
  }
  bool complete(Call& call) {
    int waiting = 0;  // messages that were sent earlier and are still in the channel
    for (int k = 0; k < channels_[call.channel].size(); ++k) {
      Message& message = channels_[call.channel][k];
      if (call.sends && k == call.message) return message.taken || waiting < capacity_;
      if (message.taken) continue;
      ++waiting;
      if (call.sends) continue;
      mismatched = mismatched || message.action != call.message;
      return message.taken = true;
    }
    return false;
  }
  bool open_calls(int rank) const {
    for (const Call& call : calls_[rank])
      if (!call.done) return true;
    return !posted_[rank];
  }
  bool step(int rank) {
    bool moved = false;
    if (!posted_[rank]) {
      post(rank);
      moved = true;
    }
    for (Call& call : calls_[rank])
      if (!call.done && complete(call)) call.done = moved = true;
    if (open_calls(rank) || at_[rank] == plan_.first[rank + 1]) return moved;
    before_[rank] = at_[rank];
    at_[rank] = plan_.unit_end(at_[rank]);
    calls_[rank] = {};
    posted_[rank] = false;
    return true;
  }

  const PipelinePlan& plan_;
  const ActionDependencies& d_;
  const PipelineExchange& exchange_;
  int capacity_;
  Table<Table<Message>> channels_ = Table<Table<Message>>(plan_.ranks() * plan_.ranks());
  Table<Table<Call>> calls_ = Table<Table<Call>>(plan_.ranks());
  Table<int> at_ = plan_.first, before_ = plan_.first;
  Table<bool> posted_ = Table<bool>(plan_.ranks());
};

}  // namespace

TEST_CASE("the verdicts are those of a transport that moves messages, whatever the order of the ranks") {
  std::mt19937 random(7);
  int deadlocked = 0, wrong = 0;
  for (int chunks = 1; chunks <= 2; ++chunks)
    for_each_schedule(chunks, [&](const RuntimeSchedule& schedule) {
      for (const int ranks : {2, 3, 4}) {
        const int m = schedule.name == "looped" ? ranks : 2 * ranks;
        const PipelinePlan plan = make_pipeline_plan(schedule, {ranks, m});
        CAPTURE(schedule.name);
        CAPTURE(ranks);
        for (const auto posting : {ReceivePosting::with_send, ReceivePosting::at_use}) {
          const CheckedPlan checked = check_schedule(plan, posting);
          const bool matched = find_mismatches(plan, checked.dependencies, checked.exchange).count == 0;
          for (const int capacity : {0, 1, 2, 1000}) {
            MovedMessages messages(plan, checked, capacity);
            const bool finishes = messages.finishes(random);
            deadlocked += !finishes;
            wrong += messages.mismatched;
            CHECK(finishes != deadlocks(plan, checked, Transport::slots(capacity), Grouping::fused));
            if (finishes) CHECK(messages.mismatched != matched);
            if (posting == ReceivePosting::with_send) CHECK((finishes && !messages.mismatched));
          }
        }
      }
    });
  CHECK(deadlocked > 10);
  CHECK(wrong > 5);
}

namespace {

int find(const PipelinePlan& plan, int rank, const std::string& cell) {
  for (int i = plan.first[rank]; i < plan.first[rank + 1]; ++i)
    if (plan.cell(i) == cell) return i;
  return -1;
}

}  // namespace

TEST_CASE("planted in every shipped schedule: a swapped pair, a missing receive, a slot too few") {
  const int ranks = 4, m = 8;
  for (const auto& [name, chunks] : std::vector<std::pair<const char*, int>>{{"simple", 1},
                                                                             {"interleaved", 1},
                                                                             {"looped", 2},
                                                                             {"looped", 4},
                                                                             {"looped_breadth", 3},
                                                                             {"zero_bubble", 1},
                                                                             {"zero_bubble_v", 2},
                                                                             {"dual_pipe_v", 2},
                                                                             {"forward_only", 1}}) {
    CAPTURE(name);
    const PipelinePlan plan = make_pipeline_plan(RuntimeSchedule::named(name, chunks), {ranks, m});
    const CheckedPlan good = check_schedule(plan);
    REQUIRE_FALSE(good.defect);
    const bool trains = std::string(name) != "forward_only";

    // The forward and the backward of the last stage's micro-batch 2 change places.
    const int last_rank = plan.stage_rank[plan.stages() - 1];
    const std::string suffix = chunks > 1 ? "2." + std::to_string(plan.stage_chunk[plan.stages() - 1]) : "2";
    PipelinePlan swapped = plan;
    const int f = find(plan, last_rank, "F" + suffix);
    const int b = std::max(find(plan, last_rank, "B" + suffix), find(plan, last_rank, "I" + suffix));
    if (trains) {
      std::swap(swapped.actions[f].kind, swapped.actions[b].kind);
      const ScheduleDefect defect = check_schedule(swapped).defect;
      CHECK(defect.kind == DefectKind::wrong_order);
      CHECK(defect.rank == last_rank);
      CHECK(defect.position == plan.position(f));
      CHECK(to_string(defect.action, chunks > 1) == plan.cell(b));
    } else {  // rank 0 sends micro-batch 1 first: rank 1 still wants 0 first, which only a channel with tags can tell
      std::swap(swapped.actions[0], swapped.actions[1]);
      const CheckedPlan at_use = check_schedule(swapped, ReceivePosting::at_use);
      CHECK(at_use.defect.kind == DefectKind::mismatched_receive);
      CHECK(at_use.defect.rank == 1);
      CHECK_FALSE(check_schedule(swapped).defect);  // as shipped, receives follow the order of sending
    }

    // Each receive in turn is forgotten.
    for (int lost = 0; lost < good.exchange.receives.size(); lost += 5) {
      PipelineExchange exchange = good.exchange;
      const int use = exchange.receives[lost];
      for (int k = lost; k + 1 < exchange.receives.size(); ++k) exchange.receives[k] = exchange.receives[k + 1];
      for (int& first : exchange.first)
        if (first > lost) --first;
      const ScheduleDefect defect = check_schedule(plan, good.dependencies, exchange);
      CHECK(defect.kind == DefectKind::missing_receive);
      CHECK(defect.rank == plan.action_rank[use]);
      CHECK(defect.position == plan.position(use));
      CHECK(defect.peer == good.dependencies.sender[use]);
    }

    // Each rank in turn has a slot too few, for one chunk or for messages.
    const PipelineSlots enough = count_slots(plan, good.exchange);
    CHECK_FALSE(find_overflow(plan, good.exchange, enough));
    for (int rank = 0; rank < ranks; ++rank) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        PipelineSlots slots = enough;
        const int needed = slots.activations[rank * chunks + chunk]--;
        const ScheduleDefect defect = find_overflow(plan, good.exchange, slots);
        CHECK(defect.kind == DefectKind::activation_slots);
        CHECK(defect.rank == rank);
        CHECK(defect.action.kind == ActionKind::forward);
        CHECK(defect.action.chunk == chunk);
        CHECK(defect.amount == needed);
        CHECK(defect.allowed == needed - 1);
      }
      PipelineSlots slots = enough;
      const int needed = slots.receives[rank]--;
      if (needed == 0) continue;
      const ScheduleDefect defect = find_overflow(plan, good.exchange, slots);
      CHECK(defect.kind == DefectKind::receive_slots);
      CHECK(defect.rank == rank);
      CHECK(defect.amount == needed);
      CHECK(defect.allowed == needed - 1);
    }
  }
}

TEST_CASE("each kind of defect is a sentence with rank, position and action") {
  const auto sentence = [](const std::vector<std::string>& rows, int microbatches, std::vector<int> placement = {}) {
    const auto table = TableSchedule::parse(rows, std::move(placement));
    return to_string(check_schedule(make_pipeline_plan(table, {static_cast<int>(rows.size()), microbatches})).defect);
  };
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1 B1"}, 2) == "no defect");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1 B2"}, 2) == "rank 1, position 3 (B2): no such chunk or micro-batch");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1.1 B1"}, 2) == "rank 1, position 2 (F1): no such chunk or micro-batch");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1 B0"}, 2) == "rank 1, position 3 (B0): runs a second time");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1 B1 W1"}, 2) == "rank 1, position 4 (W1): runs a second time");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 F1"}, 2) ==
        "rank 1, position 4 (B1): is in no list; every micro-batch needs it once");
  CHECK(sentence({"F0 F1 B0 B1", "F0 I0 F1 I1 W0"}, 2) ==
        "rank 1, position 6 (W1): is in no list; every micro-batch needs it once");
  CHECK(sentence({"F0 F1 B0 B1", "F0 B0 B1 F1"}, 2) ==
        "rank 1, position 2 (B1): runs before an action of its own rank that it needs");
  CHECK(sentence({"F0 F1 B0 B1", "F0 I0 F1 W1 I1 W0"}, 2) ==
        "rank 1, position 3 (W1): runs before an action of its own rank that it needs");
  CHECK(sentence({"F0.1 F0.0 B0.1 B0.0", "F0.0 F0.1 B0.1 B0.0"}, 1, {0, 1, 1, 0}) ==
        "rank 0, position 0 (F0.1): needs a result of rank 1, which waits in turn (a cycle of 2 ranks)");
  CHECK(sentence({"F0.0 F0.1 B0.0 B0.1", "F0.0 B0.0"}, 1, {0, 1, 0}) ==
        "rank 0, position 2 (B0.0): needs a result of rank 1, which waits in turn (a cycle of 2 ranks)");

  // Rank 0 waits for the gradient of 0 before it sends 1; rank 1 wants 1 first.
  CHECK(sentence({"F0 B0 F1 B1", "F1 F0 B0 B1"}, 2) ==
        "rank 0, position 1 (B0): needs a result of rank 1, which waits in turn (a cycle of 2 ranks)");

  const PipelinePlan plan = make_pipeline_plan(Schedule::Interleaved{}, {4, 8});
  const CheckedPlan checked = naive(plan);
  CHECK(to_string(
            find_deadlock(plan, checked.dependencies, checked.exchange, Transport::rendezvous(), Grouping::blocking)) ==
        "rank 2, position 2 (B0): waits for rank 3, which waits in turn: a deadlock of 2 ranks");
  const PipelinePlan v = make_pipeline_plan(Schedule::ZeroBubbleV{}, {2, 4});
  CHECK(to_string(naive(v).defect) ==
        "rank 1, position 4 (I0.1): its message is received in another order than rank 0 sends");
  // A receive is gone: its sender waits for a rank that has long ended.
  CheckedPlan shortened = check_schedule(make_pipeline_plan(Schedule::ForwardOnly<>{}, {2, 1}));
  shortened.exchange.receives = {};
  for (int& first : shortened.exchange.first) first = 0;
  CHECK(to_string(find_deadlock(make_pipeline_plan(Schedule::ForwardOnly<>{}, {2, 1}), shortened.dependencies,
                                shortened.exchange, Transport::rendezvous())) ==
        "rank 0, position 1 (F0): waits for rank 1, which has ended without the other call");
  PipelineSlots slots = count_slots(plan, check_schedule(plan).exchange);
  --slots.activations[1];
  CHECK(to_string(find_overflow(plan, check_schedule(plan).exchange, slots)) ==
        "rank 1, position 2 (F2): holds 3 activations; there are 2 slots");
}
