// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What train_convnet is asked to do.

#include <string>

/// The options of the command line; `--help` explains them.
struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int limit = 0;
  int epochs = 1, batch = 64;
  double lr = 4, dropout = 0;
  std::string dtype = "f32", checkpointing = "none", log;
  int seed = 1, ranks = 1, tp = 1, pp = 1, microbatches = 1;
};
