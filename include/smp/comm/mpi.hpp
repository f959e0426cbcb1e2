// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Ranks as MPI processes. Works on a duplicate of the communicator it is given, moves bytes only, and does all sums
/// itself, in rank order: the results are those of thread ranks, bit for bit, with any MPI.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include <smp/comm/communicator.hpp>
#include <smp/comm/mpi_channel.hpp>
#include <smp/comm/mpi_collectives.hpp>
#include <smp/comm/mpi_job.hpp>
#include <smp/comm/mpi_mailbox.hpp>
#include <smp/comm/mpi_nodes.hpp>

namespace smp::comm {

/// A group of MPI processes, seen by one of them. A handle: copies stand for the same communicator, which is freed with
/// the last of them. May outlive `MPI_Finalize`.
class Mpi : public Operations<Mpi> {
 public:
  /// A duplicate of `host`, called "WORLD": the host's own messages never meet ours. Collective over `host`.
  /// @throws CommError if MPI is not running
  explicit Mpi(MPI_Comm host, MpiOptions options = {}) {
    if (!mpi_is_running()) {
      throw CommError("MPI is not running: call MPI_Init first, or use smp::comm::MpiSession, which does");
    }
    MPI_Comm duplicate = MPI_COMM_NULL;
    check(MPI_Comm_dup(host, &duplicate), "MPI_Comm_dup");
    Membership group;
    group.name = "WORLD";
    int size = 0;
    check(MPI_Comm_rank(duplicate, &group.rank), "MPI_Comm_rank");
    check(MPI_Comm_size(duplicate, &size), "MPI_Comm_size");
    group.world_ranks.resize(static_cast<std::size_t>(size));
    std::iota(group.world_ranks.begin(), group.world_ranks.end(), 0);
    place_ = std::make_shared<Place>(std::make_shared<MpiJob>(duplicate, options), duplicate, std::move(group), 0);
  }

  /// The group, and this rank's place in it. World ranks are those of the communicator that the first `Mpi` was made
  /// of.
  [[nodiscard]] const Membership& group() const noexcept { return place_->channel.group(); }

  /// True if MPI was initialised for calls from any thread: then streams with a worker can use the communicator.
  [[nodiscard]] bool any_thread() const noexcept { return place_->channel.job()->any_thread(); }

  /// Cuts the group into parts: the ranks that give one `colour` (not negative), ordered by `key`, then by rank.
  /// Collective. The members are verified: some MPI builds order equal or falling keys wrongly.
  [[nodiscard]] Mpi split(int colour, int key, std::string name) const;

  /// Which ranks of the group share a node. Collective; reads the launcher's environment variables.
  /// @throws ConfigError, on all ranks, if one of these variables is no number
  [[nodiscard]] NodeLayout node_layout() { return mpi_node_layout(*this); }

  /// Boxes for notes between the ranks of the group. Collective.
  [[nodiscard]] MpiMailbox mailbox() const {
    MPI_Comm duplicate = MPI_COMM_NULL;
    check(MPI_Comm_dup(handle(), &duplicate), "MPI_Comm_dup");
    return MpiMailbox(std::make_shared<MpiChannel>(place_->channel.job(), duplicate, group(), place_->creation()));
  }

  /// Performs `call` in `stream`.
  /// @throws ConfigError for a stream with a worker if MPI was not initialised for calls from any thread
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now. A rank that waits longer than `MpiOptions::timeout` ends the job with a message.
  /// @throws CommError if MPI reports an error, or a received message has another size
  void execute(const Call& call) {
    const auto running = place_->channel.running(call);
    mpi_execute(place_->channel, call);
  }

  /// Performs what `gate` lets through of `call`, which sends or receives. The time limit begins when nothing more
  /// will.
  template <class Gate>
  void execute(const Call& call, Gate& gate) {
    mpi_begin_messages(place_->channel, gate);
    const auto running = place_->channel.running(call);
    mpi_finish_messages(place_->channel, call);
  }

  /// "all_reduce at train.cpp:80 on TP group (...), rank 1": the last operation of this process in any group of this
  /// world, for messages; empty if there was none.
  [[nodiscard]] std::string last_operation() const { return place_->channel.job()->watchdog().last_operation(); }

  /// Whether this process is in an operation of any group of this world.
  [[nodiscard]] bool is_operating() const noexcept { return place_->channel.job()->watchdog().is_operating(); }

  /// MPI's handle of the duplicate, for calls that smp does not have. Do not free it.
  [[nodiscard]] MPI_Comm handle() const noexcept { return place_->channel.comm(); }

 private:
  struct Place {
    Place(std::shared_ptr<MpiJob> job, MPI_Comm comm, Membership group, std::uint64_t creation)
        : channel(std::move(job), comm, std::move(group), creation) {}
    MpiChannel channel;
    /// What tells the next communicator made of this one from all others. Not its number alone: a part of another group
    /// can have the same members.
    [[nodiscard]] std::uint64_t creation() noexcept { return channel.id() + ++communicators; }
    std::uint64_t communicators = 0;  // made of this one
  };

  explicit Mpi(std::shared_ptr<Place> place) : place_(std::move(place)) {}

  std::shared_ptr<Place> place_;
};

inline Mpi Mpi::split(int colour, int key, std::string name) const {
  const Membership& whole = group();
  // The members follow from what everybody asked for; MPI has to come to the same ones.
  const int mine[2] = {colour, key};
  std::vector<int> asked(2 * static_cast<std::size_t>(whole.size()));
  check(MPI_Allgather(mine, 2, MPI_INT, asked.data(), 2, MPI_INT, handle()), "MPI_Allgather");
  std::vector<int> members;
  for (int r = 0; r < whole.size(); ++r) {
    if (asked[2 * static_cast<std::size_t>(r)] == colour) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return asked[2 * static_cast<std::size_t>(a) + 1] < asked[2 * static_cast<std::size_t>(b) + 1];
  });
  const auto place = std::find(members.begin(), members.end(), whole.rank) - members.begin();

  // Equal colours and rising keys without ties are what every MPI gets right.
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(handle(), colour, static_cast<int>(place), &part), "MPI_Comm_split", describe(whole));
  std::vector<int> found(members.size(), -1);
  int part_size = 0;
  check(MPI_Comm_size(part, &part_size), "MPI_Comm_size");
  if (static_cast<std::size_t>(part_size) == members.size()) {
    check(MPI_Allgather(&whole.rank, 1, MPI_INT, found.data(), 1, MPI_INT, part), "MPI_Allgather");
  }
  if (found != members) {
    throw CommError(describe(whole) + ": MPI_Comm_split made another group \"" + name + "\" than was asked for");
  }

  Membership group{std::move(name), {}, static_cast<int>(place)};
  for (const int r : members) group.world_ranks.push_back(whole.world_ranks[static_cast<std::size_t>(r)]);
  return Mpi(std::make_shared<Place>(place_->channel.job(), part, std::move(group), place_->creation()));
}

static_assert(HostCommunicator<Mpi>);

}  // namespace smp::comm
