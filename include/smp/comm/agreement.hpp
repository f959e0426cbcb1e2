// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What all ranks have to agree on before they perform a collective operation, and how a disagreement is told.

#include <cstdint>
#include <string>

#include <smp/comm/call.hpp>

namespace smp::comm {

/// What a rank says of a call so that others can compare it with theirs. The counts of the `_v` forms are compared by
/// a hash, and the rank's own count, which may differ there, is left out.
struct Signature {
  Operation operation = Operation::barrier;  ///< which operation
  Element element = Element::opaque;         ///< type of the elements
  ReduceOp reduction = ReduceOp::none;       ///< of the reductions
  int root = -1;                             ///< of a broadcast or a reduce
  std::uint64_t element_bytes = 1;           ///< size of one element
  std::uint64_t count = 0;                   ///< as in `Call`; 0 in the `_v` forms
  std::uint64_t counts_size = 0;             ///< number of counts of the `_v` forms
  std::uint64_t counts_hash = 0;             ///< of these counts
  std::uint32_t line = 0;                    ///< where it was called
  const char* file = "";                     ///< where it was called
};

/// The signature of `call`.
[[nodiscard]] inline Signature signature(const Call& call) noexcept {
  Signature s;
  s.operation = call.operation;
  s.element = call.element;
  s.reduction = call.reduction.op;
  const bool rooted = call.operation == Operation::broadcast || call.operation == Operation::reduce;
  s.root = rooted ? call.peer : -1;
  s.element_bytes = call.element_bytes;
  s.count = call.operation == Operation::recv ? call.recv_count : call.count;
  if (!call.counts.empty()) s.count = 0;
  s.counts_size = call.counts.size();
  for (const std::size_t n : call.counts) s.counts_hash = (s.counts_hash ^ n) * 1099511628211u;  // FNV-1a
  s.line = call.where.line();
  s.file = call.where.file_name();
  return s;
}

/// A split, for comparison with other calls: a barrier that counts.
[[nodiscard]] inline Call split_call(CallSite where) noexcept {
  Call call;
  call.count = 1;
  call.where = where;
  return call;
}

/// "12 float", "3 elements of 24 bytes"
[[nodiscard]] inline std::string amount(const Signature& s) {
  const bool sized = s.element == Element::opaque && s.element_bytes != 1;
  return std::to_string(s.count) +
         (sized ? " elements of " + std::to_string(s.element_bytes) + " bytes" : std::string(" ") + name(s.element));
}

/// "all_reduce of 12 float (sum) at train.cpp:80": one side of a disagreement.
[[nodiscard]] inline std::string summary(const Signature& s) {
  const bool split = s.operation == Operation::barrier && s.count != 0;
  std::string text = split ? "split" : name(s.operation);
  if (s.counts_size != 0) {
    text += std::string(" of ") + name(s.element) + " in " + std::to_string(s.counts_size) + " pieces";
  } else if (s.operation != Operation::barrier && s.operation != Operation::exchange) {
    text += " of " + amount(s);
  }
  if (s.reduction != ReduceOp::none) text += std::string(" (") + name(s.reduction) + ")";
  if (s.root >= 0) text += " with root " + std::to_string(s.root);
  return text + " at " + place(s.file, s.line);
}

/// The field in which two signatures of a collective operation differ, or null.
[[nodiscard]] inline const char* differing_field(const Signature& a, const Signature& b) noexcept {
  const bool barriers = a.operation == Operation::barrier;  // one of which may be a split
  if (a.operation != b.operation || (barriers && a.count != b.count)) return "operation";
  if (a.element != b.element || a.element_bytes != b.element_bytes) return "element type";
  if (a.reduction != b.reduction) return "reduction";
  if (a.root != b.root) return "root";
  if (a.count != b.count) return "count";
  if (a.counts_size != b.counts_size || a.counts_hash != b.counts_hash) return "counts";
  return nullptr;
}

/// "the ranks disagree about the count: rank 0 calls ..., rank 1 calls ..."
[[nodiscard]] inline std::string disagreement(const char* field, int rank_a, const Signature& a, int rank_b,
                                              const Signature& b) {
  return std::string("the ranks disagree about the ") + field + ": rank " + std::to_string(rank_a) + " calls " +
         summary(a) + ", rank " + std::to_string(rank_b) + " calls " + summary(b);
}

}  // namespace smp::comm
