// SPDX-License-Identifier: Apache-2.0
// What one rank of a training job of a language model will hold and send, in bytes, before there is a job:
//   plan --layers 44 --hidden 6144 --heads 64 --seq 2048 --vocab 50432 --world 64 --sdp 32 --dtype-bytes 2
//   plan --preset gpt-neox-65b-2048 --persistence 0
// With --sdp more than 1 the model is Sharded; with --shard-optimizer 1 its optimizer is; else it is DataParallel.
// Gradients and states of 16-bit parameters are in single precision; one of the states is the master copy.
// Arguments that cannot work: exit code 2 and one sentence.
#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include <smp/error.hpp>
#include <smp/plan/flat_plan.hpp>
#include <smp/plan/gpt_plan.hpp>
#include <smp/plan/sharded_plan.hpp>
#include <smp/topology.hpp>

#include "command_line.hpp"

namespace {

/// A model and the job that trains it.
struct Job {
  std::string_view name;
  int layers = 12, hidden = 768, heads = 12, seq = 1024, vocab = 50257;
  bool gpt2 = true;  // positions are learned, and the head is tied; else as GPT-NeoX
  int world = 1, tp = 1, sdp = 1, samples = 1, dtype_bytes = 4, states = 2;
};

// Configurations that the documentation of SageMaker's library recommends, on nodes of 8 GPUs. GPT-NeoX-20B: Black and
// others, 2022. It does not say what the model of 65 billion parameters looks like: here, as LLaMA-65B.
constexpr std::array<Job, 4> presets{{
    {"gpt-neox-20b-2-nodes", 44, 6144, 64, 2048, 50432, false, 16, 1, 16, 4, 2, 3},
    {"gpt-neox-20b-8-nodes", 44, 6144, 64, 2048, 50432, false, 64, 1, 32, 12, 2, 3},
    {"gpt-neox-65b-2048", 80, 8192, 64, 2048, 50432, false, 512, 8, 16, 8, 2, 3},
    {"gpt-neox-65b-4096", 80, 8192, 64, 4096, 50432, false, 512, 2, 64, 2, 2, 3},
}};

struct Options {
  std::string preset, tp_layout = "speed", checkpointing = "none";
  std::optional<int> layers, hidden, heads, seq, vocab, world, tp, sdp, samples, dtype_bytes, states;
  std::optional<bool> gpt2;
  int rank = 0, microbatches = 1, persistence = 1'000'000, max_live = 1'000'000'000, reduce_bucket = 500'000'000;
  bool shard_optimizer = false;

  [[nodiscard]] Job job() const {
    Job job;
    if (!preset.empty()) {
      std::string names;
      for (const Job& known : presets) {
        names += (names.empty() ? "" : ", ") + std::string(known.name);
        if (known.name == preset) job = known;
      }
      if (job.name.empty()) throw smp::ConfigError("no preset is called '" + preset + "'; there are " + names);
    }
    const auto set = [](auto& value, const auto& given) { value = given.value_or(value); };
    set(job.layers, layers), set(job.hidden, hidden), set(job.heads, heads), set(job.seq, seq), set(job.vocab, vocab);
    set(job.world, world), set(job.tp, tp), set(job.sdp, sdp), set(job.samples, samples), set(job.gpt2, gpt2);
    set(job.dtype_bytes, dtype_bytes), set(job.states, states);
    return job;
  }
};

/// @throws smp::ConfigError if it is not from `least` to `most`
std::size_t number(std::string_view name, int value, int least = 1, int most = 2'147'483'647) {
  if (value < least || value > most) {
    throw smp::ConfigError(std::string(name) + " is " + std::to_string(value) + ", but must be " +
                           (value < least ? "at least " + std::to_string(least) : "at most " + std::to_string(most)));
  }
  return static_cast<std::size_t>(value);
}
void expect_divides(std::string_view name, int part, std::string_view of, int whole) {
  if (whole % part == 0) return;
  throw smp::ConfigError(std::string(name) + " is " + std::to_string(part) + ", but must divide " + std::string(of) +
                         " = " + std::to_string(whole));
}

void line(std::string_view kind, std::string_view name, std::uint64_t value) {
  std::cout << kind << '\t' << name << '\t' << value << '\n';
}

void print(const smp::RankPlan& plan) {
  line("memory", "parameter", plan.parameter);
  line("memory", "gradient", plan.gradient);
  line("memory", "optimizer", plan.optimizer);
  line("memory", "buffer", plan.buffer);
  line("memory", "all", plan.parameter + plan.gradient + plan.optimizer + plan.buffer);
  for (const smp::GroupTraffic& t : plan.traffic) {
    std::cout << "sent\t" << to_string(t.group) << '\t' << to_string(t.collective) << '\t' << t.calls << '\t' << t.bytes
              << '\n';
  }
}

void print_parts(const smp::ShardedPlan& plan) {
  line("gathers", "in_a_step", plan.gathers.gathers());
  line("gathers", "peak_bytes", plan.gathers.peak);
  line("gathers", "needed_bytes", plan.gathers.needed);
  line("buffer", "gathered", plan.gathers.arena);
  line("buffer", "gradients", plan.gradient_room);
  line("buffer", "messages", plan.message);
}

smp::GptShape shape_of(const Job& job) {
  number("heads", job.heads);
  const smp::GptShape shape{number("layers", job.layers, 1, 10'000),
                            number("hidden", job.hidden, 1, 1'000'000),
                            number("seq", job.seq),
                            number("vocab", job.vocab),
                            job.gpt2,
                            job.gpt2};
  expect_divides("heads", job.heads, "hidden", job.hidden);
  expect_divides("tp", job.tp, "heads", job.heads);
  return shape;
}

smp::GptRun run_of(const Job& job, const Options& options) {
  if (job.dtype_bytes != 2 && job.dtype_bytes != 4 && job.dtype_bytes != 8) {
    throw smp::ConfigError("dtype-bytes is " + std::to_string(job.dtype_bytes) + ", but must be 2, 4 or 8");
  }
  const bool slices = options.tp_layout == "memory";
  if (slices) expect_divides("tp", job.tp, "seq", job.seq);
  return {number("dtype-bytes", job.dtype_bytes), slices, options.checkpointing == "each",
          number("samples", job.samples), number("microbatches", options.microbatches, 1, 1'000)};
}

/// Says which strategy it is, too.
smp::RankPlan plan_of(const Job& job, const Options& options, const smp::ModelSizes& model,
                      const smp::GroupPlaces& places) {
  const auto strategy = [](std::string_view name) { std::cout << "strategy\t" << name << '\n'; };
  if (job.sdp > 1) {
    const smp::ShardedPlan plan = plan_sharded(model, places,
                                               {.reduce_bucket_size = number("reduce-bucket", options.reduce_bucket),
                                                .max_live_parameters = number("max-live", options.max_live, 0),
                                                .states = job.states,
                                                .microbatches = options.microbatches});
    strategy("Sharded");
    print_parts(plan);
    return plan.rank;
  }
  strategy(options.shard_optimizer ? "ShardedOptimizer" : "DataParallel");
  const smp::ReductionOptions reduction{.states = job.states};
  return options.shard_optimizer ? plan_sharded_optimizer(model, places, reduction)
                                 : plan_data_parallel(model, places, reduction);
}

void report(const Options& options) {
  const Job job = options.job();
  const smp::DynamicTopology topology(smp::degrees_for(job.world, {.tp = job.tp, .rdp = smp::dynamic, .sdp = job.sdp}));
  if (options.shard_optimizer && job.sdp > 1) {
    throw smp::ConfigError("--shard-optimizer 1 with --sdp " + std::to_string(job.sdp) +
                           ": Sharded cuts the optimizer state already; leave one of them out");
  }
  number("optimizer-states", job.states, 0, 100);
  const smp::GptShape shape = shape_of(job);
  const smp::GptRun run = run_of(job, options);
  const auto places = smp::GroupPlaces::of(topology, options.rank);
  const smp::ModelSizes model =
      gpt_sizes(shape, run, places, {number("persistence", options.persistence, 0), options.shard_optimizer});
  smp::RankPlan plan = plan_of(job, options, model, places);
  add_gpt_activations(plan, shape, run, places);
  print(plan);
  std::size_t elements = 0;
  for (const smp::BlockSizes& b : gpt_sizes(shape, run, smp::GroupPlaces{}).blocks) elements += b.elements();
  line("model", "parameters", elements);
  line("job", "samples_in_a_step", run.samples * run.microbatches * places.size(smp::Group::rdp));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Says what a rank of a training job will hold and send");
  const auto add = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)->transform(decimal());
  };
  app.add_option("--preset", options.preset, "a known job, which the other options change");
  add("--layers", options.layers, "transformer layers (12)");
  add("--hidden", options.hidden, "width (768)");
  add("--heads", options.heads, "heads of a layer (12)");
  add("--seq", options.seq, "places (1024)");
  add("--vocab", options.vocab, "tokens (50257)");
  app.add_option("--gpt2", options.gpt2, "1: learned positions, a tied head (default); 0: neither, as GPT-NeoX");
  add("--world", options.world, "ranks of the job (1)");
  add("--tp", options.tp, "ranks that share each layer (1)");
  add("--sdp", options.sdp, "ranks that hold one copy of the model state (1)");
  add("--rank", options.rank, "the rank (0)");
  add("--samples", options.samples, "of a micro-batch, in a tensor-parallel group (1)");
  add("--microbatches", options.microbatches, "of a step (1)");
  add("--dtype-bytes", options.dtype_bytes, "of a parameter (4)");
  add("--optimizer-states", options.states, "numbers for each parameter; with 16 bits the master copy, too (2)");
  add("--persistence", options.persistence, "parameters with fewer elements are not sharded (1000000)");
  add("--max-live", options.max_live, "elements that are gathered at a time (1000000000)");
  add("--reduce-bucket", options.reduce_bucket, "gradients that are reduced together (500000000)");
  app.add_option("--shard-optimizer", options.shard_optimizer, "1: the optimizer's state is cut over the ranks");
  app.add_option("--tp-layout", options.tp_layout, "speed: all have the hidden states; memory: slices")
      ->check(CLI::IsMember({"speed", "memory"}));
  app.add_option("--checkpointing", options.checkpointing, "none, or each layer")
      ->check(CLI::IsMember({"none", "each"}));
  return run(app, argc, argv, [&] { report(options); });
}
