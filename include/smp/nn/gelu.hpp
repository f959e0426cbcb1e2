// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// x times the normal distribution function of x (Hendrycks, Gimpel: Gaussian Error Linear Units, 2016).

#include <smp/nn/activation.hpp>

namespace smp::nn {

/// How the normal distribution function is computed.
enum class GeluForm : bool {
  tanh,  ///< the approximation of GPT-2
  erf    ///< exactly
};

/// GELU of each element.
template <class T = float>
struct Gelu : Activation<T> {
  /// In the form of GPT-2 unless you say otherwise.
  explicit Gelu(GeluForm form = GeluForm::tanh)
      : Activation<T>{form == GeluForm::tanh ? ActivationKind::gelu_tanh : ActivationKind::gelu_erf} {}
};

}  // namespace smp::nn
