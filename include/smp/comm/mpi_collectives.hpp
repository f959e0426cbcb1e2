// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The operations over MPI. Data that only moves goes through the library's own collectives, which know the machine.
/// Reductions are ours: pieces are exchanged directly between all pairs, so that each rank sums its piece in rank
/// order, in the accumulation type, with (n-1)/n of the buffer sent and received, which is the least there is.

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include <mpi.h>

#include <smp/comm/communicator.hpp>
#include <smp/comm/mpi_channel.hpp>
#include <smp/device/copy.hpp>

namespace smp::comm {

/// Tags of our messages: those of users, blocks of a collective, summands on their way to be summed, sums on their way
/// back.
struct MpiTag {
  static constexpr int message = 0;  ///< sent by a user
  static constexpr int block = 1;    ///< of a gather or an all-to-all
  static constexpr int summand = 2;  ///< to the rank that sums it
  static constexpr int sum = 3;      ///< from the rank that has summed it
};

/// Where the sums of a reduction go.
enum class Delivery : unsigned char { own_piece, root, everyone };

/// The contents of the root's buffer, to all.
inline void mpi_broadcast(MpiChannel& c, const Call& call) {
  const Chunks chunks(call.count * call.element_bytes, c.largest_message());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    c.collective("MPI_Bcast", MPI_Bcast, MPI_Ibcast, static_cast<void*>(call.output + chunks[i].offset),
                 static_cast<int>(chunks[i].bytes), MPI_BYTE, call.peer, c.comm());
  }
}

/// Blocks between all pairs by messages of our own: for sizes that the counts of MPI's collectives cannot state.
/// @param outgoing,incoming `f(rank)` gives the address and the size of the block for, and of, `rank`
template <class Outgoing, class Incoming>
void mpi_exchange_blocks(MpiChannel& c, Outgoing outgoing, Incoming incoming) {
  for (std::size_t i = 1; i < c.ranks(); ++i) {
    const std::size_t from = (c.self() + c.ranks() - i) % c.ranks();
    const auto [data, bytes] = incoming(from);
    if (bytes != 0) c.recv(c.requests(0), data, bytes, from, MpiTag::block);
  }
  for (std::size_t i = 1; i < c.ranks(); ++i) {
    const std::size_t to = (c.self() + i) % c.ranks();
    const auto [data, bytes] = outgoing(to);
    if (bytes != 0) c.send(c.requests(0), data, bytes, to, MpiTag::block);
  }
  c.wait(c.requests(0));
}

/// The inputs of all ranks, one behind the other, to all.
inline void mpi_all_gather(MpiChannel& c, const Call& call) {
  const Pieces pieces(call);
  const std::size_t own = pieces.size(c.self()) * call.element_bytes;
  std::byte* own_place = call.output + pieces.offset(c.self()) * call.element_bytes;
  const std::size_t total = pieces.offset(c.ranks()) * call.element_bytes;
  if (call.counts.empty() && total <= c.largest_message()) {
    const bool in_place = call.input == own_place;
    c.collective("MPI_Allgather", MPI_Allgather, MPI_Iallgather, in_place ? MPI_IN_PLACE : call.input,
                 static_cast<int>(own), MPI_BYTE, static_cast<void*>(call.output), static_cast<int>(own), MPI_BYTE,
                 c.comm());
    return;
  }
  copy_bytes(own_place, call.input, own, Store::cached);
  mpi_exchange_blocks(
      c,
      [&](std::size_t) {
        return std::pair{call.input, own};
      },
      [&](std::size_t from) {
        return std::pair{call.output + pieces.offset(from) * call.element_bytes,
                         pieces.size(from) * call.element_bytes};
      });
}

/// Block `j` of the input to rank `j`. In place, the incoming blocks wait in our own memory.
inline void mpi_all_to_all(MpiChannel& c, const Call& call) {
  const std::size_t block = call.count * call.element_bytes;
  const std::byte* input = call.input;
  if (input == call.output && block != 0) {
    std::byte* copy = c.scratch(block * c.ranks());
    copy_bytes(copy, input, block * c.ranks(), Store::cached);
    input = copy;
  }
  if (block * c.ranks() <= c.largest_message()) {
    c.collective("MPI_Alltoall", MPI_Alltoall, MPI_Ialltoall, static_cast<const void*>(input), static_cast<int>(block),
                 MPI_BYTE, static_cast<void*>(call.output), static_cast<int>(block), MPI_BYTE, c.comm());
    return;
  }
  copy_bytes(call.output + c.self() * block, input + c.self() * block, block, Store::cached);
  mpi_exchange_blocks(
      c,
      [&](std::size_t to) {
        return std::pair{input + to * block, block};
      },
      [&](std::size_t from) {
        return std::pair{call.output + from * block, block};
      });
}

/// Buffers so small that the number of messages counts: every rank gets all inputs and sums for itself.
inline void mpi_reduce_small(MpiChannel& c, const Call& call) {
  const std::size_t bytes = call.count * call.element_bytes;
  std::byte* all = c.scratch(bytes * c.ranks());
  const bool to_root = call.operation == Operation::reduce;
  if (to_root) {
    c.collective("MPI_Gather", MPI_Gather, MPI_Igather, static_cast<const void*>(call.input), static_cast<int>(bytes),
                 MPI_BYTE, static_cast<void*>(all), static_cast<int>(bytes), MPI_BYTE, call.peer, c.comm());
    if (c.group().rank != call.peer) return;
  } else {
    c.collective("MPI_Allgather", MPI_Allgather, MPI_Iallgather, static_cast<const void*>(call.input),
                 static_cast<int>(bytes), MPI_BYTE, static_cast<void*>(all), static_cast<int>(bytes), MPI_BYTE,
                 c.comm());
  }
  c.inputs().resize(c.ranks());
  for (std::size_t r = 0; r < c.ranks(); ++r) c.inputs()[r] = all + r * bytes;
  std::byte* output = call.output;
  call.reduction.kernel({c.inputs().data(), c.ranks(), &output, 1}, 0, call.count, Store::cached);
}

/// A reduction by segments: while the summands of one segment travel, those of the one before are summed.
///
/// In round k every rank sends segment k of every piece to the rank that sums that piece, and receives segment k of its
/// own piece from all. Two rounds are under way at a time, each with memory and requests of its own. In place is safe:
/// a segment of the output is written only after the same segment of the input has been sent.
class MpiSegmentedReduction {
 public:
  /// The reduction `call`, cut into `pieces`, one for each rank to sum.
  MpiSegmentedReduction(MpiChannel& channel, const Call& call, const Pieces& pieces, Delivery delivery)
      : c_(channel), call_(call), pieces_(pieces), delivery_(delivery) {
    const std::size_t wanted = c_.job()->options().segment;
    const std::size_t bytes =
        wanted != 0 ? wanted : std::max(private_cache_bytes() / 8 / c_.ranks(), std::size_t{4096});
    segment_ = std::max(bytes / call.element_bytes, std::size_t{1});
    std::size_t longest = 0;
    for (std::size_t r = 0; r < c_.ranks(); ++r) longest = std::max(longest, pieces_.size(r));
    rounds_ = (longest + segment_ - 1) / segment_;
    memory_ = c_.scratch(2 * c_.ranks() * segment_ * call.element_bytes);
    c_.inputs().resize(c_.ranks());
  }

  /// Performs it.
  void run() {
    if (rounds_ > 0) exchange_summands(0);
    for (std::size_t round = 0; round < rounds_; ++round) {
      if (round + 1 < rounds_) exchange_summands(round + 1);
      c_.wait(c_.requests(round % 2));
      sum(round);
      if (delivery_ == Delivery::own_piece) continue;
      c_.wait(c_.requests(2 + round % 2));
      deliver(round);
    }
    c_.wait(c_.requests(2));
    c_.wait(c_.requests(3));
  }

 private:
  /// Elements of segment `round` of the piece of `rank`; the last are shorter, or empty.
  [[nodiscard]] std::size_t size(std::size_t rank, std::size_t round) const noexcept {
    const std::size_t begin = std::min(round * segment_, pieces_.size(rank));
    return std::min(segment_, pieces_.size(rank) - begin);
  }
  /// Bytes before that segment in the whole buffer.
  [[nodiscard]] std::size_t offset(std::size_t rank, std::size_t round) const noexcept {
    return (pieces_.offset(rank) + round * segment_) * call_.element_bytes;
  }
  [[nodiscard]] std::byte* summand(std::size_t rank, std::size_t round) const noexcept {
    return memory_ + (round % 2 * c_.ranks() + rank) * segment_ * call_.element_bytes;
  }

  void exchange_summands(std::size_t round) {
    MpiChannel::Requests& requests = c_.requests(round % 2);
    const std::size_t own = size(c_.self(), round) * call_.element_bytes;
    for (std::size_t i = 1; i < c_.ranks() && own != 0; ++i) {
      const std::size_t from = (c_.self() + c_.ranks() - i) % c_.ranks();
      c_.recv(requests, summand(from, round), own, from, MpiTag::summand);
    }
    for (std::size_t i = 1; i < c_.ranks(); ++i) {
      const std::size_t to = (c_.self() + i) % c_.ranks();
      const std::size_t bytes = size(to, round) * call_.element_bytes;
      if (bytes != 0) c_.send(requests, call_.input + offset(to, round), bytes, to, MpiTag::summand);
    }
  }

  /// This rank's sums go to its place in the output of all, into its whole output, or, for a root elsewhere, over its
  /// own summand, which is ours.
  [[nodiscard]] std::byte* sums(std::size_t round) const noexcept {
    if (delivery_ == Delivery::own_piece) return call_.output + round * segment_ * call_.element_bytes;
    const bool mine = delivery_ == Delivery::everyone || c_.group().rank == call_.peer;
    return mine ? call_.output + offset(c_.self(), round) : summand(c_.self(), round);
  }

  void sum(std::size_t round) {
    const std::size_t count = size(c_.self(), round);
    if (count == 0) return;
    for (std::size_t r = 0; r < c_.ranks(); ++r) c_.inputs()[r] = summand(r, round);
    c_.inputs()[c_.self()] = call_.input + offset(c_.self(), round);
    std::byte* output = sums(round);
    call_.reduction.kernel({c_.inputs().data(), c_.ranks(), &output, 1}, 0, count, Store::cached);
  }

  void deliver(std::size_t round) {
    MpiChannel::Requests& requests = c_.requests(2 + round % 2);
    const bool everyone = delivery_ == Delivery::everyone;
    const bool receives = everyone || c_.group().rank == call_.peer;
    for (std::size_t i = 1; i < c_.ranks() && receives; ++i) {
      const std::size_t from = (c_.self() + c_.ranks() - i) % c_.ranks();
      const std::size_t bytes = size(from, round) * call_.element_bytes;
      if (bytes != 0) c_.recv(requests, call_.output + offset(from, round), bytes, from, MpiTag::sum);
    }
    const std::size_t own = size(c_.self(), round) * call_.element_bytes;
    for (std::size_t i = 1; i < c_.ranks() && own != 0; ++i) {
      const std::size_t to = (c_.self() + i) % c_.ranks();
      if (everyone || static_cast<int>(to) == call_.peer) c_.send(requests, sums(round), own, to, MpiTag::sum);
    }
    // The memory of a root's foreign sums is used again two rounds later.
    if (!everyone) c_.wait(requests);
  }

  MpiChannel& c_;
  const Call& call_;
  const Pieces& pieces_;
  Delivery delivery_;
  std::size_t segment_ = 0;
  std::size_t rounds_ = 0;
  std::byte* memory_ = nullptr;
};

/// All reductions.
inline void mpi_reduce(MpiChannel& c, const Call& call) {
  if (call.operation == Operation::reduce_scatter || call.operation == Operation::reduce_scatter_v) {
    const Pieces pieces(call);
    MpiSegmentedReduction(c, call, pieces, Delivery::own_piece).run();
    return;
  }
  // Below this size a message costs more than the bytes it carries.
  constexpr std::size_t small = 16384;
  if (call.count * call.element_bytes * c.ranks() <= std::min(2 * small, c.largest_message())) {
    mpi_reduce_small(c, call);
    return;
  }
  if (call.operation == Operation::reduce && c.ranks() == 2) {
    // Of two ranks the root sums all: half of the sums coming back from the other would cost as much as its summands.
    const std::array<std::size_t, 2> counts{call.peer == 0 ? call.count : 0, call.peer == 1 ? call.count : 0};
    const Pieces all_to_root{std::span<const std::size_t>(counts)};
    MpiSegmentedReduction(c, call, all_to_root, Delivery::own_piece).run();
    return;
  }
  const Pieces pieces(call.count, c.ranks(), std::max<std::size_t>(64 / call.element_bytes, 1));
  const bool to_root = call.operation == Operation::reduce;
  MpiSegmentedReduction(c, call, pieces, to_root ? Delivery::root : Delivery::everyone).run();
}

/// Begins the messages that `gate` lets through; returns when there will be no more.
template <class Gate>
void mpi_begin_messages(MpiChannel& c, Gate& gate) {
  c.transfers().clear();
  const auto begin = [&c](const Transfer& t) {
    c.transfers().push_back(t);
    if (t.incoming) {
      c.recv(c.requests(0), t.received, t.bytes, static_cast<std::size_t>(t.peer), MpiTag::message);
    } else {
      c.send(c.requests(0), t.sent, t.bytes, static_cast<std::size_t>(t.peer), MpiTag::message);
    }
  };
  while (!gate.look(begin)) gate.pause();
}

/// Waits for the messages of `call` that have begun.
/// @throws CommError if a message has another size than its receiver expected
inline void mpi_finish_messages(MpiChannel& c, const Call& call) {
  c.statuses().resize(c.requests(0).size());
  c.wait(c.requests(0), c.statuses().data());
  std::size_t i = 0;
  for (const Transfer& t : c.transfers()) {
    const Chunks chunks(t.bytes, c.largest_message());
    for (std::size_t k = 0; k < chunks.size(); ++k, ++i) {
      if (!t.incoming) continue;
      int bytes = 0;
      check(MPI_Get_count(&c.statuses()[i], MPI_BYTE, &bytes), "MPI_Get_count");
      if (static_cast<std::size_t>(bytes) == chunks[k].bytes) continue;
      throw CommError(describe(call, c.group()) + ": the ranks disagree about the size of a message: rank " +
                      std::to_string(t.peer) + " sends " + std::to_string(chunks[k].offset + std::size_t(bytes)) +
                      " bytes, rank " + std::to_string(c.group().rank) + " expects " + std::to_string(t.bytes));
    }
  }
}

/// The messages of a send, a receive, or several at once.
inline void mpi_exchange(MpiChannel& c, const Call& call) {
  OpenGate gate{call};
  mpi_begin_messages(c, gate);
  mpi_finish_messages(c, call);
}

/// Any call.
inline void mpi_execute(MpiChannel& c, const Call& call) {
  switch (call.operation) {
    case Operation::barrier:
      c.collective("MPI_Barrier", MPI_Barrier, MPI_Ibarrier, c.comm());
      break;
    case Operation::broadcast:
      mpi_broadcast(c, call);
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
      mpi_all_gather(c, call);
      break;
    case Operation::all_to_all:
      mpi_all_to_all(c, call);
      break;
    case Operation::reduce:
    case Operation::all_reduce:
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      mpi_reduce(c, call);
      break;
    case Operation::send:
    case Operation::recv:
    case Operation::send_recv:
    case Operation::exchange:
      mpi_exchange(c, call);
      break;
  }
}

}  // namespace smp::comm
