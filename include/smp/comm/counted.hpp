// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Counts calls and bytes by group, operation and purpose, so that a promise about traffic can be checked.

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/decorator.hpp>

namespace smp::comm {

/// Bytes of its own, or of its sums, that this rank has to send for `call`: what a bandwidth-optimal algorithm moves.
/// Over all ranks of a group of n, for a buffer of X bytes: all_reduce 2(n-1)X; reduce_scatter, all_gather, broadcast
/// and reduce (n-1)X; all_to_all (n-1)X of each rank's X/n. A broadcast counts at its root.
[[nodiscard]] inline std::uint64_t bytes_sent(const Call& call, const Membership& group) {
  const auto n = static_cast<std::uint64_t>(group.size());
  const auto self = static_cast<std::size_t>(group.rank);
  const std::uint64_t bytes = std::uint64_t{call.count} * call.element_bytes;
  switch (call.operation) {
    case Operation::barrier:
      return 0;
    case Operation::broadcast:
      return group.rank == call.peer ? (n - 1) * bytes : 0;
    case Operation::reduce:
      return group.rank == call.peer ? 0 : bytes;
    case Operation::all_reduce: {
      const Pieces pieces(call.count, n, 1);
      return bytes + (n - 2) * pieces.size(self) * call.element_bytes;  // (X - own piece) + (n-1) own piece
    }
    case Operation::reduce_scatter:
      return (n - 1) * bytes;
    case Operation::reduce_scatter_v: {
      const Pieces pieces(call);
      return (pieces.offset(n) - pieces.size(self)) * call.element_bytes;
    }
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::all_to_all:
      return (n - 1) * bytes;
    default:
      break;
  }
  std::uint64_t sent = 0;
  for_each_transfer(call, [&](const Transfer& t) { sent += !t.incoming && t.peer != group.rank ? t.bytes : 0; });
  return sent;
}

/// The counts of one rank, over all its groups. Several streams may count at the same time.
class Counters {
 public:
  /// Calls, and bytes that this rank sent.
  struct Count {
    std::uint64_t calls = 0;  ///< how often the operation was called
    std::uint64_t bytes = 0;  ///< as `bytes_sent` counts them
    friend bool operator==(const Count&, const Count&) = default;
  };

  /// One line of the report.
  struct Row {
    std::string group;    ///< name of the groups
    Operation operation;  ///< which operation
    Purpose purpose;      ///< what it was for
    Count count;          ///< calls and bytes
  };

  /// The counts of one group, where they are added up.
  class Table {
   public:
    /// Counts one call.
    void add(Operation operation, Purpose purpose, std::uint64_t bytes) noexcept {
      Cell& c = cells_[index(operation, purpose)];
      c.calls.fetch_add(1, std::memory_order_relaxed);
      c.bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    /// What was counted.
    [[nodiscard]] Count get(Operation operation, Purpose purpose) const noexcept {
      const Cell& c = cells_[index(operation, purpose)];
      return {c.calls.load(std::memory_order_relaxed), c.bytes.load(std::memory_order_relaxed)};
    }

   private:
    struct Cell {
      std::atomic<std::uint64_t> calls{0};
      std::atomic<std::uint64_t> bytes{0};
    };
    static std::size_t index(Operation o, Purpose p) noexcept {
      return static_cast<std::size_t>(o) * purposes + static_cast<std::size_t>(p);
    }
    std::array<Cell, operations * purposes> cells_{};
  };

  /// The counts of the groups called `group`; made when first asked for, and kept.
  [[nodiscard]] Table& table(const std::string& group) {
    const std::lock_guard lock(mutex_);
    return tables_[group];
  }

  /// Calls and bytes of one operation for one purpose in the groups called `group`.
  [[nodiscard]] Count get(const std::string& group, Operation operation, Purpose purpose) const {
    const std::lock_guard lock(mutex_);
    const auto found = tables_.find(group);
    return found == tables_.end() ? Count{} : found->second.get(operation, purpose);
  }

  /// Everything that was counted, by group, operation and purpose; nothing that was not.
  [[nodiscard]] std::vector<Row> rows() const {
    const std::lock_guard lock(mutex_);
    std::vector<Row> rows;
    for (const auto& [group, table] : tables_) {
      for (std::size_t o = 0; o < operations; ++o) {
        for (std::size_t p = 0; p < purposes; ++p) {
          const Count count = table.get(static_cast<Operation>(o), static_cast<Purpose>(p));
          if (count.calls != 0) rows.push_back({group, static_cast<Operation>(o), static_cast<Purpose>(p), count});
        }
      }
    }
    return rows;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Table> tables_;  // never moves its tables
};

/// A communicator that counts. Its parts count into the same counters, under their own names.
template <Communicator C>
class Counted : public Decorator<Counted<C>, C> {
 public:
  /// Counts the calls of `inner` into `counters`.
  explicit Counted(C inner, std::shared_ptr<Counters> counters = std::make_shared<Counters>())
      : Decorator<Counted<C>, C>(std::move(inner)),
        counters_(std::move(counters)),
        table_(&counters_->table(this->group().name)) {}

  /// What was counted, here and in all parts.
  [[nodiscard]] const Counters& counters() const noexcept { return *counters_; }

  /// A part of the group, which counts into the same counters.
  [[nodiscard]] Counted split(int colour, int key, std::string name) {
    return Counted(this->inner().split(colour, key, std::move(name)), counters_);
  }

  /// Counts `call` and performs it in `stream`.
  void enqueue(typename C::Stream& stream, const Call& call) {
    count(call);
    this->inner().enqueue(stream, call);
  }

  /// Counts `call` and performs it now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate)
    requires HostCommunicator<C>
  {
    count(call);
    this->inner().execute(call, gate...);
  }

 private:
  void count(const Call& call) noexcept {
    std::uint64_t control = 0;
    for (const Transfer& t : call.transfers) {
      if (t.control && !t.incoming && t.peer != this->rank()) control += t.bytes;
    }
    table_->add(call.operation, call.purpose, bytes_sent(call, this->group()) - control);
    if (control > 0) table_->add(call.operation, Purpose::control, control);
  }

  std::shared_ptr<Counters> counters_;
  Counters::Table* table_;
};

}  // namespace smp::comm
