// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank does from the first step to the last word.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/smp.hpp>

#include "images.hpp"
#include "net.hpp"
#include "options.hpp"

/// Images as they are fed to the net.
template <class T>
struct Batch {
  Batch(smp::Memory& memory, const Images& images, std::span<const std::uint32_t> which)
      : x(memory, {static_cast<std::int64_t>(which.size()), 28, 28, 1}),
        labels(memory, {static_cast<std::int64_t>(which.size())}) {
    images.copy(which, x.data(), labels.data());
  }
  smp::TensorOf<T> x;
  smp::Ids labels;
};

/// The numbers 0 to n - 1 in an order that depends on seed and epoch alone.
inline std::vector<std::uint32_t> shuffled(std::size_t n, int seed, int epoch) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  const smp::RandomStream draw{static_cast<std::uint64_t>(seed), smp::stream_of("epoch " + std::to_string(epoch))};
  for (std::size_t i = n; i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(draw.uniform(i) * static_cast<double>(i))]);
  }
  return order;
}

/// Training on one of `world`'s ranks.
template <class T, class Comm>
class Training {
 public:
  Training(Comm world, const Options& options)
      : options_(options),
        worker_(world,
                smp::DynamicTopology(
                    smp::degrees_for(world.size(), {.pp = options.pp, .tp = options.tp, .rdp = smp::dynamic})),
                static_cast<std::uint64_t>(options.seed)),
        context_(worker_.context()),
        trainer_(
            context_,
            Model(context_, Net<T>::make(options.dropout, options.checkpointing == "each", tp().rank(), tp().size())),
            smp::optim::AdaDelta{}) {}

  /// One pass over the images. What does not fill a batch at the end is left out.
  /// @return the mean loss
  double epoch(const Images& images, int epoch, std::ostream& log) {
    const auto order = shuffled(images.size(), options_.seed, epoch);
    const auto batch = static_cast<std::size_t>(options_.batch),
               share = batch / static_cast<std::size_t>(feeds().size());
    const std::size_t steps = images.size() / batch;
    const auto begin = std::chrono::steady_clock::now();
    double sum = 0;
    for (std::size_t s = 0; s < steps; ++s) {
      const std::size_t first = s * batch + static_cast<std::size_t>(feeds().rank()) * share;
      const Batch<T> mine(worker_.memory(), images, std::span(order).subspan(first, share));
      const auto losses = smp::step(context_, trainer_, typename Net<T>::Loss(), {mine.x}, mine.labels,
                                    {.microbatches = options_.microbatches});
      const double loss = mean_of_all(losses.microbatches);
      const double norm = trainer_.step(context_, options_.lr);
      sum += loss;
      if (worker_.rank() != 0) continue;
      char line[160];
      std::snprintf(line, sizeof(line), R"({"epoch": %d, "step": %zu, "loss": %.17g, "grad_norm": %.17g})", epoch,
                    s + 1, loss, norm);
      log << line << '\n';
      if ((s + 1) % 100 == 0) {
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        std::fprintf(stderr, "epoch %d, step %zu of %zu: loss %.3f, %.0f images/s\n", epoch, s + 1, steps, loss,
                     static_cast<double>((s + 1) * batch) / seconds.count());
      }
    }
    return sum / static_cast<double>(steps);
  }

  /// What the net makes of images that it has not learnt.
  struct Score {
    double accuracy;  ///< part of them that is recognised
    double loss;      ///< mean
  };

  /// Judges the net; ranks share the images.
  Score score(const Images& images) {
    auto ctx = context_;
    smp::TensorOf<double> sums(worker_.memory(), {2}, smp::MemoryUse::buffer);
    std::fill(sums.begin(), sums.end(), 0);
    std::vector<std::uint32_t> mine;
    for (auto i = static_cast<std::uint32_t>(feeds().rank()); i < images.size();
         i += static_cast<std::uint32_t>(feeds().size()))
      mine.push_back(i);
    // Ranks that have parts of a layer run it together: some of them with an image again, which does not count.
    const std::size_t ranks = static_cast<std::size_t>(feeds().size()), own = mine.size();
    mine.resize((images.size() + ranks - 1) / ranks, 0);
    for (std::size_t first = 0; first < mine.size(); first += 100) {
      const Batch<T> batch(worker_.memory(), images,
                           std::span(mine).subspan(first, std::min<std::size_t>(100, mine.size() - first)));
      // On every rank of a pipeline.
      const auto logs = smp::predict(ctx, trainer_, {batch.x}, options_.microbatches).concat();
      for (std::size_t i = 0; i < batch.labels.size() && first + i < own; ++i) {
        const T* row = logs.data() + i * Images::classes;
        const auto label = batch.labels.data()[i];
        sums.data()[0] += std::max_element(row, row + Images::classes) == row + label ? 1 : 0;
        sums.data()[1] -= static_cast<double>(row[label]);
      }
    }
    feeds().all_reduce(ctx.stream(), sums, sums, smp::sum, smp::Purpose::loss);
    ctx.stream().synchronize();
    const auto count = static_cast<double>(images.size());
    return {sums.data()[0] / count, sums.data()[1] / count};
  }

  /// Most bytes that this rank has used for one purpose.
  [[nodiscard]] std::size_t peak(smp::MemoryUse use) { return worker_.memory()[use].peak; }

 private:
  using Worker = smp::Worker<Comm, smp::DynamicTopology>;

  using Model = smp::Pipeline<smp::Schedule::Interleaved, typename Net<T>::Layers>;

  auto& tp() { return worker_.groups()[smp::Group::tp]; }
  /// The ranks that have images of their own.
  auto& feeds() { return worker_.groups()[smp::Group::dp]; }

  /// The mean over the images of all ranks, each of which has equally many.
  double mean_of_all(const smp::StepOutput<smp::TensorOf<T>>& losses) {
    auto mean = losses.reduce_mean();
    feeds().all_reduce(context_.stream(), mean, mean, smp::average, smp::Purpose::loss);
    context_.stream().synchronize();
    return static_cast<double>(mean.data()[0]);
  }

  Options options_;
  Worker worker_;
  typename Worker::Context context_;
  smp::DataParallel<Model, smp::optim::AdaDelta> trainer_;
};

/// Trains, judges, and prints one line for programs.
template <class T, class Comm>
void train(Comm& world, const Options& options, const Images& images, const Images& unseen) {
  smp::set_gemm_threads(smp::default_gemm_threads(world.size()));
  const auto begin = std::chrono::steady_clock::now();
  std::ofstream log;
  if (world.rank() == 0 && !options.log.empty()) {
    log.open(options.log);
    if (!log) throw smp::ConfigError("--log: '" + options.log + "' cannot be written");
  }
  Training<T, Comm> training(world, options);
  double loss = 0;
  for (int e = 1; e <= options.epochs; ++e) loss = training.epoch(images, e, log);
  const std::chrono::duration<double> trained = std::chrono::steady_clock::now() - begin;
  const auto score = training.score(unseen);
  if (world.rank() != 0) return;
  std::printf("%.2f %% of %zu images that it has not seen are recognised\n", 100 * score.accuracy, unseen.size());
  std::printf(
      R"({"accuracy": %.4f, "test_loss": %.17g, "train_loss": %.17g, "epochs": %d, "ranks": %d, "tp": %d, "pp": %d, )"
      R"("dtype": "%s", "checkpointing": "%s", "gemm": "%s", "train_seconds": %.1f, )"
      R"("parameter_bytes": %zu, "peak_activation_bytes": %zu, "peak_buffer_bytes": %zu})"
      "\n",
      score.accuracy, score.loss, loss, options.epochs, options.ranks, options.tp, options.pp, options.dtype.c_str(),
      options.checkpointing.c_str(), smp::gemm_kernel<T>().c_str(), trained.count(),
      training.peak(smp::MemoryUse::parameter), training.peak(smp::MemoryUse::activation),
      training.peak(smp::MemoryUse::buffer));
}
