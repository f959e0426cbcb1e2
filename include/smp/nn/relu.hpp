// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// max(x, 0).

#include <smp/nn/activation.hpp>

namespace smp::nn {

/// max(x, 0) of each element.
template <class T = float>
struct Relu : Activation<T> {
  Relu() : Activation<T>{ActivationKind::relu} {}
};

}  // namespace smp::nn
