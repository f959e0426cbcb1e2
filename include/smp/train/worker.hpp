// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank needs to train: its stream, its memory, its communicators, and the seed of the run.

#include <cstdint>
#include <memory>
#include <utility>

#include <smp/comm/counted.hpp>
#include <smp/comm/groups.hpp>
#include <smp/context.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/device/memory.hpp>

namespace smp {

/// One rank. Made first on all ranks, and outlives models and tensors.
///
///     smp::comm::launch(4, [](smp::comm::Threads& world) {
///       smp::Worker worker(world, smp::Topology<smp::Degrees{.rdp = 4}>(), 1234);
///       auto ctx = worker.context();
///       ...
///     });
/// @tparam Comm communicator of the world; what it carries is counted
/// @tparam Topo a `Topology`
template <comm::Communicator Comm, class Topo>
class Worker {
 public:
  using Groups = comm::Groups<comm::Counted<Comm>>;  ///< the communicators
  using Context = smp::Context<HostStream, Groups>;  ///< what modules are run with

  /// Makes the communicators of all groups. All ranks of `world` call it.
  /// @param mode where kernels run: inside of the call, or in a thread of their own
  /// @throws ConfigError if `world` does not have the size of the topology
  Worker(Comm world, Topo topology, std::uint64_t seed, HostStream::Mode mode = HostStream::Mode::at_once)
      : topology_(std::move(topology)),
        seed_(seed),
        world_(std::move(world)),
        groups_(world_, topology_),
        stream_(mode) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Surroundings for modules, strategies and `step`.
  [[nodiscard]] Context context() noexcept { return {stream_, memory_, groups_, seed_}; }

  /// Degrees and placement.
  [[nodiscard]] const Topo& topology() const noexcept { return topology_; }
  /// Where kernels run.
  [[nodiscard]] HostStream& stream() noexcept { return stream_; }
  /// Where tensors come from, and what is counted there.
  [[nodiscard]] Memory& memory() noexcept { return memory_; }
  /// The communicators, by kind of group.
  [[nodiscard]] Groups& groups() noexcept { return groups_; }
  /// What this rank has sent, by group, operation and purpose.
  [[nodiscard]] const comm::Counters& counters() const noexcept { return world_.counters(); }
  /// This rank's place in the world.
  [[nodiscard]] int rank() const noexcept { return world_.rank(); }
  /// Number of ranks.
  [[nodiscard]] int size() const noexcept { return world_.size(); }
  /// The seed of the run.
  [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

 private:
  Topo topology_;
  std::uint64_t seed_;
  Memory memory_;
  comm::Counted<Comm> world_;
  Groups groups_;
  HostStream stream_;
};

}  // namespace smp
