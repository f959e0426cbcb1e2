// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Modules of your own: plain types with Input, Output, Saved, forward and backward. Their work is enqueued in the
/// stream of the context; tasks get pointers and numbers, never the module itself.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

#include "kernels.hpp"

/// @throws smp::ConfigError unless `shape` is [samples, height, width, channels]
inline ImageSize image_size(const smp::Shape& shape) {
  if (shape.rank() == 4) return {shape[0], shape[1], shape[2], shape[3]};
  throw smp::ConfigError("images are [samples, height, width, channels], not " + smp::to_string(shape));
}

/// Convolution with 3 x 3 weights and no padding: the output has two pixels less in height and in width.
template <class T>
struct Convolution {
  using Input = smp::TensorOf<T>;
  using Output = smp::TensorOf<T>;
  struct Saved {
    Input x;
    static constexpr auto fields() { return smp::fields(smp::field("x", &Saved::x)); }
  };

  smp::ParameterOf<T> weight, bias;

  Convolution(std::int64_t in, std::int64_t out) : weight({out, 9 * in}, usual(in)), bias({out}, usual(in)) {}
  static smp::Init usual(std::int64_t in) {
    return {smp::Init::Kind::uniform, 1 / std::sqrt(9 * static_cast<double>(in))};
  }
  static constexpr auto fields() {
    return smp::fields(smp::field("weight", &Convolution::weight), smp::field("bias", &Convolution::bias));
  }

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const ImageSize size = image_size(x.shape());
    Output y(ctx.memory(), {size.samples, size.height - 2, size.width - 2, bias.shape()[0]});
    Input patches(ctx.memory(), {size.patches(), 9 * size.channels}, smp::MemoryUse::buffer);
    ctx.stream().enqueue([size, out = bias.shape()[0], in = x.data(), w = weight.value().data(),
                          b = bias.value().data(), p = patches.data(),
                          to = y.data()] { convolution_forward(size, out, in, w, b, p, to); });
    saved.x = x;
    return y;
  }
  Input backward(auto& ctx, const Output& dy, Saved& saved) {
    const ImageSize size = image_size(saved.x.shape());
    Input dx(ctx.memory(), saved.x.shape());
    Input patches(ctx.memory(), {size.patches(), 9 * size.channels}, smp::MemoryUse::buffer);
    ctx.stream().enqueue([size, out = bias.shape()[0], x = std::as_const(saved.x).data(), w = weight.value().data(),
                          from = dy.data(), p = patches.data(), to = dx.data(), dw = weight.grad().data(),
                          db = bias.grad().data()] { convolution_backward<T>(size, out, x, w, from, p, to, dw, db); });
    return dx;
  }
};

/// The largest of 2 x 2 pixels, channel by channel; of equal ones the first. An odd row or column at the end is left
/// out.
template <class T>
struct MaxPool {
  using Input = smp::TensorOf<T>;
  using Output = smp::TensorOf<T>;
  struct Saved {
    smp::Shape shape;
    smp::TensorOf<std::int32_t> which;  // of the elements of the input
    static constexpr auto fields() { return smp::fields(smp::field("which", &Saved::which)); }
  };

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    const ImageSize size = image_size(x.shape());
    Output y(ctx.memory(), {size.samples, size.height / 2, size.width / 2, size.channels});
    saved = {x.shape(), {ctx.memory(), y.shape()}};
    ctx.stream().enqueue([size, from = x.data(), to = y.data(), which = saved.which.data()] {
      for_each_window(size, [=](std::int64_t i, const std::array<std::int64_t, 4>& candidates) {
        const auto best = *std::max_element(candidates.begin(), candidates.end(),
                                            [from](auto a, auto b) { return from[a] < from[b]; });
        to[i] = from[best];
        which[i] = static_cast<std::int32_t>(best);
      });
    });
    return y;
  }
  Input backward(auto& ctx, const Output& dy, Saved& saved) {
    Input dx(ctx.memory(), saved.shape);
    ctx.stream().enqueue([n = dx.size(), outputs = dy.size(), from = dy.data(), to = dx.data(),
                          which = std::as_const(saved.which).data()] {
      std::fill_n(to, n, T(0));
      for (std::size_t i = 0; i < outputs; ++i) to[which[i]] = from[i];
    });
    return dx;
  }
};

/// [samples, ...] as [samples, elements].
template <class T>
struct Flatten {
  using Input = smp::TensorOf<T>;
  using Output = smp::TensorOf<T>;
  struct Saved {
    smp::Shape shape;
  };

  Output forward(auto&, const Input& x, Saved& saved) const {
    saved.shape = x.shape();
    return x.reshaped({x.shape()[0], static_cast<std::int64_t>(x.shape().with(0, 1).elements())});
  }
  Input backward(auto&, const Output& dy, Saved& saved) { return dy.reshaped(saved.shape); }
};

/// The logarithm of the probability of each class, from [samples, classes] numbers.
template <class T>
struct LogSoftmax {
  using Input = smp::TensorOf<T>;
  using Output = smp::TensorOf<T>;
  struct Saved {
    Output y;
    static constexpr auto fields() { return smp::fields(smp::field("y", &Saved::y)); }
  };

  Output forward(auto& ctx, const Input& x, Saved& saved) const {
    Output y(ctx.memory(), x.shape());
    ctx.stream().enqueue([n = x.shape()[0], classes = x.shape()[1], row = x.data(), to = y.data()]() mutable {
      for (std::int64_t s = 0; s < n; ++s, row += classes, to += classes) {
        const T largest = *std::max_element(row, row + classes);
        T sum = 0;
        for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
        for (std::int64_t c = 0; c < classes; ++c) to[c] = row[c] - largest - std::log(sum);
      }
    });
    saved.y = y;
    return y;
  }
  Input backward(auto& ctx, const Output& dy, Saved& saved) {
    Input dx(ctx.memory(), dy.shape());
    ctx.stream().enqueue([n = dy.shape()[0], classes = dy.shape()[1], y = std::as_const(saved.y).data(),
                          from = dy.data(), to = dx.data()]() mutable {
      for (std::int64_t s = 0; s < n; ++s, y += classes, from += classes, to += classes) {
        T sum = 0;
        for (std::int64_t c = 0; c < classes; ++c) sum += from[c];
        for (std::int64_t c = 0; c < classes; ++c) to[c] = from[c] - std::exp(y[c]) * sum;
      }
    });
    return dx;
  }
};

/// The mean over the samples of minus the logarithm of the probability of the right class.
template <class T>
struct NegativeLogLikelihood {
  using Input = std::tuple<smp::TensorOf<T>, smp::Ids>;  // logarithms [samples, classes], right classes [samples]
  using Output = smp::TensorOf<T>;                       // one number
  struct Saved {
    smp::Shape shape;
    smp::Ids targets;
    static constexpr auto fields() { return smp::fields(smp::field("targets", &Saved::targets)); }
  };

  Output forward(auto& ctx, const Input& input, Saved& saved) const {
    const auto& [x, targets] = input;
    Output loss(ctx.memory(), {});
    ctx.stream().enqueue(
        [n = x.shape()[0], classes = x.shape()[1], logs = x.data(), right = targets.data(), to = loss.data()] {
          *to = 0;
          for (std::int64_t s = 0; s < n; ++s) *to -= logs[s * classes + right[s]] / static_cast<T>(n);
        });
    saved = {x.shape(), targets};
    return loss;
  }
  smp::GradOf<Input> backward(auto& ctx, const Output& dloss, Saved& saved) {
    smp::TensorOf<T> dx(ctx.memory(), saved.shape);
    ctx.stream().enqueue([n = saved.shape[0], classes = saved.shape[1], right = std::as_const(saved.targets).data(),
                          from = dloss.data(), to = dx.data()] {
      std::fill_n(to, n * classes, T(0));
      for (std::int64_t s = 0; s < n; ++s) to[s * classes + right[s]] = -*from / static_cast<T>(n);
    });
    return {dx, smp::NoGrad{}};
  }
};
