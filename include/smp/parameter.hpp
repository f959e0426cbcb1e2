// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Parameters: a declaration, and a handle to storage that a strategy places. A module never owns the values it learns;
/// it asks for them where it uses them.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <smp/error.hpp>
#include <smp/float16.hpp>
#include <smp/parameter_groups.hpp>
#include <smp/random.hpp>
#include <smp/tensor.hpp>

namespace smp {

/// Which slice of a parameter this rank's module holds: part `part` of `parts` of dimension `dim`, taken in each of
/// `blocks` equal blocks of it (3 for query, key and value in one matrix). If the dimension need not divide, all parts
/// have ceil(size / parts) of it and the last ones what is left.
struct Cut {
  int dim = -1;    ///< -1: all of it
  int part = 0;    ///< which slice
  int parts = 1;   ///< of how many
  int blocks = 1;  ///< each of which is cut by itself

  bool uneven = false;  ///< the dimension need not divide

  /// Steps along the dimension before this part, if it has `size` of them. For one block.
  [[nodiscard]] constexpr std::int64_t begin(std::int64_t size) const noexcept {
    const std::int64_t before = part * ((size + parts - 1) / parts);
    return before < size ? before : size;
  }
  /// Steps along the dimension in this part, of all blocks.
  [[nodiscard]] constexpr std::int64_t steps(std::int64_t size) const noexcept {
    if (!uneven) return size / parts;
    const std::int64_t left = size - begin(size), most = (size + parts - 1) / parts;
    return left < most ? left : most;
  }
};

/// Initial values, as a function of the position alone: any rank can make any part of a parameter.
struct Init {
  /// How values are drawn.
  enum class Kind : unsigned char { zeros, ones, normal, uniform };

  Kind kind = Kind::zeros;  ///< how
  double scale = 0;         ///< standard deviation of `normal`; `uniform` is in [-scale, scale)

  /// The value at `index` of the whole parameter; normal by Box and Muller.
  [[nodiscard]] double value(const RandomStream& stream, std::uint64_t index) const {
    switch (kind) {
      case Kind::zeros:
        return 0;
      case Kind::ones:
        return 1;
      case Kind::uniform:
        return scale * (2 * stream.uniform(index) - 1);
      case Kind::normal:
        break;
    }
    const double radius = std::sqrt(-2 * std::log(1 - stream.uniform(2 * index)));
    return scale * radius * std::cos(2 * std::numbers::pi * stream.uniform(2 * index + 1));
  }
};

class ParameterBase;

/// A range of parameters that is stored, gathered, reduced and updated as one. The strategy owns it, and lets `value`
/// and `grad` point at what is on this rank now.
struct Block {
  /// The place of one parameter in the block.
  struct Segment {
    std::size_t begin = 0;                       ///< first element
    std::size_t end = 0;                         ///< behind the last element
    std::string name;                            ///< path in the whole model without wrappers, or the name of the tie
    const ParameterBase* declaration = nullptr;  ///< shape, cut and initial values
    UpdateRule rule{};                           ///< how it is updated
  };

  void* value = nullptr;            ///< null: not on this rank now
  void* grad = nullptr;             ///< null: not on this rank now, or frozen
  std::size_t size = 0;             ///< elements
  std::size_t element_bytes = 0;    ///< of a value
  bool frozen = false;              ///< has no gradient
  bool persistent = false;          ///< is never sharded
  bool grad_taken = false;          ///< somebody has asked for the gradient since the strategy last looked
  bool cut = false;                 ///< the tensor-parallel ranks have other parts; if the layout keeps those apart
  bool summed_over_tp = false;      ///< the tensor-parallel ranks have summands of its gradient
  std::string tie{};                ///< of its only parameter, if that is tied
  bool shared_by_stages = false;    ///< other stages of a pipeline have a copy
  bool counted = true;              ///< in norms and files: if it is shared, by the first stage that has it
  std::vector<Segment> segments{};  ///< in order
  int users = 0;                    ///< units that hold a handle
  int id = 0;                       ///< place in the layout
};

/// Elements where they are now. Valid in the call that asked for it: without default constructor and assignment, it
/// cannot become a member of a `Saved`, where it would outlive the storage.
template <class T>
class View {
 public:
  /// `shape` elements at `data`.
  View(T* data, const Shape& shape) noexcept : data_(data), shape_(shape) {}
  View(const View&) = default;
  View& operator=(const View&) = delete;

  /// The first element. Tasks capture this, never the parameter.
  [[nodiscard]] T* data() const noexcept { return data_; }
  /// The sizes of this rank's slice.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// Number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return shape_.elements(); }

 private:
  T* data_;
  Shape shape_;
};

/// What a parameter declares, whatever the type of its values.
class ParameterBase {
 public:
  /// @param shape the sizes of the whole parameter, on all ranks together
  /// @throws ConfigError if the cut does not divide the dimension
  explicit ParameterBase(const Shape& shape, Init init = {}, Cut cut = {}, bool frozen = false)
      : shape_(shape), init_(init), cut_(cut), frozen_(frozen) {
    if (cut.dim >= 0 && (static_cast<std::size_t>(cut.dim) >= shape.rank() ||
                         (!cut.uneven && shape[cut.dim] % (std::int64_t{cut.parts} * cut.blocks) != 0) ||
                         (cut.uneven && cut.blocks != 1))) {
      throw ConfigError("a parameter of shape " + to_string(shape) + " cannot be cut into " +
                        std::to_string(cut.blocks) + " x " + std::to_string(cut.parts) + " parts along dimension " +
                        std::to_string(cut.dim));
    }
  }

  /// The sizes of the whole parameter.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// The sizes of this rank's slice.
  [[nodiscard]] Shape local_shape() const noexcept {
    return cut_.dim < 0 ? shape_ : shape_.with(cut_.dim, cut_.steps(shape_[cut_.dim]));
  }
  /// Elements of this rank's slice.
  [[nodiscard]] std::size_t size() const noexcept { return local_shape().elements(); }
  /// Which slice this rank holds.
  [[nodiscard]] const Cut& cut() const noexcept { return cut_; }
  /// Initial values.
  [[nodiscard]] const Init& init() const noexcept { return init_; }
  /// Not learnt.
  [[nodiscard]] bool frozen() const noexcept { return frozen_; }

  /// The position in the whole parameter of element `local` of this rank's slice.
  [[nodiscard]] std::size_t global_index(std::size_t local) const noexcept {
    if (cut_.dim < 0) return local;
    std::size_t inner = 1;  // elements of one step along the cut dimension
    for (std::size_t d = static_cast<std::size_t>(cut_.dim) + 1; d < shape_.rank(); ++d) {
      inner *= static_cast<std::size_t>(shape_[static_cast<int>(d)]);
    }
    const auto parts = static_cast<std::size_t>(cut_.parts);
    const std::size_t whole = static_cast<std::size_t>(shape_[cut_.dim]);
    const auto here = static_cast<std::size_t>(cut_.steps(shape_[cut_.dim]));
    const std::size_t step = local / inner % here;
    const std::size_t outer = local / inner / here;
    std::size_t global_step = step + static_cast<std::size_t>(cut_.begin(shape_[cut_.dim]));
    if (!cut_.uneven) {
      const std::size_t run = whole / (parts * static_cast<std::size_t>(cut_.blocks));  // consecutive steps of one part
      global_step = (step / run * parts + static_cast<std::size_t>(cut_.part)) * run + step % run;
    }
    return (outer * whole + global_step) * inner + local % inner;
  }

  /// Where the strategy has placed this parameter. Two tied parameters have one place.
  void place(Block* block, std::size_t offset) noexcept {
    block_ = block;
    offset_ = offset;
  }
  /// The block that the parameter is in, or null before it has been placed.
  [[nodiscard]] Block* block() const noexcept { return block_; }
  /// Elements before the parameter in its block.
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

 protected:
  /// @throws Error if `storage` is null
  template <class T>
  [[nodiscard]] View<T> view(void* storage, const char* what) const {
    if (storage == nullptr && size() == 0) return {nullptr, local_shape()};  // it has no place, but a shape
    if (storage == nullptr) throw Error(describe() + what);
    return {static_cast<T*>(storage) + offset_, local_shape()};
  }
  /// The parameter in messages.
  [[nodiscard]] std::string describe() const {
    if (block_ != nullptr) {
      for (const Block::Segment& s : block_->segments) {
        if (s.begin == offset_) return "the parameter " + s.name;
      }
    }
    return "a parameter of shape " + to_string(shape_);
  }

 private:
  Shape shape_;
  Init init_;
  Cut cut_;
  bool frozen_;
  Block* block_ = nullptr;
  std::size_t offset_ = 0;
};

/// What the gradient of a `T` is kept in: 16-bit values have gradients in single precision.
template <class T>
using GradientElement = std::conditional_t<sizeof(T) == 2, float, T>;

/// A parameter with values of type `T`.
template <class T>
class ParameterOf : public ParameterBase {
 public:
  using value_type = T;  ///< of the values
  using ParameterBase::ParameterBase;

  /// The values, to read.
  /// @throws Error outside of the parameter's unit, where they need not be on this rank
  [[nodiscard]] View<const T> value() const {
    return view<const T>(
        block() == nullptr ? nullptr : block()->value,
        " is read where its values are not on this rank: outside of its unit, or before a strategy has "
        "placed it; another unit that uses it says so with the same tie, or with register_parameter");
  }
  /// The gradient, to add to; for backward.
  /// @throws Error outside of the backward of the parameter's unit, or if it is frozen
  [[nodiscard]] View<GradientElement<T>> grad() const {
    if (block() != nullptr) block()->grad_taken = true;
    return view<GradientElement<T>>(block() == nullptr ? nullptr : block()->grad,
                                    ": its gradient is written where it is not on this rank: outside of the backward "
                                    "of its unit, or the parameter is frozen");
  }
};

using Parameter = ParameterOf<float>;     ///< in single precision
using Parameter64 = ParameterOf<double>;  ///< in double precision

static_assert(!std::is_default_constructible_v<View<const float>> && !std::is_copy_assignable_v<View<const float>>);

}  // namespace smp
