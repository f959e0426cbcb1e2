// SPDX-License-Identifier: Apache-2.0
// Trains a convolutional net on labelled images (Debian's dataset-fashion-mnist), with modules and a loss of its own:
//   train_convnet --epochs 1 --checkpointing each
// Options that cannot work: exit code 2 and one sentence.
// needs: blas zlib
#include <string>

#include <CLI/CLI.hpp>

#include <smp/smp.hpp>

#include "../command_line.hpp"
#include "images.hpp"
#include "options.hpp"
#include "train.hpp"

namespace {

void declare(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "folder of the images, in the four files of MNIST")->capture_default_str();
  const auto count = [&app](const char* name, int& value, const char* text, int least) {
    app.add_option(name, value, text)->transform(decimal())->check(CLI::Range(least, 1'000'000))->capture_default_str();
  };
  count("--limit", o.limit, "images to learn, and to judge the net by; 0: all", 0);
  count("--epochs", o.epochs, "passes over the images", 0);
  count("--batch", o.batch, "images of an optimizer step, over all ranks", 1);
  app.add_option("--lr", o.lr, "learning rate of AdaDelta")->capture_default_str();
  app.add_option("--dropout", o.dropout, "probability of dropping an element")->capture_default_str();
  app.add_option("--dtype", o.dtype, "type of values and gradients")
      ->check(CLI::IsMember({"f32", "f64"}))
      ->capture_default_str();
  app.add_option("--checkpointing", o.checkpointing,
                 "each: the convolutions and the first linear layer keep their input only, and compute twice")
      ->check(CLI::IsMember({"none", "each"}))
      ->capture_default_str();
  count("--seed", o.seed, "of initial values, order and dropout", 0);
  count("--ranks", o.ranks, "ranks, as threads of this process", 1);
  count("--tp", o.tp, "ranks that have parts of the first linear layer", 1);
  count("--pp", o.pp, "ranks over which the layers are spread", 1);
  count("--microbatches", o.microbatches, "parts of a batch that follow one another through the layers", 1);
  app.add_option("--log", o.log, "file for one JSON object a step");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a convolutional net on labelled images");
  declare(app, options);
  return run(app, argc, argv, [&] {
    const auto limit = static_cast<std::size_t>(options.limit);
    const Images images = Images::read(options.data, "train", limit);
    const Images unseen = Images::read(options.data, "t10k", limit);
    const auto divides = [](const char* what, int number, const char* among, int parts) {
      if (number % parts == 0) return;
      throw smp::ConfigError(std::string(what) + " " + std::to_string(number) + " cannot be divided among " + among +
                             " " + std::to_string(parts));
    };
    if (options.pp == 1) {
      divides("--batch", options.batch, "--ranks", options.ranks);
      divides("--ranks", options.ranks, "--tp", options.tp);
    } else {
      divides("--ranks", options.ranks, "--tp x --pp", options.tp * options.pp);
      divides("--batch", options.batch, "--ranks / --pp", options.ranks / options.pp);
    }
    if (images.size() < static_cast<std::size_t>(options.batch)) {
      throw smp::ConfigError("--batch " + std::to_string(options.batch) + " is more than the " +
                             std::to_string(images.size()) + " images");
    }
    smp::comm::launch(options.ranks, [&](smp::comm::Threads& world) {
      if (options.dtype == "f64") {
        train<double>(world, options, images, unseen);
      } else {
        train<float>(world, options, images, unseen);
      }
    });
  });
}
