// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank does from the first step to the last word.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/any.hpp>
#include <smp/comm/objects.hpp>
#include <smp/comm/traced.hpp>
#include <smp/device/gemm_threads.hpp>
#include <smp/io/parameters.hpp>
#include <smp/io/sha256.hpp>
#include <smp/nn/vocabulary_cross_entropy.hpp>
#include <smp/optim/any.hpp>
#include <smp/optim/learning_rate.hpp>
#include <smp/parallel/any_strategy.hpp>
#include <smp/pipeline/pipeline.hpp>
#include <smp/timeline.hpp>
#include <smp/topology.hpp>
#include <smp/trace/trace.hpp>
#include <smp/train/step.hpp>
#include <smp/train/worker.hpp>

#include "gpt.hpp"
#include "options.hpp"
#include "report.hpp"
#include "text.hpp"
#include "train.hpp"

/// The optimizer that the options name.
inline smp::optim::Any make_optimizer(const Options& o) {
  const smp::optim::AdamNumbers adam{.beta1 = o.beta1, .beta2 = o.beta2, .weight_decay = o.weight_decay};
  if (o.optimizer == "adam") return smp::optim::Adam{adam};
  if (o.optimizer == "adadelta") return smp::optim::AdaDelta{.weight_decay = o.weight_decay};
  if (o.optimizer == "sgd") return smp::optim::Sgd{.weight_decay = o.weight_decay};
  return smp::optim::AdamW{adam};
}

/// The strategy that the options name.
inline smp::AnyStrategyOptions make_strategy(const Options& o) {
  const auto bucket_bytes = static_cast<std::size_t>(o.bucket_mib * 1024 * 1024);
  if (o.sdp > 1) {
    return smp::ShardedOptions{.clip = o.clip,
                               .reduce_bucket_size = static_cast<std::size_t>(o.reduce_bucket),
                               .persistence_threshold = static_cast<std::size_t>(o.persistence),
                               .max_live_parameters = static_cast<std::size_t>(o.max_live),
                               .gather = {.hierarchical = o.hierarchical, .ranks_per_node = o.ranks_per_node}};
  }
  if (o.shard_optimizer) return smp::ShardedOptimizerOptions{.clip = o.clip, .bucket_bytes = bucket_bytes};
  return smp::DataParallelOptions{.clip = o.clip, .bucket_bytes = bucket_bytes};
}

/// Which layers each stage has, as the options say.
/// @param before, behind layers around the transformer blocks: of the first and of the last stage
/// @param timeline of the rank
inline smp::PipelineOptions make_stages(const Options& o, int before, int behind, smp::Timeline* timeline) {
  smp::PipelineOptions stages{.partition = blocks_of_stages(o), .active = o.active};
  stages.checkpointing = smp::CheckpointGroups::named(o.checkpointing);
  stages.checkpointing.layers = {before, before + o.layers};
  if (!o.trace.empty()) stages.timeline = timeline;
  if (!stages.partition.empty()) {
    stages.partition.front() += before;
    stages.partition.back() += behind;
  }
  return stages;
}

/// The training run on one rank.
/// @tparam T of values and gradients
/// @tparam At how hidden states are distributed over the tensor-parallel ranks
template <class T, class At>
class Run {
  using Worker = smp::Worker<smp::comm::Any, smp::DynamicTopology>;
  using Model = smp::Pipeline<smp::Schedule::Runtime, Gpt<T, At>>;

 public:
  /// Initial values, and the files that will be written: who cannot write them finds out now.
  Run(smp::comm::Any world, const Options& options, const Text& text)
      : options_(options),
        text_(text),
        worker_(traced(world), topology(world.size(), options), static_cast<std::uint64_t>(options.seed)),
        context_(worker_.context()),
        tp_(worker_.groups()[smp::Group::tp]),
        loss_{text.classes()},
        trainer_(context_,
                 Model(context_, make_gpt<T, At>(text.classes(), options, tp_.rank(), tp_.size()),
                       make_stages(options, GptParts<T, At>::before, GptParts<T, At>::behind, &timeline_),
                       smp::Schedule::Runtime::named(options.schedule, options.chunks)),
                 make_optimizer(options), make_strategy(options)),
        log_(speaks() ? options.log : "") {
    smp::set_gemm_threads(smp::default_gemm_threads(world.size()));
    if (options.save.empty()) return;
    auto headers = smp::io::headers<T>(context_, trainer_.layout());
    if (speaks()) file_.emplace(options.save, std::move(headers));
  }

  /// All steps, then summary, parameters and sample.
  /// @param transport what carries messages
  /// @param begin of the program
  void all(const std::string& transport, Clock::time_point begin) {
    std::optional<double> heldout;
    {
      Progress progress(speaks() ? options_.steps : 0);
      for (int s = 1; s <= options_.steps; ++s) {
        StepReport report = step(s);
        if (options_.eval_every > 0 && s % options_.eval_every == 0) report.heldout = heldout_loss();
        heldout = report.heldout;
        log_.add(report);
        progress.show(report);
      }
    }
    if (!heldout) heldout = heldout_loss();
    Summary summary{transport, worker_.topology().degrees(), reports(), heldout, "", 0};
    smp::io::Sha256 digest;
    smp::io::for_each_whole<T>(context_, trainer_, [&](const std::string&, std::span<const T> values) {
      if (file_) file_->append(std::as_bytes(values));
      if (speaks()) digest.update(std::as_bytes(values));
    });
    if (file_) file_->commit();
    write_trace();
    write_sample();
    if (!speaks()) return;
    if (heldout)
      std::printf("\nheld-out loss %.4f after %d steps, %.1f s\n", *heldout, options_.steps, seconds_since(begin));
    summary.weights_sha256 = digest.hex();
    summary.wall_s = seconds_since(begin);
    log_.add(summary);
  }

 private:
  static smp::DynamicTopology topology(int ranks, const Options& o) {
    return smp::DynamicTopology(smp::degrees_for(ranks, {.pp = o.pp, .tp = o.tp, .rdp = smp::dynamic, .sdp = o.sdp}));
  }
  /// `world`, whose messages are noted if somebody wants to know.
  smp::comm::Any traced(smp::comm::Any world) {
    if (options_.trace.empty()) return world;
    return smp::comm::Any(smp::comm::Traced<smp::comm::Any>(std::move(world), timeline_));
  }
  /// Writes what all ranks did when.
  void write_trace() {
    if (options_.trace.empty()) return;
    const auto ranks = smp::gather_timelines(worker_.groups()[smp::Group::world], timeline_);
    if (!speaks()) return;
    write_file(options_.trace, smp::chrome_trace(ranks));
    write_file(options_.trace + ".svg", smp::trace_svg(ranks, "train_gpt, step " + std::to_string(options_.steps)));
  }
  static void write_file(const std::string& name, const std::string& text) {
    std::ofstream file(name, std::ios::binary);
    if (!(file << text).flush()) throw smp::ConfigError("cannot write \"" + name + "\"");
  }
  /// True on the rank that speaks.
  [[nodiscard]] bool speaks() const { return worker_.rank() == 0; }

  /// Step `s` of --steps, the first is 1.
  StepReport step(int s) {
    if (s == options_.steps && !options_.trace.empty()) {
      worker_.groups()[smp::Group::world].barrier(worker_.stream());
      timeline_.start();
    }
    const auto begin = Clock::now();
    const auto before = s == options_.steps ? worker_.counters().rows() : std::vector<smp::comm::Counters::Row>();
    const int samples = options_.samples_at_once() * options_.microbatches;  // of a pass
    double sum = 0;
    double weight = 0;
    for (int pass = 0; pass < options_.accumulation; ++pass) {
      const int copy = worker_.groups()[smp::Group::rdp].rank() * options_.accumulation + pass;
      const int feed = options_.prescaled ? copy : copy * tp_.size() + tp_.rank();
      const auto first = static_cast<std::uint64_t>(feed * samples);
      smp::Ids inputs(worker_.memory(), {samples, options_.seq});
      smp::Ids targets(worker_.memory(), {samples, options_.seq});
      text_.samples(static_cast<std::uint64_t>(s), first, options_.seq, {inputs.data(), inputs.size()},
                    {targets.data(), targets.size()});
      const auto loss = smp::step(context_, trainer_, loss_, inputs, targets,
                                  {.microbatches = options_.microbatches,
                                   .passes = options_.accumulation,
                                   .pass = pass,
                                   .prescaled = options_.prescaled,
                                   .first_sample = first});
      sum += loss.sum;
      weight += loss.weight;
    }
    const smp::optim::LearningRate rate{smp::optim::parse_decay(options_.lr_schedule), options_.lr, options_.min_lr,
                                        options_.warmup, options_.steps};
    const double norm = trainer_.step(context_, rate(s - 1));
    timeline_.stop();
    if (s == options_.steps) traffic_ = since(before);
    if (!std::isfinite(sum)) {
      throw smp::Error("the loss of step " + std::to_string(s) +
                       " is not a number; a smaller --lr, a longer --warmup or " + "--clip 1 may help");
    }
    const double tokens = static_cast<double>(options_.batch) * options_.seq;
    return {s, sum / weight, norm, tokens / seconds_since(begin), {}};
  }

  /// The mean loss over the whole held-out text, cut into windows. The copies of the model share them: each has as
  /// many, if some behind the end, since ranks may hold parameters together.
  std::optional<double> heldout_loss() {
    const auto tokens = text_.heldout();
    if (tokens.empty()) return {};
    const std::size_t seq = static_cast<std::size_t>(options_.seq);
    const std::size_t windows = (tokens.size() - 1 + seq - 1) / seq;
    auto& copies = worker_.groups()[smp::Group::rdp];
    const auto count = static_cast<std::size_t>(copies.size()), copy = static_cast<std::size_t>(copies.rank());
    const std::size_t own = (windows + count - 1) / count, first = own * copy;
    const smp::Shape shape{static_cast<std::int64_t>(own), options_.seq};
    smp::Ids inputs(worker_.memory(), shape, smp::MemoryUse::buffer);
    smp::Ids targets(worker_.memory(), shape, smp::MemoryUse::buffer);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::size_t place = first * seq + i;
      const bool inside = place + 1 < tokens.size();
      inputs.data()[i] = inside ? tokens[place] : 0;
      targets.data()[i] = inside ? tokens[place + 1] : loss_.ignored;
    }
    const std::size_t at_once = static_cast<std::size_t>(options_.samples_at_once());
    const std::size_t parts = (own + at_once - 1) / at_once;
    return smp::evaluate(context_, trainer_, loss_, inputs, targets, static_cast<int>(parts), smp::CountTargets{})
        .mean();
  }

  /// Prints text that the model makes up, token by token. Probabilities are sharpened a little, as is usual. All ranks
  /// draw the same: each has a part of the logits.
  void write_sample() {
    constexpr std::size_t length = 500;
    constexpr double temperature = 0.8;
    const smp::RandomStream random{worker_.seed(), smp::stream_of("sample")};
    smp::set_gemm_threads(1);  // a single sample is too small to be shared
    std::vector<std::int32_t> tokens(text_.learnt().begin(), text_.learnt().begin() + 1);
    std::string sample = text_.word(tokens[0]);
    for (std::size_t i = 1; i < length; ++i) {
      const std::size_t seen = std::min(tokens.size(), static_cast<std::size_t>(options_.seq));
      // Rows that cannot be cut are filled up; a place sees nothing of what follows it.
      const std::size_t parts = options_.tp_layout == "memory" ? static_cast<std::size_t>(tp_.size()) : 1;
      smp::Ids input(worker_.memory(), {1, static_cast<std::int64_t>((seen + parts - 1) / parts * parts)});
      std::fill(input.begin(), input.end(), 0);
      std::copy(tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end(), input.data());
      const auto outputs = smp::predict(context_, trainer_, input);
      tokens.push_back(draw(logits_of(outputs[0], seen - 1), temperature, random.uniform(i)));
      sample += text_.word(tokens.back());
    }
    if (speaks()) std::printf("%s\n", sample.c_str());
  }

  /// The logits of all classes at one place, from the parts of the ranks.
  std::vector<T> logits_of(const smp::TensorOf<T>& part, std::size_t place) {
    const auto classes = static_cast<std::size_t>(part.shape()[-1]);
    const T* here = part.data() + place * classes;
    std::vector<T> all;
    for (const auto& each : smp::comm::all_gather_object(tp_, std::vector<T>(here, here + classes))) {
      all.insert(all.end(), each.begin(), each.end());
    }
    return all;
  }

  /// A class with probability proportional to exp(logit / temperature), given a uniform number.
  static std::int32_t draw(std::span<const T> logits, double temperature, double uniform) {
    const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    std::vector<double> sums;
    double sum = 0;
    for (const T logit : logits) sums.push_back(sum += std::exp((static_cast<double>(logit) - most) / temperature));
    return static_cast<std::int32_t>(std::upper_bound(sums.begin(), sums.end() - 1, uniform * sum) - sums.begin());
  }

  /// What was counted after `before`.
  std::vector<smp::comm::Counters::Row> since(const std::vector<smp::comm::Counters::Row>& before) const {
    auto rows = worker_.counters().rows();
    for (auto& row : rows) {
      for (const auto& old : before) {
        if (old.group != row.group || old.operation != row.operation || old.purpose != row.purpose) continue;
        row.count.calls -= old.count.calls;
        row.count.bytes -= old.count.bytes;
      }
    }
    std::erase_if(rows, [](const auto& row) { return row.count.calls == 0; });
    return rows;
  }

  /// The reports of all ranks, on every rank.
  std::vector<RankReport> reports() {
    RankReport own{traffic_, {}};
    for (std::size_t use = 0; use < smp::memory_uses; ++use) {
      own.peaks[use] = worker_.memory()[static_cast<smp::MemoryUse>(use)].peak;
    }
    return smp::comm::all_gather_object(worker_.groups()[smp::Group::world], own);
  }

  const Options& options_;
  const Text& text_;
  smp::Timeline timeline_;  // of the last step
  Worker worker_;
  typename Worker::Context context_;
  smp::comm::Counted<smp::comm::Any>& tp_;
  smp::nn::VocabularyCrossEntropy<T> loss_;
  smp::AnyStrategy<Model, smp::optim::Any> trainer_;
  Log log_;
  std::optional<smp::io::SafetensorsWriter> file_;
  std::vector<smp::comm::Counters::Row> traffic_;  // of the last step
};

template <class T>
void train(smp::comm::Any world, const std::string& transport, const Options& options, const Text& text,
           Clock::time_point begin) {
  if (options.tp_layout == "memory") {
    Run<T, smp::Shard<smp::Dim::sequence>>(std::move(world), options, text).all(transport, begin);
  } else {
    Run<T, smp::Invariant>(std::move(world), options, text).all(transport, begin);
  }
}
