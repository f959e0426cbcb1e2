// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What all data-parallel strategies do at the end of a step: the norm of the gradient, clipping, and the update of
/// ranges. The numbers stay where the stream is: nothing here waits for the host.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <smp/device/vectorized.hpp>
#include <smp/optim/range.hpp>
#include <smp/parallel/flat_storage.hpp>

namespace smp {

/// The sum of the squares of `size` elements, in double precision and in an order that depends on `size` alone.
template <class T>
[[nodiscard]] double sum_of_squares(const T* data, std::size_t size) {
  return vectorized([=](auto) {
    constexpr std::size_t lanes = block_size;
    alignas(64) double sums[lanes] = {};
    std::size_t i = 0;
    for (; i + lanes <= size; i += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const auto x = static_cast<double>(data[i + lane]);
        sums[lane] += x * x;
      }
    }
    for (std::size_t lane = 0; i < size; ++i, ++lane) {
      const auto x = static_cast<double>(data[i]);
      sums[lane] += x * x;
    }
    double total = 0;
    for (const double s : sums) total += s;
    return total;
  });
}

/// How the gradient of a step is scaled; written and read by tasks of the compute stream.
struct GradientScale {
  double squares =
      0;  ///< sum of the squares of all gradients, as they are stored; of whole parameters, if some are cut
  double squares_of_parts = 0;  ///< the same of the parts of cut ones that are here, and then of all parts
  double norm = 0;              ///< of the gradient that is applied before clipping
  double factor = 1;            ///< what stored gradients are multiplied by

  /// The norm and the factor, from the squares.
  /// @param divisor of the stored gradients
  /// @param clip largest norm; 0: any
  void finish(double divisor, double clip) noexcept {
    norm = std::sqrt(squares + squares_of_parts) / divisor;
    factor = (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0) / divisor;  // as PyTorch's clip_grad_norm_
  }
};

/// Updates `range` in `stream`, with what `scale` has then.
template <class Stream, class Opt, class T>
void update_range(Stream& stream, const Opt& optimizer, const optim::Range<T>& range, optim::StepNumbers numbers,
                  const GradientScale* scale) {
  stream.enqueue([optimizer, numbers, scale, range]() mutable {
    numbers.gradient_factor = scale->factor;
    optimizer.update(range, numbers);
  });
}

/// Adds the squares of all gradients of `arrays` to `scale`, in `stream`.
/// @param by_part those of cut parameters are kept apart
template <class Stream, class T>
void add_squares(Stream& stream, const FlatArrays<T>& arrays, bool by_part, GradientScale* scale) {
  const auto add = [&](double* to, std::size_t begin, std::size_t size) {
    stream.enqueue([to, data = arrays.gradients.data() + begin, size] { *to += sum_of_squares(data, size); });
  };
  const bool all_counted =
      std::all_of(arrays.runs.begin(), arrays.runs.end(), [](const FlatRun& run) { return run.counted; });
  if (!by_part && all_counted) {
    add(&scale->squares, 0, arrays.gradients.size());
    return;
  }
  for (const FlatRun& run : arrays.runs) {
    if (!run.counted) continue;
    add(by_part && run.cut ? &scale->squares_of_parts : &scale->squares, run.begin, run.end - run.begin);
  }
}

/// Updates all runs of `arrays` in `stream`, with what `scale` has then.
template <class Stream, class Opt, class T>
void update_runs(Stream& stream, const Opt& optimizer, const FlatArrays<T>& arrays, const optim::StepNumbers& numbers,
                 const GradientScale* scale) {
  for (const FlatRun& run : arrays.runs) {
    update_range(stream, optimizer, arrays.range(run), numbers.under(run.rule), scale);
  }
}

}  // namespace smp
