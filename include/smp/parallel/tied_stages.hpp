// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Parameters that several stages of a pipeline use: each stage has its own copy, and their gradients are summed, so
/// that the copies stay equal in every bit.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/comm/objects.hpp>
#include <smp/device/memory.hpp>
#include <smp/error.hpp>
#include <smp/layout.hpp>
#include <smp/parameter.hpp>
#include <smp/tensor.hpp>
#include <smp/topology.hpp>

namespace smp {

/// What stages compare of a tie.
struct TieDeclaration {
  std::string name;          ///< of the tie
  std::uint64_t traits = 0;  ///< a hash of all that must be equal: shape, cut, type, initial values, decay, rate
};

/// How it travels.
template <>
struct comm::ObjectTraits<TieDeclaration> {
  static void pack(const TieDeclaration& tie, Bytes& bytes) {
    comm::pack(tie.name, bytes);
    comm::pack(tie.traits, bytes);
  }
  static TieDeclaration unpack(ByteReader& reader) {
    auto name = comm::unpack<std::string>(reader);
    return {std::move(name), comm::unpack<std::uint64_t>(reader)};
  }
};

/// The ties between stages of one rank.
class TiedStages {
 public:
  /// Finds the ties of `layout` that other stages have, too, and marks their blocks. All ranks of the PP group call it.
  /// @throws ConfigError on all of them if the declarations of a tie differ
  template <class Ctx>
  TiedStages(Ctx& ctx, Layout& layout) {
    auto& stages = ctx.groups()[Group::pp];
    if (stages.size() == 1) return;
    std::vector<TieDeclaration> own;
    for (Block& block : layout.blocks()) {
      if (!block.tie.empty()) own.push_back({block.tie, traits(block)});
    }
    const std::vector<std::vector<TieDeclaration>> all = comm::all_gather_object(stages, own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      for (const TieDeclaration& tie : all[rank]) expect_equal(tie, rank, all);
    }
    for (Block& block : layout.blocks()) {
      if (block.tie.empty()) continue;
      Tie tie{&block, {}};
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        if (find(all[rank], block.tie) != nullptr) tie.ranks.push_back(static_cast<int>(rank));
      }
      if (tie.ranks.size() < 2) continue;
      block.shared_by_stages = true;
      block.counted = tie.ranks.front() == stages.rank();
      std::size_t at = ties_.size();
      while (at > 0 && ties_[at - 1].block->tie > block.tie) --at;
      ties_.insert(ties_.begin() + static_cast<std::ptrdiff_t>(at), std::move(tie));
    }
  }

  /// True if there are some.
  [[nodiscard]] bool any() const noexcept { return !ties_.empty(); }

  /// Sums gradients over the stages, in the order of the stages. `gradient(block, f)` calls `f(span)` with what is to
  /// be summed, of equal size on all stages, or does not.
  template <class Ctx, class F>
  void sum(Ctx& ctx, F&& gradient) const {
    for (const Tie& tie : ties_) {
      if (tie.block->frozen) continue;
      gradient(*tie.block, [&](auto part) { sum_part(ctx, tie, part); });
    }
  }

 private:
  struct Tie {
    Block* block;
    std::vector<int> ranks;  // of the PP group, that have it
  };

  static const TieDeclaration* find(const std::vector<TieDeclaration>& declared, const std::string& name) {
    for (const TieDeclaration& tie : declared) {
      if (tie.name == name) return &tie;
    }
    return nullptr;
  }
  /// Compares what `rank` declares with what the first stage does that has the tie.
  static void expect_equal(const TieDeclaration& tie, std::size_t rank,
                           const std::vector<std::vector<TieDeclaration>>& all) {
    for (std::size_t first = 0; first < rank; ++first) {
      const TieDeclaration* const other = find(all[first], tie.name);
      if (other == nullptr) continue;
      if (other->traits == tie.traits) return;
      throw ConfigError(
          "\"" + tie.name + "\" is tied over stages of the pipeline, but rank " + std::to_string(rank) +
          " of the PP group declares another shape, cut, type, decay, rate or other initial values than the "
          "first stage that has it");
    }
  }

  static std::uint64_t traits(const Block& block) {
    const Block::Segment& s = block.segments.front();
    const ParameterBase& p = *s.declaration;
    const std::string text = to_string(p.shape()) + " " + std::to_string(p.cut().dim) + " " +
                             std::to_string(p.cut().parts) + " " + std::to_string(block.element_bytes) + " " +
                             std::to_string(static_cast<int>(p.init().kind)) + " " + std::to_string(p.init().scale) +
                             " at " + std::to_string(s.rule.rate) + (s.rule.decay ? " decay" : "") +
                             (block.summed_over_tp ? " summed" : "") + (block.frozen ? " frozen" : "");
    return stream_of(text);
  }

  /// The first holder adds up, and gives the sum to the others.
  template <class Ctx, class T>
  static void sum_part(Ctx& ctx, const Tie& tie, std::span<T> part) {
    auto& stages = ctx.groups()[Group::pp];
    auto& compute = ctx.stream();
    if (stages.rank() != tie.ranks.front()) {
      stages.send(compute, part, tie.ranks.front(), Purpose::gradient);
      stages.recv(compute, part, tie.ranks.front(), Purpose::gradient);
      return;
    }
    TensorOf<T> other(ctx.memory(), {static_cast<std::int64_t>(part.size())}, MemoryUse::buffer);
    for (std::size_t i = 1; i < tie.ranks.size(); ++i) {
      stages.recv(compute, other, tie.ranks[i], Purpose::gradient);
      compute.enqueue([part, other = other.data()] {
        for (std::size_t k = 0; k < part.size(); ++k) part[k] += other[k];
      });
    }
    for (std::size_t i = 1; i < tie.ranks.size(); ++i) stages.send(compute, part, tie.ranks[i], Purpose::gradient);
  }

  std::vector<Tie> ties_;  // in the order of their names
};

}  // namespace smp
