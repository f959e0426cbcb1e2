// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include <smp/error.hpp>
#include <smp/pipeline/checkpoint_groups.hpp>
#include <smp/pipeline/schedules.hpp>

namespace {

void at_least(const char* option, int value, int least) {
  if (value < least) {
    throw smp::ConfigError(std::string(option) + " is " + std::to_string(value) + ", but must be at least " +
                           std::to_string(least));
  }
}

/// Refuses numbers below `least`, not below `most`, and those that are none.
void in_range(const char* option, double value, double least, double most, const char* range) {
  if (!(value >= least && value < most)) {
    throw smp::ConfigError(std::string(option) + ": expected " + range + ", found " + std::to_string(value));
  }
}

/// Refuses what the schedule cannot run.
void check_schedule(const Options& o) {
  const auto schedule = smp::Schedule::Runtime::named(o.schedule, o.chunks);
  if (o.schedule == "forward_only") {
    throw smp::ConfigError("--schedule forward_only learns nothing; it is what evaluation runs by itself");
  }
  const auto plan =
      smp::make_pipeline_plan(schedule, {.ranks = o.pp, .microbatches = o.microbatches, .active = o.active});
  const auto stages = static_cast<std::size_t>(plan.stages());
  const auto blocks = blocks_of_stages(o);
  if (!blocks.empty() && blocks.size() != stages) {
    throw smp::ConfigError("--partition is " + o.partition + ", but there are " + std::to_string(stages) +
                           " stages: --pp x the chunks of a rank");
  }
}

}  // namespace

std::vector<int> blocks_of_stages(const Options& o) {
  std::vector<int> blocks;
  if (o.partition == "auto") return blocks;
  const char* const end = o.partition.data() + o.partition.size();
  for (const char* at = o.partition.data(); at <= end; ++at) {
    int number = -1;
    const auto [stop, error] = std::from_chars(at, end, number);
    if (error != std::errc{} || number < 0 || (stop != end && *stop != ',')) {
      throw smp::ConfigError(
          "--partition: expected auto, or the number of transformer blocks of each stage with "
          "commas between them, found \"" +
          o.partition + "\"");
    }
    blocks.push_back(number);
    at = stop;
  }
  if (std::accumulate(blocks.begin(), blocks.end(), 0) != o.layers) {
    throw smp::ConfigError("--partition is " + o.partition + ", but --layers is " + std::to_string(o.layers) +
                           ": the stages together must have all blocks");
  }
  return blocks;
}

void check(const Options& o) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [option, value] :
       {std::pair("--layers", o.layers), std::pair("--heads", o.heads), std::pair("--hidden", o.hidden),
        std::pair("--seq", o.seq), std::pair("--batch", o.batch), std::pair("--microbatches", o.microbatches),
        std::pair("--accumulation", o.accumulation), std::pair("--ranks", o.ranks), std::pair("--tp", o.tp),
        std::pair("--pp", o.pp), std::pair("--chunks", o.chunks.value_or(1)), std::pair("--sdp", o.sdp),
        std::pair("--reduce-bucket", o.reduce_bucket)}) {
    at_least(option, value, 1);
  }
  for (const auto& [option, value] :
       {std::pair("--eval-every", o.eval_every), std::pair("--steps", o.steps), std::pair("--warmup", o.warmup),
        std::pair("--seed", o.seed), std::pair("--persistence", o.persistence), std::pair("--max-live", o.max_live),
        std::pair("--ranks-per-node", o.ranks_per_node), std::pair("--active", o.active)}) {
    at_least(option, value, 0);
  }
  for (const auto& [option, value] : {std::pair("--heldout", o.heldout), std::pair("--dropout", o.dropout),
                                      std::pair("--beta1", o.beta1), std::pair("--beta2", o.beta2)}) {
    in_range(option, value, 0, 1, "a number from 0 to below 1");
  }
  for (const auto& [option, value] :
       {std::pair("--lr", o.lr), std::pair("--min-lr", o.min_lr), std::pair("--weight-decay", o.weight_decay),
        std::pair("--clip", o.clip), std::pair("--bucket-mib", o.bucket_mib)}) {
    in_range(option, value, 0, infinity, "a finite number from 0");
  }
  if (o.hidden % o.heads != 0) {
    throw smp::ConfigError("--hidden is " + std::to_string(o.hidden) +
                           ", but must be a multiple of --heads = " + std::to_string(o.heads));
  }
  if (o.ranks % o.tp != 0) {
    throw smp::ConfigError("--tp is " + std::to_string(o.tp) +
                           ", but must divide the ranks = " + std::to_string(o.ranks));
  }
  if (o.ranks % (o.tp * o.pp) != 0) {
    throw smp::ConfigError("--pp is " + std::to_string(o.pp) +
                           ", but --pp x --tp must divide the ranks = " + std::to_string(o.ranks));
  }
  check_schedule(o);
  (void)smp::CheckpointGroups::named(o.checkpointing);
  const int copies = o.ranks / (o.tp * o.pp);
  if (copies % o.sdp != 0) {
    throw smp::ConfigError("--sdp is " + std::to_string(o.sdp) + ", but must divide the ranks that hold the same part" +
                           " of each layer: ranks / " + (o.pp > 1 ? "(--tp x --pp)" : "--tp") + " = " +
                           std::to_string(o.ranks) + " / " + std::to_string(o.ranks / copies) + " = " +
                           std::to_string(copies));
  }
  if (o.shard_optimizer && o.sdp > 1) {
    throw smp::ConfigError("--shard-optimizer is 1, but --sdp = " + std::to_string(o.sdp) +
                           " cuts the optimizer's state already; one of them is enough");
  }
  if (o.tp_layout == "memory" && o.seq % o.tp != 0) {
    throw smp::ConfigError("--seq is " + std::to_string(o.seq) +
                           ", but must be a multiple of --tp = " + std::to_string(o.tp) + " with --tp-layout memory");
  }
  const std::int64_t shares = std::int64_t{o.feeds()} * o.microbatches * o.accumulation;
  if (o.batch % shares != 0) {
    throw smp::ConfigError("--batch is " + std::to_string(o.batch) + ", but must be a multiple of " +
                           (o.prescaled && o.tp > 1 ? "ranks / --tp" : "ranks") + (o.pp > 1 ? " / --pp" : "") +
                           " x --microbatches x --accumulation = " + std::to_string(o.feeds()) + " x " +
                           std::to_string(o.microbatches) + " x " + std::to_string(o.accumulation) + " = " +
                           std::to_string(shares));
  }
}
