// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Programs of ranks as data: lists of operations that can be changed in one place, performed, and their results
/// compared with what they should be.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <smp/comm/communicator.hpp>

namespace smp::testing {

using comm::Operation;
using comm::ReduceOp;

/// Element types that differ in kind, or in size.
enum class Type : unsigned char { i32, f32, i64 };

/// One message of an exchange.
struct Leg {
  int peer = 0;
  bool incoming = false;
};

/// One operation as a rank calls it.
struct Step {
  Operation operation = Operation::barrier;
  Type type = Type::i32;
  ReduceOp reduction = ReduceOp::sum;
  std::size_t count = 6;       ///< elements of a whole buffer, of one piece, or of a message sent
  std::size_t recv_count = 6;  ///< of a message received
  int longer = -1;             ///< the piece that has one element more, of pieces of different sizes
  int root = 0;
  int to = -1;
  int from = -1;
  std::vector<Leg> legs{};
  int site = 0;   ///< where it is called: one of `sites`
  int value = 0;  ///< rank r works with value + r
};

/// Places to call from.
inline const std::array<comm::CallSite, 3> sites{
    comm::CallSite::current(),
    comm::CallSite::current(),
    comm::CallSite::current(),
};

/// "steps.hpp:49"
inline std::string site_name(int site) {
  const comm::CallSite& s = sites.at(static_cast<std::size_t>(site));
  return comm::place(s.file_name(), s.line());
}

template <class T>
bool all_are(std::span<const T> found, T expected) {
  return std::all_of(found.begin(), found.end(), [&](T x) { return x == expected; });
}

template <class C>
class Performer {
 public:
  explicit Performer(C& world) : world_(world) {}

  /// Performs `step`. Returns whether the data that arrived are right.
  bool operator()(const Step& step) {
    switch (step.type) {
      case Type::i32:
        return perform<std::int32_t>(step);
      case Type::f32:
        return perform<float>(step);
      default:
        return perform<std::int64_t>(step);
    }
  }

 private:
  template <class T>
  bool perform(const Step& s) {
    if (comm::is_point_to_point(s.operation)) return message<T>(s);
    if (s.reduction == ReduceOp::maximum) return collective<T>(s, maximum, of<T>(s, size() - 1));
    return collective<T>(s, sum, static_cast<T>(size() * s.value + size() * (size() - 1) / 2));
  }

  template <class T, class Op>
  bool collective(const Step& s, Op op, T reduced) {
    const comm::Tag tag(Purpose::other, sites.at(static_cast<std::size_t>(s.site)));
    const auto ranks = static_cast<std::size_t>(size());
    const auto me = static_cast<std::size_t>(world_.rank());
    std::vector<std::size_t> counts(ranks, s.count);
    counts[static_cast<std::size_t>(s.longer < 0 ? 0 : s.longer)] += 1;
    const bool v = s.operation == Operation::reduce_scatter_v || s.operation == Operation::all_gather_v;
    const std::size_t piece = v ? counts[me] : s.count;
    const std::size_t whole = v ? ranks * s.count + 1 : ranks * s.count;
    std::vector<T> mine(piece, of<T>(s, world_.rank()));
    std::vector<T> pieces(whole, of<T>(s, world_.rank()));
    std::vector<T> out(piece);
    std::vector<T> all(whole);
    switch (s.operation) {
      case Operation::broadcast:
        world_.broadcast(stream_, mine, s.root, tag);
        return all_are<T>(mine, of<T>(s, s.root));
      case Operation::reduce:
        world_.reduce(stream_, mine, out, op, s.root, tag);
        return world_.rank() != s.root || all_are<T>(out, reduced);
      case Operation::all_reduce:
        world_.all_reduce(stream_, mine, out, op, tag);
        return all_are<T>(out, reduced);
      case Operation::reduce_scatter:
        world_.reduce_scatter(stream_, pieces, out, op, tag);
        return all_are<T>(out, reduced);
      case Operation::reduce_scatter_v:
        world_.reduce_scatter_v(stream_, pieces, out, counts, op, tag);
        return all_are<T>(out, reduced);
      case Operation::all_gather:
        world_.all_gather(stream_, mine, all, tag);
        return in_order<T>(s, all, std::vector<std::size_t>(ranks, s.count));
      case Operation::all_gather_v:
        world_.all_gather_v(stream_, mine, all, counts, tag);
        return in_order<T>(s, all, counts);
      case Operation::all_to_all:
        world_.all_to_all(stream_, pieces, all, tag);
        return in_order<T>(s, all, std::vector<std::size_t>(ranks, s.count));
      default:
        world_.barrier(stream_, tag);
        return true;
    }
  }

  template <class T>
  bool message(const Step& s) {
    const comm::Tag tag(Purpose::other, sites.at(static_cast<std::size_t>(s.site)));
    const std::vector<T> out(s.count, of<T>(s, world_.rank()));
    std::vector<T> in(s.recv_count);
    const auto arrived = [&](const std::vector<T>& found, int from) { return all_are<T>(found, of<T>(s, from)); };
    switch (s.operation) {
      case Operation::send:
        world_.send(stream_, out, s.to, tag);
        return true;
      case Operation::recv:
        world_.recv(stream_, in, s.from, tag);
        return arrived(in, s.from);
      case Operation::send_recv:
        world_.send_recv(stream_, out, s.to, in, s.from, tag);
        return arrived(in, s.from);
      default: {
        std::vector<std::vector<T>> ins(s.legs.size(), in);
        std::vector<comm::Transfer> transfers;
        for (std::size_t i = 0; i < s.legs.size(); ++i) {
          const Leg& leg = s.legs[i];
          transfers.push_back(leg.incoming ? comm::Transfer::from(leg.peer, std::span<T>(ins[i]))
                                           : comm::Transfer::to(leg.peer, std::span<const T>(out)));
        }
        world_.exchange(stream_, transfers, tag);
        bool right = true;
        for (std::size_t i = 0; i < s.legs.size(); ++i) {
          if (s.legs[i].incoming) right = right && arrived(ins[i], s.legs[i].peer);
        }
        return right;
      }
    }
  }

  template <class T>
  static T of(const Step& s, int rank) {
    return static_cast<T>(s.value + rank);
  }

  template <class T>
  bool in_order(const Step& s, std::span<const T> all, const std::vector<std::size_t>& counts) const {
    bool right = true;
    std::size_t begin = 0;
    for (int r = 0; r < size(); ++r) {
      const std::size_t n = counts[static_cast<std::size_t>(r)];
      right = right && all_are<T>(all.subspan(begin, n), of<T>(s, r));
      begin += n;
    }
    return right;
  }

  [[nodiscard]] int size() const { return world_.size(); }

  C& world_;
  HostStream stream_;
};

}  // namespace smp::testing
