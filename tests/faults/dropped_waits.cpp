// Trains a sharded model, and one with a sharded optimizer, on four thread ranks, whose streams run at random paces,
// and compares with the same run in one stream: exit code 1 if a bit is different.
//   program WAIT TRIES     leaves out the wait with this number; -1: none
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <smp/comm/decorator.hpp>
#include <smp/comm/launch.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "support/samples.hpp"
#include "support/tiny_modules.hpp"

namespace {

std::atomic<int> wait_to_drop{-1};

using Values = smp::TensorOf<double>;
using Plain = smp::testing::Dense<double>;
constexpr std::int64_t width = 5;

/// Which streams are slow: 0 none, 1 communication, 2 computation; and a seed for how slow.
struct Pace {
  int slow = 0;
  std::uint64_t seed = 0;
  void pause(int who, std::uint64_t& draws) const {
    if (slow != who) return;
    const double part = smp::RandomStream{seed, 7}.uniform(draws++);
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(400 * part)));
  }
};

/// A communicator that begins late.
template <smp::comm::HostCommunicator C>
class Late : public smp::comm::Decorator<Late<C>, C> {
 public:
  Late(C inner, Pace pace) : smp::comm::Decorator<Late<C>, C>(std::move(inner)), pace_(pace) {}
  [[nodiscard]] Late split(int colour, int key, std::string name) {
    return Late(this->inner().split(colour, key, std::move(name)), pace_);
  }
  void enqueue(smp::HostStream& stream, const smp::comm::Call& call) { smp::comm::execute_in(stream, *this, call); }
  template <class... Gate>
  void execute(const smp::comm::Call& call, Gate&... gate) {
    pace_.pause(1, draws_);
    this->inner().execute(call, gate...);
  }

 private:
  Pace pace_;
  std::uint64_t draws_ = 0;
};

/// A layer that takes its time.
struct Layer : Plain {
  Pace pace;
  explicit Layer(Pace p) : Plain(width, width), pace(p) {}
  Values forward(auto& ctx, const Values& x, Saved& s) const {
    wait(ctx);
    return Plain::forward(ctx, x, s);
  }
  Values backward(auto& ctx, const Values& dy, Saved& s) {
    wait(ctx);
    return Plain::backward(ctx, dy, s);
  }
  void wait(auto& ctx) const {
    ctx.stream().enqueue(
        [p = pace, draws = ctx.position.step * 1000 + ctx.position.first_sample]() mutable { p.pause(2, draws); });
  }
};

/// Two layers in the root unit around the others.
struct Net {
  using Input = Values;
  using Output = Values;
  struct Saved {
    Plain::Saved first, last;
    smp::Repeat<Layer>::Saved h;
  };
  Layer first;
  smp::Repeat<Layer> h;
  Layer last;
  explicit Net(Pace pace) : first(pace), h(4, [&](std::size_t) { return Layer(pace); }), last(pace) {}
  static constexpr auto fields() {
    return smp::fields(smp::field("first", &Net::first), smp::field("h", &Net::h), smp::field("last", &Net::last));
  }
  Output forward(auto& ctx, const Input& x, Saved& s) const {
    return last.forward(ctx, h.forward(ctx, first.forward(ctx, x, s.first), s.h), s.last);
  }
  smp::GradOf<Input> backward(auto& ctx, const smp::GradOf<Output>& dy, Saved& s) {
    return first.backward(ctx, h.backward(ctx, last.backward(ctx, dy, s.last), s.h), s.first);
  }
};

/// What is told apart: units that are gathered and reduced each by itself, or together; and whole values.
enum class Kind : unsigned char { apart, together, sharded_optimizer };

smp::AnyStrategyOptions options_of(Kind kind, bool ahead) {
  if (kind == Kind::sharded_optimizer) return smp::ShardedOptimizerOptions{.bucket_bytes = 300, .overlap = ahead};
  const bool together = kind == Kind::together;
  smp::ShardedOptions options{.persistence_threshold = 6, .overlap = ahead};
  options.max_live_parameters = together ? 10'000 : 100;
  options.reduce_bucket_size = together ? 1000 : 1;
  options.merge_gathers_below = together ? 1000 : 0;
  return options;
}

/// All weights after four steps, and what the model makes of some samples between two of them.
std::vector<double> train(smp::comm::Threads& threads, Pace pace, Kind kind, bool ahead) {
  smp::Worker worker(Late<smp::comm::Threads>(threads, pace), smp::Topology<smp::Degrees{.rdp = 4, .sdp = 2}>(), 3,
                     ahead ? smp::HostStream::Mode::worker : smp::HostStream::Mode::at_once);
  auto ctx = worker.context();
  smp::AnyStrategy trainer(ctx, Net(pace), smp::optim::AdamW{}, options_of(kind, ahead));
  std::vector<double> result;
  result.reserve(4 * 4 * width);  // tasks write to it
  Net::Saved unused;
  std::vector<Values> inputs, targets;  // written before the stream runs: the host does not wait for it
  const std::int64_t first = 4 * worker.rank(), last = first + 4;
  for (int s = 0; s < 4; ++s) {
    inputs.push_back(smp::testing::samples(worker.memory(), first, last, width, s));
    targets.push_back(smp::testing::samples(worker.memory(), first, last, width, 1));
  }
  for (std::size_t s = 0; s < inputs.size(); ++s) {
    const Values &x = inputs[s], &y = targets[s];
    (void)smp::step(ctx, trainer, smp::testing::SquaredError<double>{}, x, y, {.microbatches = 2});
    trainer.update(ctx, 0.1);  // does not wait
    ctx.training = false;
    const auto seen = trainer.forward(ctx, x, unused);
    ctx.training = true;
    unused = {};
    result.resize(result.size() + seen.size());
    ctx.stream().enqueue([to = result.data() + result.size() - seen.size(), from = seen.data(), n = seen.size()] {
      std::copy_n(from, n, to);
    });
  }
  ctx.stream().synchronize();
  for (smp::Block& block : trainer.layout().blocks()) {
    trainer.with_values(ctx, block, [&](const smp::Block& b) {
      const auto* v = static_cast<const double*>(b.value);
      result.insert(result.end(), v, v + b.size);
    });
  }
  return result;
}

/// All ranks, one after the other.
std::vector<std::vector<double>> run(Pace pace, Kind kind, bool ahead) {
  std::vector<std::vector<double>> all(4);
  smp::comm::launch(4, [&](smp::comm::Threads& world) {
    all[static_cast<std::size_t>(world.rank())] = train(world, pace, kind, ahead);
  });
  return all;
}

}  // namespace

bool dropped(int number) { return number == wait_to_drop.load(std::memory_order_relaxed); }

int main(int, char** argv) {
  const int wait = std::atoi(argv[1]), tries = std::atoi(argv[2]);
  for (const Kind kind : {Kind::apart, Kind::together, Kind::sharded_optimizer}) {
    const auto expected = run({}, kind, false);
    wait_to_drop = wait;
    for (int t = 0; t < tries; ++t) {
      const int slow = t % 3;
      bool same = false;
      try {
        same = run({slow, static_cast<std::uint64_t>(t)}, kind, true) == expected;
      } catch (const smp::Error& error) {
        std::printf("try %d: %s\n", t, error.what());
      }
      if (same) continue;
      std::printf("try %d, kind %d, slow: %d\n", t, static_cast<int>(kind), slow);
      return 1;
    }
    wait_to_drop = -1;
  }
  return 0;
}
