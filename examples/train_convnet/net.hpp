// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The net: modules of the library and of this example, with strategies around some of them.

#include <cstdint>

#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/relu.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/sequential.hpp>

#include "modules.hpp"

/// From images [samples, 28, 28, 1] to features [samples, 24, 24, 64].
template <class T>
struct Convolutions
    : smp::Sequential<Convolution<T>, smp::nn::Relu<T>, Convolution<T>, smp::nn::Relu<T>, smp::nn::Dropout<T>> {
  explicit Convolutions(double dropout)
      : Convolutions::Sequential(Convolution<T>(1, 32), {}, Convolution<T>(32, 64), {}, smp::nn::Dropout<T>(dropout)) {}
};

/// From images to the logarithms of the probabilities of 10 classes. With `checkpointing` the convolutions, as one, and
/// the first linear layer keep their inputs only, and compute the rest again in backward.
template <class T>
struct Net : smp::Sequential<smp::Checkpointed<Convolutions<T>, smp::dynamic>, MaxPool<T>, Flatten<T>,
                             smp::Checkpointed<smp::nn::Linear<T>, smp::dynamic>, smp::nn::Relu<T>, smp::nn::Dropout<T>,
                             smp::nn::Linear<T>, LogSoftmax<T>> {
  Net(double dropout, bool checkpointing)
      : Net::Sequential({Convolutions<T>(dropout), checkpointing}, {}, {}, {{12 * 12 * 64, 128}, checkpointing}, {},
                        smp::nn::Dropout<T>(dropout), {128, 10}, {}) {}
};
