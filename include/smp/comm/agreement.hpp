// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// In what two calls differ that ought to be the same operation on two ranks.

#include <smp/comm/call.hpp>

#include <string>

namespace smp::comm {

/// "all_reduce of 12 float (sum) at train.cpp:80": one side of a disagreement.
[[nodiscard]] inline std::string summary(const Call& call) {
  const std::size_t count = call.operation == Operation::recv ? call.recv_count : call.count;
  std::string text = name(call.operation);
  if (call.operation != Operation::barrier) text += " of " + std::to_string(count) + " " + name(call.element);
  if (call.reduction.op != ReduceOp::none) text += std::string(" (") + name(call.reduction.op) + ")";
  if (call.operation == Operation::broadcast || call.operation == Operation::reduce) {
    text += " with root " + std::to_string(call.peer);
  }
  return text + " at " + place(call.where);
}

/// The field in which two calls of a collective operation differ, or null. Of the `_v` forms a rank states only its
/// own count beside the list; the lists are compared by length and contents.
[[nodiscard]] inline const char* differing_field(const Call& a, const Call& b) noexcept {
  if (a.operation != b.operation) return "operation";
  if (a.element != b.element || a.element_bytes != b.element_bytes) return "element type";
  if (a.reduction.op != b.reduction.op) return "reduction";
  const bool rooted = a.operation == Operation::broadcast || a.operation == Operation::reduce;
  if (rooted && a.peer != b.peer) return "root";
  if (a.counts.size() != b.counts.size()) return "counts";
  for (std::size_t i = 0; i < a.counts.size(); ++i) {
    if (a.counts[i] != b.counts[i]) return "counts";
  }
  if (a.counts.empty() && a.count != b.count) return "count";
  return nullptr;
}

/// "the ranks disagree about the count: rank 0 calls ..., rank 1 calls ..."
[[nodiscard]] inline std::string disagreement(const char* field, int rank_a, const std::string& a, int rank_b,
                                              const std::string& b) {
  return std::string("the ranks disagree about the ") + field + ": rank " + std::to_string(rank_a) + " calls " + a +
         ", rank " + std::to_string(rank_b) + " calls " + b;
}

}  // namespace smp::comm
