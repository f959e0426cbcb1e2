// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The net: modules of the library and of this example, with strategies around some of them.

#include <cstdint>

#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/relu.hpp>
#include <smp/nn/tensor_parallel.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/lifted.hpp>
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
/// the first linear layer keep their inputs only, and compute the rest again in backward. Each rank has images of its
/// own; of the first linear layer, which has nearly all parameters, tensor-parallel ranks have parts: they exchange
/// slices of its inputs, and sum its outputs.
template <class T>
class Net {
  template <class M>
  using Maybe = smp::Checkpointed<M, smp::dynamic>;
  using First = smp::TensorParallel<smp::nn::Linear<T>, smp::Split::rows, smp::Varying>;

 public:
  using Layers = smp::Sequential<Maybe<Convolutions<T>>, MaxPool<T>, Flatten<T>, Maybe<First>, smp::nn::Relu<T>,
                                 smp::nn::Dropout<T>, smp::nn::Linear<T>, LogSoftmax<T>>;  ///< all of it
  using Loss = smp::Lifted<NegativeLogLikelihood<T>, smp::Varying>;  ///< of the logarithms and the labels

  /// Part `rank` of `ranks`.
  static Layers make(double dropout, bool checkpointing, int rank, int ranks) {
    return Layers({Convolutions<T>(dropout), checkpointing}, {}, {},
                  {First({12 * 12 * 64, 128}, rank, ranks), checkpointing}, {}, smp::nn::Dropout<T>(dropout), {128, 10},
                  {});
  }
};
