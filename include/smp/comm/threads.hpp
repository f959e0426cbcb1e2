// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Ranks as threads of one process. Peers read each other's buffers, so a byte moves once; the default way to run, and
/// to test, without MPI. `launch` starts the ranks.

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/agreement.hpp>
#include <smp/comm/communicator.hpp>
#include <smp/comm/room.hpp>
#include <smp/comm/thread_mailbox.hpp>
#include <smp/device/copy.hpp>

namespace smp::comm {

/// A group of thread ranks, seen by one of them. A handle: copies stand for the same place in the same group.
class Threads : public Operations<Threads> {
 public:
  /// The place of rank `rank` in `room`.
  Threads(std::shared_ptr<Room> room, int rank) : place_(std::make_shared<Place>(std::move(room), rank)) {}

  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return place_->group; }

  /// Cuts the group into parts: the ranks that give one `colour`, ordered by `key`, then by rank. All ranks call it.
  /// @param name what messages and counters call the part
  /// @throws CommError, on all ranks, if not all of them call it
  [[nodiscard]] Threads split(int colour, int key, std::string name, CallSite where = CallSite::current());

  /// Boxes for notes between the ranks of the group, which nobody else uses. Collective.
  [[nodiscard]] ThreadMailbox mailbox() const {
    Threads whole(*this);
    return {whole.split(0, rank(), group().name).place_->room, rank()};
  }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now; returns when the buffers of this rank are its own again.
  /// @throws CommError, on all ranks that take part, if their calls do not match; after such an error the
  ///   communicator is usable. Also if a rank fails, returns, or does not come in time: then it is not.
  void execute(const Call& call);

  /// Performs what `gate` lets through of `call`, which sends or receives.
  template <class Gate>
  void execute(const Call& call, Gate& gate);

 private:
  /// Says what a rank is doing while it lives.
  class Doing {
   public:
    Doing(Team& team, int world_rank, Operation operation) noexcept : team_(team), world_rank_(world_rank) {
      team_.doing(world_rank_, name(operation));
    }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;
    ~Doing() { team_.doing(world_rank_, nullptr); }

   private:
    Team& team_;
    int world_rank_;
  };

  struct Place {
    Place(std::shared_ptr<Room> r, int rank)
        : room(std::move(r)), group{room->group_name(), room->world_ranks(), rank} {
      inputs.resize(room->world_ranks().size());
      outputs.resize(room->world_ranks().size());
    }
    std::shared_ptr<Room> room;
    Membership group;
    std::vector<const std::byte*> inputs;  // of a reduction, by rank: kept, so that no operation allocates
    std::vector<std::byte*> outputs;
    std::vector<Room::Message> messages;  // kept, too
  };

  void collective(const Call& call);
  [[nodiscard]] std::string compare_calls();
  void move_data(const Call& call);
  void reduce_piece(const Call& call, const Pieces& pieces, bool to_own_piece);
  void gather(const Call& call);
  void swap_blocks(const Call& call);

  [[nodiscard]] Room& room() noexcept { return *place_->room; }
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size()); }
  [[nodiscard]] std::size_t self() const noexcept { return static_cast<std::size_t>(rank()); }

  static Store store_for(std::size_t bytes) noexcept {
    static const std::size_t cache = private_cache_bytes();
    return bytes >= cache ? Store::streaming : Store::cached;
  }

  std::shared_ptr<Place> place_;
};

inline void Threads::execute(const Call& call) {
  if (is_point_to_point(call.operation)) {
    OpenGate gate{call};
    execute(call, gate);
    return;
  }
  const Doing doing(room().team(), group().world_ranks[self()], call.operation);
  collective(call);
}

template <class Gate>
void Threads::execute(const Call& call, Gate& gate) {
  const Doing doing(room().team(), group().world_ranks[self()], call.operation);
  room().exchange(group(), call, gate, place_->messages, [](std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes(to, from, bytes, store_for(bytes));
    order_streaming_stores();
  });
}

inline void Threads::collective(const Call& call) {
  room().enter(group(), call);
  const std::string verdict = compare_calls();
  if (verdict.empty()) move_data(call);
  order_streaming_stores();
  room().leave(group());
  if (!verdict.empty()) throw CommError(describe(call, group()) + ": " + verdict);
}

/// How the calls of the ranks differ, or nothing. Every rank compares the same ones and comes to the same verdict.
inline std::string Threads::compare_calls() {
  const Signature first = signature(room().call(0));
  for (int r = 1; r < size(); ++r) {
    const Signature other = signature(room().call(r));
    if (const char* field = differing_field(first, other)) return disagreement(field, 0, first, r, other);
  }
  return {};
}

inline void Threads::move_data(const Call& call) {
  switch (call.operation) {
    case Operation::broadcast: {
      const std::size_t bytes = call.count * call.element_bytes;
      copy_bytes(call.output, room().call(call.peer).input, bytes, store_for(bytes));
      break;
    }
    case Operation::reduce:
    case Operation::all_reduce:
      reduce_piece(call, Pieces(call.count, ranks(), std::max<std::size_t>(64 / call.element_bytes, 1)), false);
      break;
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      reduce_piece(call, Pieces(call), true);
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
      gather(call);
      break;
    case Operation::all_to_all:
      swap_blocks(call);
      break;
    default:
      break;
  }
}

/// This rank's piece of the sum: read from the inputs of all, written to its own output (a scatter) or to the same
/// place in the outputs of all that want it. No other rank touches this piece of any buffer, so in place is safe.
inline void Threads::reduce_piece(const Call& call, const Pieces& pieces, bool to_own_piece) {
  const std::size_t offset = pieces.offset(self());
  const std::size_t count = pieces.size(self());
  if (count == 0) return;
  std::size_t copies = 0;
  for (int r = 0; r < size(); ++r) {
    const Call& other = room().call(r);
    place_->inputs[static_cast<std::size_t>(r)] = other.input + offset * call.element_bytes;
    const bool wants =
        call.operation == Operation::all_reduce || (call.operation == Operation::reduce && r == call.peer);
    if (wants) place_->outputs[copies++] = other.output + offset * call.element_bytes;
  }
  if (to_own_piece) place_->outputs[copies++] = call.output;
  const ReduceBuffers buffers{place_->inputs.data(), ranks(), place_->outputs.data(), copies};
  call.reduction.kernel(buffers, 0, count, store_for(count * call.element_bytes * ranks()));
}

/// The pieces of all ranks, beginning behind the own one, so that the ranks do not all read the same buffer at once.
inline void Threads::gather(const Call& call) {
  const Pieces pieces(call);
  for (std::size_t i = 1; i <= ranks(); ++i) {
    const std::size_t from = (self() + i) % ranks();
    const std::size_t bytes = pieces.size(from) * call.element_bytes;
    copy_bytes(call.output + pieces.offset(from) * call.element_bytes, room().call(static_cast<int>(from)).input, bytes,
               store_for(bytes * ranks()));
  }
}

/// Each pair of ranks has two blocks to exchange, and one of the two ranks moves both, through a buffer: in place, the
/// block that is written is the one that the other still needs.
inline void Threads::swap_blocks(const Call& call) {
  constexpr std::size_t chunk = 4096;
  alignas(64) std::byte buffer[chunk];
  const std::size_t block = call.count * call.element_bytes;
  const Store store = store_for(block * ranks());
  for (std::size_t i = 0; i < ranks(); ++i) {
    const std::size_t other = (self() + i) % ranks();
    const bool lower_moves = (self() + other) % 2 == 0;
    if (other != self() && (self() < other) != lower_moves) continue;
    const Call& peer = room().call(static_cast<int>(other));
    const std::byte* mine = call.input + other * block;
    const std::byte* theirs = peer.input + self() * block;
    for (std::size_t done = 0; done < block; done += chunk) {
      const std::size_t n = std::min(chunk, block - done);
      copy_bytes(buffer, mine + done, n, Store::cached);
      copy_bytes(call.output + other * block + done, theirs + done, n, store);
      if (other != self()) copy_bytes(peer.output + self() * block + done, buffer, n, store);
    }
  }
}

inline Threads Threads::split(int colour, int key, std::string part_name, CallSite where) {
  const Call call = split_call(where);
  Room::Seat& mine = room().seat(rank());
  mine.colour = colour;
  mine.key = key;
  room().enter(group(), call);
  if (const std::string verdict = compare_calls(); !verdict.empty()) {
    room().leave(group());
    throw CommError(describe(call, group()) + ": " + verdict);
  }
  std::vector<int> members;  // by key; those with equal keys by rank
  for (int r = 0; r < size(); ++r) {
    if (room().seat(r).colour != colour) continue;
    std::size_t at = members.size();
    while (at > 0 && room().seat(members[at - 1]).key > room().seat(r).key) --at;
    members.insert(members.begin() + static_cast<std::ptrdiff_t>(at), r);
  }
  if (members.front() == rank()) {
    std::vector<int> world_ranks;
    for (const int r : members) world_ranks.push_back(group().world_ranks[static_cast<std::size_t>(r)]);
    mine.part = std::make_shared<Room>(room().shared_team(), std::move(part_name), std::move(world_ranks));
  }
  room().leave(group());

  room().enter(group(), call);
  std::shared_ptr<Room> part = room().seat(members.front()).part;
  room().leave(group());
  mine.part.reset();
  const auto place = std::find(members.begin(), members.end(), rank());
  return Threads(std::move(part), static_cast<int>(place - members.begin()));
}

static_assert(HostCommunicator<Threads>);

}  // namespace smp::comm
