// SPDX-License-Identifier: Apache-2.0
// A host program that goes on sending messages of its own while we communicate: on the communicator that we were made
// of, and on MPI_COMM_WORLD. Received with wildcards, so that the host would get any message of ours that strayed
// there. ranks: 2 4
#include <array>
#include <vector>

#include <sched.h>

#include <doctest/doctest.h>
#include <mpi.h>

#include "support/ranks.hpp"

namespace {

using namespace smp::testing;

/// The messages of a host: each rank sends to the next one, the number of the message and the tag tell them apart.
class HostMessages {
 public:
  static constexpr int batch = 50;

  explicit HostMessages(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  /// Begins to receive a batch, and sends half of it: the rest of the receives would take any message that came now.
  void begin() {
    for (int i = 0; i < batch; ++i) {
      const auto at = static_cast<std::size_t>(i);
      MPI_Irecv(&received_[at], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &requests_[at]);
    }
    send(0, batch / 2);
  }

  /// Sends the other half and ends the batch; counts what did not arrive as it should have.
  void end() {
    send(batch / 2, batch);
    std::array<MPI_Status, 2 * batch> statuses;
    int done = 0;
    while (done == 0) {
      MPI_Testall(2 * batch, requests_.data(), &done, statuses.data());
      if (done == 0) ::sched_yield();
    }
    for (int i = 0; i < batch; ++i) {
      const auto at = static_cast<std::size_t>(i);
      int count = 0;
      MPI_Get_count(&statuses[at], MPI_INT, &count);
      const bool right = count == 1 && received_[at] == number_ + i && statuses[at].MPI_TAG == received_[at] % 7 &&
                         statuses[at].MPI_SOURCE == (rank_ + size_ - 1) % size_;
      if (!right) ++wrong_;
    }
    number_ += batch;
  }

  [[nodiscard]] int messages() const { return number_; }
  [[nodiscard]] int wrong() const { return wrong_; }

  /// A message that nobody should have sent.
  [[nodiscard]] bool something_left() const {
    int flag = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &flag, MPI_STATUS_IGNORE);
    return flag != 0;
  }

 private:
  void send(int first, int last) {
    for (int i = first; i < last; ++i) {
      const auto at = static_cast<std::size_t>(i);
      sent_[at] = number_ + i;
      MPI_Isend(&sent_[at], 1, MPI_INT, (rank_ + 1) % size_, sent_[at] % 7, comm_, &requests_[at + batch]);
    }
  }

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  int number_ = 0;
  int wrong_ = 0;
  std::array<int, batch> sent_{}, received_{};
  std::array<MPI_Request, 2 * batch> requests_{};
};

/// One of our operations, another one each time, some of whose messages have the tags and sizes of the host's.
void communicate(World& world, int round) {
  smp::HostStream stream;
  const auto n = static_cast<std::size_t>(world.size());
  std::vector<int> one{world.rank()}, all(n), large(20000 * n, 1);
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  switch (round % 8) {
    case 0:
      world.all_reduce(stream, one, one, smp::sum);
      CHECK(one[0] == world.size() * (world.size() - 1) / 2);
      break;
    case 1: {
      int received = -1;
      world.send_recv(stream, one, next, std::span(&received, 1), previous);
      CHECK(received == previous);
      break;
    }
    case 2:
      world.all_gather(stream, one, all);
      CHECK(all.back() == world.size() - 1);
      break;
    case 3:
      world.broadcast(stream, one, world.size() - 1);
      CHECK(one[0] == world.size() - 1);
      break;
    case 4: {
      int mine = 0;
      world.reduce_scatter(stream, std::vector<int>(n, 1), std::span(&mine, 1), smp::sum);
      CHECK(mine == world.size());
      break;
    }
    case 5:
      world.all_to_all(stream, std::vector<int>(n, world.rank()), all);
      CHECK(all.back() == world.size() - 1);
      break;
    case 6:
      world.barrier(stream);
      break;
    default:
      if (round % 80 != 7) break;  // a large one is slow
      world.all_reduce(stream, large, large, smp::sum);
      CHECK(large.back() == world.size());
  }
}

/// All ranks together send `messages`.
void check_host(World& world, MPI_Comm host_comm, int messages) {
  messages /= world.size();
  HostMessages host(host_comm);
  for (int round = 0; host.messages() < messages; ++round) {
    host.begin();
    communicate(world, round);
    host.end();
  }
  CHECK(host.messages() == messages);
  CHECK(host.wrong() == 0);
  smp::HostStream stream;
  world.barrier(stream);
  CHECK_FALSE(host.something_left());
}

TEST_CASE("100000 messages of the host on the communicator that ours was made of: none lost, none stolen") {
  on_ranks({2, 4}, [](World& world) {
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &host);
    {
      World ours(host);
      check_host(ours, host, 100000);
    }
    MPI_Comm_free(&host);
    CHECK(world.size() > 1);
  });
}

TEST_CASE("20000 messages of the host on MPI_COMM_WORLD, while parts of ours communicate") {
  on_ranks({2, 4}, [](World& world) {
    World ours(MPI_COMM_WORLD);
    World part = ours.split(0, -world.rank(), "REVERSED");
    check_host(part, MPI_COMM_WORLD, 20000);
  });
}

}  // namespace
