// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What train_gpt is asked to do.

#include <optional>
#include <string>
#include <vector>

/// The options of the command line, which main.cpp explains.
struct Options {
  std::string data, tokens = "bytes";
  double heldout = 0.1;
  int eval_every = 0;

  int layers = 4, heads = 4, hidden = 128, seq = 64;
  double dropout = 0;

  int batch = 12, microbatches = 1, accumulation = 1, steps = 1000;
  std::string optimizer = "adamw", lr_schedule = "constant";
  double lr = 1e-3, min_lr = 0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0, clip = 0;
  int warmup = 0;

  int seed = 1, ranks = 1, tp = 1, pp = 1, active = 0;
  std::string schedule = "interleaved", partition = "auto";
  std::optional<int> chunks;
  std::string tp_layout = "speed";
  bool prescaled = false, shard_optimizer = false;
  double bucket_mib = 25;
  int sdp = 1, persistence = 1'000'000, max_live = 1'000'000'000, reduce_bucket = 500'000'000, ranks_per_node = 0;
  bool hierarchical = true;
  std::string dtype = "f32", checkpointing = "none";
  std::string log, save, trace;

  /// Ranks that read different samples.
  [[nodiscard]] int feeds() const { return ranks / pp / (prescaled ? tp : 1); }
  /// Samples of a micro-batch that one rank reads.
  [[nodiscard]] int samples_at_once() const { return batch / (feeds() * microbatches * accumulation); }
};

/// The numbers of --partition; none for "auto".
/// @throws smp::ConfigError if it is something else
std::vector<int> blocks_of_stages(const Options& options);

/// @throws smp::ConfigError with a sentence for options that cannot work, alone or together
void check(const Options& options);
