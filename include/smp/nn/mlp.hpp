// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Two linear layers with a function between them, as GPT-2 names them.

#include <cstdint>
#include <utility>

#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/nn/activation.hpp>
#include <smp/nn/dropout.hpp>
#include <smp/nn/linear.hpp>
#include <smp/nn/transformer_options.hpp>
#include <smp/tensor.hpp>

namespace smp::nn {

/// c_proj(activation(c_fc(x))), with dropout.
template <class T = float>
struct Mlp {
  using Input = TensorOf<T>;   ///< [..., width]
  using Output = TensorOf<T>;  ///< the same
  /// The input, and the inner state before and after the activation.
  struct Saved {
    typename Linear<T>::Saved c_fc;            ///< with the input of the module
    typename Activation<T>::Saved activation;  ///< with the inner state
    typename Linear<T>::Saved c_proj;          ///< with the activated state
    typename Dropout<T>::Saved dropout;        ///< which samples
    static constexpr auto fields() {
      return smp::fields(smp::field("c_fc", &Saved::c_fc), smp::field("activation", &Saved::activation),
                         smp::field("c_proj", &Saved::c_proj));
    }
  };

  Linear<T> c_fc;            ///< width to inner width
  Activation<T> activation;  ///< of the inner state
  Linear<T> c_proj;          ///< inner width to width
  Dropout<T> dropout;        ///< of the output

  /// For rows of `width` numbers.
  explicit Mlp(std::int64_t width, const TransformerOptions& options = {})
      : c_fc(width, options.inner > 0 ? options.inner : 4 * width, options.bias, options.weights()),
        activation{options.activation},
        c_proj(c_fc.weight.shape()[0], width, options.bias, options.projection()),
        dropout(options.dropout) {}

  static constexpr auto fields() {
    return smp::fields(smp::field("c_fc", &Mlp::c_fc), smp::field("c_proj", &Mlp::c_proj),
                       smp::field("dropout", &Mlp::dropout));
  }

  /// @throws ConfigError if the last dimension of x is not `width`
  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    TensorOf<T> y = c_fc.forward(ctx, x, saved.c_fc);
    y = activation.forward(ctx, y, saved.activation);
    y = c_proj.forward(ctx, y, saved.c_proj);
    return dropout.forward(ctx, y, saved.dropout);
  }

  /// Both parts; what was saved is freed on the way.
  GradOf<Input> backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward>(ctx, dy, saved);
  }
  /// The gradient of the input.
  GradOf<Input> backward_input(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    return run_backward<Phase::backward_input>(ctx, dy, saved);
  }
  /// The gradients of the linear layers.
  void backward_params(auto& ctx, Saved& saved) {
    backward_params_of(c_proj, ctx, saved.c_proj);
    backward_params_of(c_fc, ctx, saved.c_fc);
  }

 private:
  template <Phase phase>
  GradOf<Input> run_backward(auto& ctx, const GradOf<Output>& dy, Saved& saved) {
    TensorOf<T> d = backward_of<phase>(c_proj, ctx, dropout.backward_input(ctx, dy, saved.dropout), saved.c_proj);
    d = activation.backward_input(ctx, std::move(d), saved.activation);
    return backward_of<phase>(c_fc, ctx, std::move(d), saved.c_fc);
  }
};

}  // namespace smp::nn
