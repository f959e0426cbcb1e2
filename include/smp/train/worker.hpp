// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What one rank needs to train: its stream, its memory, its communicators, and the seed of the run.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <smp/comm/counted.hpp>
#include <smp/comm/facts.hpp>
#include <smp/comm/groups.hpp>
#include <smp/context.hpp>
#include <smp/degrees.hpp>
#include <smp/device/host_stream.hpp>
#include <smp/device/memory.hpp>
#include <smp/device/side_stream.hpp>
#include <smp/topology.hpp>
#include <smp/version.hpp>

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
  /// @throws ConfigError if `world` does not have the size of the topology, or the ranks have different ones
  Worker(Comm world, Topo topology, std::uint64_t seed, HostStream::Mode mode = HostStream::Mode::at_once)
      : topology_(agreed(world, std::move(topology))),
        seed_(seed),
        world_(std::move(world)),
        groups_(world_, topology_),
        stream_(mode) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Surroundings for modules, strategies and `step`.
  [[nodiscard]] Context context() noexcept {
    Context ctx(stream_, memory_, groups_, seed_);
    ctx.beside = side_stream_.get();
    return ctx;
  }
  /// Lets tensor parallelism communicate beside the computation, in a thread more, wherever contexts made from now on
  /// are used. Does nothing without other tensor-parallel ranks, or with an MPI that was not initialised for threads.
  /// The results are the same in every bit.
  void overlap_communication() {
    auto& tp = groups_[Group::tp];
    if (tp.size() > 1 && comm::works_in_any_thread(tp)) side_stream_ = std::make_unique<SideStream<HostStream>>();
  }

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
  /// Before any group is made: ranks with other groups would wait for each other.
  static Topo agreed(Comm& world, Topo topology) {
    if constexpr (comm::HostCommunicator<Comm>) {
      const Degrees d = topology.degrees();
      comm::expect_equal_facts(world, {{"the version of smp", std::to_string(version)},
                                       {"pp", std::to_string(d.pp)},
                                       {"tp", std::to_string(d.tp)},
                                       {"rdp", std::to_string(d.rdp)},
                                       {"sdp", std::to_string(d.sdp)},
                                       {"placement", std::string(to_string(topology.placement()))}});
    }
    return topology;
  }

  Topo topology_;
  std::uint64_t seed_;
  Memory memory_;
  comm::Counted<Comm> world_;
  Groups groups_;
  HostStream stream_;
  std::unique_ptr<SideStream<HostStream>> side_stream_;
};

}  // namespace smp
