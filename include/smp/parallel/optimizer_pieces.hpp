// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Which part of a bucket a rank updates when the state of the optimizer is cut over all that hold the parameters, and
/// the state of those parts.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <smp/comm/call.hpp>
#include <smp/device/memory.hpp>
#include <smp/optim/range.hpp>
#include <smp/parallel/flat_storage.hpp>
#include <smp/parallel/gradient_buckets.hpp>

namespace smp {

/// A rank in a group.
struct RankOf {
  int rank = 0;   ///< its place
  int ranks = 1;  ///< how many there are
};

/// A range cut over the ranks of a group into pieces of ceil(size / ranks) elements; the last ones may be shorter, or
/// empty.
struct EvenCut {
  std::vector<std::size_t> counts;  ///< elements of each piece
  std::size_t begin = 0;            ///< of the own piece
  std::size_t end = 0;              ///< behind it

  EvenCut() = default;
  /// `size` elements over the ranks of a group.
  EvenCut(std::size_t size, RankOf own) {
    const comm::Pieces pieces(size, static_cast<std::size_t>(own.ranks), 1);
    for (std::size_t r = 0; r < static_cast<std::size_t>(own.ranks); ++r) counts.push_back(pieces.size(r));
    begin = pieces.offset(static_cast<std::size_t>(own.rank));
    end = begin + counts[static_cast<std::size_t>(own.rank)];
  }
  /// The own piece of such a range.
  template <class T>
  [[nodiscard]] std::span<T> own(std::span<T> range) const noexcept {
    return range.subspan(begin, end - begin);
  }
  /// More than one rank has a piece.
  [[nodiscard]] bool shared() const noexcept { return counts.size() > 1; }
};

/// One bucket: what the reduction leaves on this rank, and what this rank updates of it. They differ where the
/// tensor-parallel ranks are left with the same sums.
template <class T>
struct OptimizerPiece {
  /// What an optimizer treats alike.
  struct Run {
    optim::Range<T> range;  ///< values, gradients, state
    UpdateRule rule;        ///< how they are updated
    bool counted;           ///< in the norm
  };
  std::span<T> values;      ///< of the bucket
  std::span<T> gradients;   ///< of the bucket
  EvenCut reduced;          ///< of the bucket, over those who sum
  EvenCut updated;          ///< of the own reduced part, over the tensor-parallel ranks that have copies
  std::vector<Run> runs{};  ///< what is updated

  /// Where the updated part begins in the bucket.
  [[nodiscard]] std::size_t begin() const noexcept { return reduced.begin + updated.begin; }
  /// Its elements.
  [[nodiscard]] std::size_t size() const noexcept { return updated.end - updated.begin; }
};

/// What one rank updates of all buckets, and the state of its optimizer.
class OptimizerPieces {
 public:
  OptimizerPieces() = default;
  /// @param storage a FlatStorage
  /// @param buckets of its gradients
  /// @param dp, rdp, tp this rank in its groups
  /// @param states arrays that the optimizer keeps
  template <class Storage>
  OptimizerPieces(Storage& storage, const std::vector<GradientBucket>& buckets, RankOf dp, RankOf rdp, RankOf tp,
                  Memory& memory, int states) {
    for (const GradientBucket& b : buckets) {
      b.visit([&]<class T>(std::span<T> gradients) {
        const FlatArrays<T>& arrays = storage.template arrays<T>();
        T* values = arrays.values.data() + (gradients.data() - arrays.gradients.data());
        EvenCut reduced(b.size, b.over_tp == OverTp::summands ? dp : rdp);
        EvenCut updated(reduced.end - reduced.begin, b.over_tp == OverTp::copies ? tp : RankOf{});
        pieces_.emplace_back(
            OptimizerPiece<T>{{values, b.size}, gradients, std::move(reduced), std::move(updated), {}});
      });
    }
    storage.for_each_type([&](auto& arrays) { place(arrays, memory, states); });
  }

  /// Calls `f(piece)` with the `OptimizerPiece` of a bucket.
  template <class F>
  void visit(std::size_t bucket, F&& f) const {
    std::visit(std::forward<F>(f), pieces_[bucket]);
  }
  /// Number of buckets.
  [[nodiscard]] std::size_t size() const noexcept { return pieces_.size(); }

 private:
  template <class T>
  using States = std::array<FlatArray<T>, optim::max_states>;

  /// Makes the states of one type, and the runs that use them.
  template <class T>
  void place(const FlatArrays<T>& arrays, Memory& memory, int states) {
    std::size_t all = 0;
    for_each<T>([&](const OptimizerPiece<T>& piece) { all += piece.size(); });
    auto& own = std::get<States<T>>(states_);
    for (int s = 0; s < states; ++s) own[static_cast<std::size_t>(s)] = {memory, MemoryUse::optimizer, all};
    std::size_t next = 0;
    for_each<T>([&](OptimizerPiece<T>& piece) {
      const auto bucket = static_cast<std::size_t>(piece.gradients.data() - arrays.gradients.data());
      const std::size_t begin = bucket + piece.begin(), end = begin + piece.size();
      for (FlatRun run : arrays.runs) {
        run.begin = std::max(run.begin, begin);
        run.end = std::min(run.end, end);
        if (run.begin >= run.end) continue;
        auto range = arrays.range(run);
        for (std::size_t s = 0; s < own.size(); ++s) {
          if (own[s].size() > 0) range.state[s] = own[s].data() + next;
        }
        piece.runs.push_back({range, run.rule, run.counted});
        next += run.end - run.begin;
      }
    });
  }
  template <class T, class F>
  void for_each(F f) {
    for (auto& piece : pieces_) {
      if (auto* typed = std::get_if<OptimizerPiece<T>>(&piece)) f(*typed);
    }
  }

  std::vector<std::variant<OptimizerPiece<float>, OptimizerPiece<double>>> pieces_;
  std::tuple<States<float>, States<double>> states_;
};

}  // namespace smp
