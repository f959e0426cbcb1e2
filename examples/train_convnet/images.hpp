// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Labelled grey images, in the files of MNIST and of those who have followed it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Images of 28 x 28 pixels, and the class of each.
struct Images {
  static constexpr std::size_t pixels = std::size_t{28} * 28;
  static constexpr int classes = 10;

  std::vector<std::uint8_t> grey;    ///< row by row, image by image
  std::vector<std::uint8_t> labels;  ///< 0 to 9

  /// Reads `folder`/`name`-images-idx3-ubyte.gz and its labels; at most `limit` of them, 0: all.
  /// @throws smp::ConfigError if a file cannot be read, or is something else
  static Images read(const std::string& folder, const std::string& name, std::size_t limit);

  /// How many there are.
  [[nodiscard]] std::size_t size() const { return labels.size(); }

  /// Copies image `which[i]` for each i, with mean 0 and deviation 1 over Fashion-MNIST, and its label.
  template <class T>
  void copy(std::span<const std::uint32_t> which, T* images, std::int32_t* classes_of) const {
    constexpr double mean = 0.2860 * 255, deviation = 0.3530 * 255;
    for (const std::uint32_t image : which) {
      const std::uint8_t* from = grey.data() + image * pixels;
      for (std::size_t p = 0; p < pixels; ++p) *images++ = static_cast<T>((from[p] - mean) / deviation);
      *classes_of++ = labels[image];
    }
  }
};
