// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// How a tensor crosses from the tensor-parallel ranks of one stage to those of another. What has equal bits on all of
/// them (`Invariant`) crosses once: each rank sends one slice of it to its own place in the tensor of the rank that
/// receives it, and these join the slices. All else, each rank sends as it has it.

#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/distribution.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>

namespace smp {

/// Most tensors of a value that crosses.
inline constexpr std::size_t most_crossing_tensors = 16;

/// Which of the tensor-parallel ranks of a stage one is.
struct TpPlace {
  std::size_t rank = 0;   ///< in the TP group
  std::size_t ranks = 1;  ///< of it
};

/// True if tensors with this tag cross as one slice a rank.
template <class Tag>
inline constexpr bool crosses_in_slices = std::is_same_v<Tag, Invariant>;

/// The slices of a tensor: `ceil(elements / ranks)` elements each, in the order of ranks; the last ones have what is
/// left, or nothing.
[[nodiscard]] constexpr comm::Pieces crossing_slices(std::size_t elements, std::size_t ranks) noexcept {
  return {elements, ranks, 1};
}

/// What one rank sends, or receives, of the elements of a tensor.
template <class Tag, class E>
[[nodiscard]] constexpr std::span<E> crossing_part(std::span<E> elements, const TpPlace& tp) noexcept {
  if constexpr (crosses_in_slices<Tag>) {
    const comm::Pieces slices = crossing_slices(elements.size(), tp.ranks);
    return elements.subspan(slices.offset(tp.rank), slices.size(tp.rank));
  } else {
    return elements;
  }
}

/// Joins the slices of what has arrived, each in its place, in the stream of the computation. All ranks of the TP group
/// call it, in one order.
/// @param each calls its argument with each tensor of the value and its tag, as `for_each_tensor` does
/// @param sizes room for the sizes of slices that are not equal; is left alone until the stream has joined them, and
///   makes itself when it is first needed
template <class Ctx, class Each>
void join_slices(Ctx& ctx, Each&& each, std::vector<std::size_t>& sizes) {
  auto& tp = ctx.groups()[Group::tp];
  const TpPlace here{static_cast<std::size_t>(tp.rank()), static_cast<std::size_t>(tp.size())};
  if (here.ranks == 1) return;
  std::size_t unequal = 0;  // tensors so far
  const auto join = [&]<class T, class Tag>(T& tensor, Tag) {
    if constexpr (crosses_in_slices<Tag>) {
      const std::span whole = TensorTraits<T>::data(tensor);
      const std::span own = crossing_part<Tag>(whole, here);
      if (whole.size() % here.ranks == 0) {
        if (!whole.empty()) tp.all_gather(ctx.stream(), own, whole, Purpose::activation);
        return;
      }
      const comm::Pieces slices = crossing_slices(whole.size(), here.ranks);
      sizes.resize(here.ranks * most_crossing_tensors);
      const std::span counts = std::span(sizes).subspan(here.ranks * unequal++, here.ranks);
      for (std::size_t r = 0; r < here.ranks; ++r) counts[r] = slices.size(r);
      tp.all_gather_v(ctx.stream(), own, whole, std::span<const std::size_t>(counts), Purpose::activation);
    }
  };
  each(join);
}

}  // namespace smp
