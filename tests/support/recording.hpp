// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Streams, events and communicators that write down what they are asked for, all into one list.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/topology.hpp>

namespace smp::testing {

/// What was asked for, in order: "stream: what".
using Log = std::vector<std::string>;

/// Remembers what it stands for.
struct Event {
  std::string name;
};

/// Runs a task at once, and writes down its name.
struct Stream {
  std::string name;
  Log* log;
  template <class F>
  void enqueue(F task) {
    log->push_back(name + ": " + task.name);
    task();
  }
  void record(Event& e, const std::string& what) { e.name = name + "'s " + what; }
  void wait(const Event& e) {
    if (!e.name.empty()) log->push_back(name + ": wait for " + e.name);
  }
};

/// A task that is only a name, and what it would read or write.
struct Kernel {
  const char* name;
  const void* first = nullptr;
  const void* second = nullptr;
  void operator()() const {}
};

/// Performs nothing; any stream type will do for a communicator, this one included.
class Comm : public comm::Operations<Comm, Stream> {
 public:
  explicit Comm(comm::Membership group) : group_(std::move(group)) {}
  [[nodiscard]] const comm::Membership& group() const { return group_; }
  [[nodiscard]] Comm split(int, int, const std::string&) { return *this; }
  void enqueue(Stream& stream, const comm::Call& c) {
    const std::size_t count = c.operation == comm::Operation::recv ? c.recv_count : c.count;
    stream.log->push_back(stream.name + ": " + name(c.operation) + " " + std::to_string(count) + " on " + group_.name);
  }

 private:
  comm::Membership group_;
};
static_assert(comm::Communicator<Comm>);

/// The groups of one rank of a topology.
struct Groups {
  std::vector<Comm> all;
  template <class Topo>
  Groups(const Topo& topology, int rank) {
    for (const Group kind : all_groups) {
      const Ranks ranks = topology.group(kind, rank);
      all.emplace_back(
          comm::Membership{std::string(to_string(kind)), {ranks.begin(), ranks.end()}, topology.rank_in(kind, rank)});
    }
  }
  Comm& operator[](Group kind) { return all[static_cast<std::size_t>(kind)]; }
};

}  // namespace smp::testing
