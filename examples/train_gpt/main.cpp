// SPDX-License-Identifier: Apache-2.0
// Trains a language model of GPT-2's shape on a text, and says how well it predicts the part that it has not seen:
//   train_gpt --data book.txt --tokens chars --steps 2000 --lr-schedule cosine --warmup 100 --clip 1 --log book.jsonl
// Options that cannot work: exit code 2 and one sentence.
// Ranks are threads (--ranks N), or the processes of an MPI: mpirun -n 4 train_gpt --data book.txt ...
// needs: io blas
// uses: mpi
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <smp/comm/launch.hpp>
#include <smp/error.hpp>
#if USE_MPI
#include <smp/comm/mpi_session.hpp>
#endif

#include "../command_line.hpp"
#include "options.hpp"
#include "text.hpp"
#include "train.hpp"

namespace {

/// Adds the options to `app`.
void declare(CLI::App& app, Options& o) {
  const auto integer = [&app](const char* name, int& value, const char* text) {
    app.add_option(name, value, text)->transform(decimal())->capture_default_str();
  };
  const auto number = [&app](const char* name, double& value, const char* text) {
    app.add_option(name, value, text)->capture_default_str();
  };
  const auto flag = [&app](const char* name, bool& value, const char* text) {
    app.add_option(name, value, text)->capture_default_str();
  };
  const auto one_of = [&app](const char* name, std::string& value, std::vector<std::string> words, const char* text) {
    app.add_option(name, value, text)->check(CLI::IsMember(std::move(words)))->capture_default_str();
  };

  app.add_option("--data", o.data, "text to learn")->required();
  one_of("--tokens", o.tokens, {"bytes", "chars"}, "what is predicted: bytes, or the characters (UTF-8) of the text");
  number("--heldout", o.heldout, "part of the text, at its end, that is not learnt but judges what was");
  integer("--eval-every", o.eval_every, "steps between held-out losses in the log; 0: only one at the end");

  integer("--layers", o.layers, "transformer blocks");
  integer("--heads", o.heads, "attention heads of a block");
  integer("--hidden", o.hidden, "width of the model");
  integer("--seq", o.seq, "tokens of a sample");
  number("--dropout", o.dropout, "probability of dropping an element");

  integer("--batch", o.batch, "samples of an optimizer step, over all ranks, micro-batches and accumulation passes");
  integer("--microbatches", o.microbatches, "micro-batches of a pass");
  integer("--accumulation", o.accumulation, "passes of an optimizer step");
  integer("--steps", o.steps, "optimizer steps");
  one_of("--optimizer", o.optimizer, {"adamw", "adam", "adadelta", "sgd"}, "rule of the update");
  number("--lr", o.lr, "learning rate");
  one_of("--lr-schedule", o.lr_schedule, {"constant", "linear", "cosine"}, "its way from --lr to --min-lr");
  integer("--warmup", o.warmup, "first steps, in which the learning rate grows linearly");
  number("--min-lr", o.min_lr, "learning rate at the end of a linear or cosine schedule");
  number("--beta1", o.beta1, "memory of the first moment, of Adam and AdamW");
  number("--beta2", o.beta2, "memory of the second moment, of Adam and AdamW");
  number("--weight-decay", o.weight_decay, "decay of weight matrices");
  number("--clip", o.clip, "largest norm of the gradient; 0: no limit");

  integer("--seed", o.seed, "of initial values, samples and dropout");
  one_of("--dtype", o.dtype, {"f32", "f64"}, "type of values and gradients");
  app.add_option(
         "--checkpointing", o.checkpointing,
         "blocks that keep their input only and compute twice: none, each, all of a stage together (contiguous), or "
         "up to N (group_N)")
      ->capture_default_str();
  app.add_option("--log", o.log, "file for one JSON object a step, and a summary");
  app.add_option("--trace", o.trace, "file for what each rank does when, in the last step, for Perfetto; and FILE.svg");
  app.add_option("--save", o.save, "file for the parameters, in the safetensors format");
  integer("--ranks", o.ranks, "ranks, as threads of this process; mpirun knows them itself");
  integer("--tp", o.tp, "tensor-parallel ranks, over which each layer is cut");
  integer("--pp", o.pp, "pipeline ranks, over which the layers are spread");
  one_of("--schedule", o.schedule,
         {"simple", "interleaved", "looped", "looped_breadth", "zero_bubble", "zero_bubble_v", "dual_pipe_v"},
         "order of micro-batches on these ranks");
  app.add_option("--chunks", o.chunks, "stages on one rank: 1, or what the schedule has");
  app.add_option("--partition", o.partition, "transformer blocks of each stage, as in 2,1,1; auto: by size")
      ->capture_default_str();
  integer("--active", o.active, "micro-batches under way on a rank at most; 0: no limit");
  one_of("--tp-layout", o.tp_layout, {"speed", "memory"},
         "hidden states: all on each of these ranks, or each row on one");
  flag("--prescaled", o.prescaled, "these ranks read the same samples (1), or each its own (0)");
  number("--bucket-mib", o.bucket_mib, "largest range of gradients that is reduced at a time, in MiB");
  flag("--shard-optimizer", o.shard_optimizer, "each rank keeps a part of the optimizer's state (1), or all of it (0)");
  integer("--sdp", o.sdp, "ranks that hold parameters, gradients and the optimizer's state together");
  integer("--persistence", o.persistence, "with --sdp: parameters with fewer elements are on every rank");
  integer("--max-live", o.max_live,
          "with --sdp: elements that are gathered at a time, if what is used at once is less");
  integer("--reduce-bucket", o.reduce_bucket, "with --sdp: gradients that are reduced together, in elements");
  flag("--hierarchical", o.hierarchical,
       "with --sdp: gather between nodes first, then on each of them (1), or not (0)");
  integer("--ranks-per-node", o.ranks_per_node, "consecutive ranks that share a node; 0: as the transport says");
}

/// The run of the calling rank.
void train(smp::comm::Any world, const std::string& transport, const Options& options, const Text& text,
           std::chrono::steady_clock::time_point begin) {
  if (options.dtype == "f64") {
    train<double>(std::move(world), transport, options, text, begin);
  } else {
    train<float>(std::move(world), transport, options, text, begin);
  }
}

#if USE_MPI
/// True if an mpirun has started this process as one of several.
bool under_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
         std::getenv("PMIX_RANK") != nullptr;
}

/// The run on the ranks of MPI. What all of them refuse before they talk to each other, one of them says.
/// @param ranks that --ranks asks for, if it does
int train_under_mpi(int argc, char** argv, Options options, std::optional<int> ranks,
                    std::chrono::steady_clock::time_point begin) {
  smp::comm::MpiSession mpi(argc, argv, {}, smp::comm::MpiThreads::any);
  std::optional<Text> text;
  try {
    options.ranks = mpi.world().size();
    if (ranks.value_or(options.ranks) != options.ranks) {
      throw smp::ConfigError("--ranks is " + std::to_string(*ranks) + ", but mpirun has started " +
                             std::to_string(options.ranks) + "; it knows without --ranks");
    }
    check(options);
    text.emplace(options);
  } catch (const smp::ConfigError& error) {
    if (mpi.world().rank() == 0) std::cerr << error.what() << '\n';
    return 2;
  }
  mpi.run([&](smp::comm::Mpi& world) { train(smp::comm::Any(world), "mpi", options, *text, begin); });
  return 0;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const auto begin = std::chrono::steady_clock::now();
  Options options;
  CLI::App app("Trains a language model of GPT-2's shape");
  declare(app, options);
  int code = 0;
  const int refused = run(app, argc, argv, [&] {
#if USE_MPI
    if (under_mpirun()) {
      const bool says_ranks = app.count("--ranks") > 0;
      code = train_under_mpi(argc, argv, options, says_ranks ? std::optional(options.ranks) : std::nullopt, begin);
      return;
    }
#endif
    check(options);
    const Text text(options);
    smp::comm::launch(options.ranks, [&](smp::comm::Threads& world) {
      train(smp::comm::Any(world), "threads", options, text, begin);
    });
  });
  return refused != 0 ? refused : code;
}
