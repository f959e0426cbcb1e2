// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A module with all it needs to run alone: for tests of modules, yours included.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/layout.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>

namespace smp::testing {

/// No other ranks, so no communicators.
struct NoGroups {};

/// The surroundings of a module that is tested alone.
using Context = smp::Context<HostStream, NoGroups>;

/// One rank that owns a module, the values and gradients of its parameters, a stream that runs tasks at once, and
/// memory.
/// @tparam M any module whose parameters are of type float or double
template <class M>
class OneRank {
 public:
  /// Parameters get their initial values, gradients are zero.
  explicit OneRank(M m, std::uint64_t seed = 1) : model(std::move(m)), layout_(model), seed_(seed) {
    for (Block& b : layout_.blocks()) {
      bytes_.emplace_back(b.size * b.element_bytes);
      b.value = bytes_.back().data();
      bytes_.emplace_back(b.frozen ? 0 : b.size * b.element_bytes);
      b.grad = b.frozen ? nullptr : bytes_.back().data();
      for (const Block::Segment& s : b.segments) fill(b, s, s.declaration->init(), stream_of(s.name));
    }
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;

  /// What a module runs in.
  [[nodiscard]] Context context() { return {stream, memory, groups_, seed_}; }
  /// Where parameters are.
  [[nodiscard]] Layout& layout() noexcept { return layout_; }

  /// All gradients zero.
  void clear_gradients() {
    for (Block& b : layout_.blocks()) {
      if (b.grad != nullptr) std::memset(b.grad, 0, b.size * b.element_bytes);
    }
  }
  /// Other values for all parameters: `mean` of those that start as ones, else zero, plus noise of deviation `scale`.
  /// Values as a user starts with, zeros and ones, would hide faults.
  void randomise(double scale) {
    for (Block& b : layout_.blocks()) {
      for (const Block::Segment& s : b.segments) {
        fill(b, s, {Init::Kind::normal, scale}, stream_of(s.name) + 1,
             s.declaration->init().kind == Init::Kind::ones ? 1 : 0);
      }
    }
  }
  /// A tensor of random numbers, normal with deviation `scale`; another one for each `stream`.
  template <class T>
  [[nodiscard]] TensorOf<T> random(const Shape& shape, std::uint64_t stream_number = 0, double scale = 1) {
    TensorOf<T> t(memory, shape);
    const Init init{Init::Kind::normal, scale};
    for (std::size_t i = 0; i < t.size(); ++i) {
      t.data()[i] = static_cast<T>(init.value({seed_, stream_of("input") + stream_number}, i));
    }
    return t;
  }
  /// Random numbers from 0 to `end` - 1.
  [[nodiscard]] Ids random_ids(const Shape& shape, std::int32_t end, std::uint64_t stream_number = 0) {
    Ids ids(memory, shape);
    const RandomStream draw{seed_, stream_of("ids") + stream_number};
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids.data()[i] = static_cast<std::int32_t>(draw.uniform(i) * end);
    }
    return ids;
  }

  M model;            ///< under test
  HostStream stream;  ///< runs tasks at once
  Memory memory;      ///< of the activations

 private:
  void fill(Block& b, const Block::Segment& s, Init init, std::uint64_t stream_number, double mean = 0) {
    for (std::size_t i = 0; i < s.end - s.begin; ++i) {
      const double x = mean + init.value({seed_, stream_number}, s.declaration->global_index(i));
      if (b.element_bytes == sizeof(double)) {
        static_cast<double*>(b.value)[s.begin + i] = x;
      } else {
        static_cast<float*>(b.value)[s.begin + i] = static_cast<float>(x);
      }
    }
  }

  Layout layout_;
  std::uint64_t seed_;
  NoGroups groups_;
  std::vector<std::vector<std::byte>> bytes_;  // values and gradients of each block
};

}  // namespace smp::testing
