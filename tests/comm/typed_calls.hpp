// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The operations of a communicator on each element type, as functions of bytes: what a test does with the results does
/// not depend on the type, and is compiled once.

#include <cstddef>
#include <span>
#include <vector>

#include <smp/comm/communicator.hpp>

#include "support/oracle.hpp"

namespace smp::testing {

using InBytes = std::span<const std::byte>;
using OutBytes = std::span<std::byte>;
using Counts = std::span<const std::size_t>;

template <class T>
std::span<const T> typed(InBytes bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <class T>
std::span<T> typed(OutBytes bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

/// What can be done with elements of one type without looking at them.
template <class W>
struct MoveCalls {
  const char* element;
  std::size_t bytes;                                             // of one element
  Pattern (*integers)(int rank);                                 // the input of one rank
  std::vector<std::byte> (*random)(int rank, std::size_t size);  // another one
  void (*all_gather)(W&, HostStream&, InBytes, OutBytes);
  void (*all_gather_v)(W&, HostStream&, InBytes, OutBytes, Counts);
  void (*all_to_all)(W&, HostStream&, InBytes, OutBytes);
  void (*broadcast)(W&, HostStream&, OutBytes, int root);
  void (*send_recv)(W&, HostStream&, InBytes, int to, OutBytes, int from);
};

/// One reduction of elements of one type.
template <class W>
struct ReductionCalls : MoveCalls<W> {
  const char* reduction;
  Pattern (*reduced_integers)(int ranks);                                 // of the inputs of that many ranks
  std::vector<std::byte> (*reduced_random)(int ranks, std::size_t size);  // of the other ones
  void (*all_reduce)(W&, HostStream&, InBytes, OutBytes);
  void (*reduce)(W&, HostStream&, InBytes, OutBytes, int root);
  void (*reduce_scatter)(W&, HostStream&, InBytes, OutBytes);
  void (*reduce_scatter_v)(W&, HostStream&, InBytes, OutBytes, Counts);
};

/// The bytes of `value(i)` for `i` from 0 to `size - 1`.
template <class T, class F>
std::vector<std::byte> bytes_of(std::size_t size, F value) {
  std::vector<std::byte> bytes(size * sizeof(T));
  for (std::size_t i = 0; i < size; ++i) {
    const T x = value(i);
    std::memcpy(bytes.data() + i * sizeof(T), &x, sizeof(T));
  }
  return bytes;
}

template <class T, class W>
MoveCalls<W> move_calls() {
  return {type_name<T>(),
          sizeof(T),
          &small_integers<T>,
          [](int rank, std::size_t size) {
            return bytes_of<T>(size, [rank](std::size_t i) { return random_value<T>(rank, i); });
          },
          [](W& w, HostStream& s, InBytes in, OutBytes out) { w.all_gather(s, typed<T>(in), typed<T>(out)); },
          [](W& w, HostStream& s, InBytes in, OutBytes out, Counts c) {
            w.all_gather_v(s, typed<T>(in), typed<T>(out), c);
          },
          [](W& w, HostStream& s, InBytes in, OutBytes out) { w.all_to_all(s, typed<T>(in), typed<T>(out)); },
          [](W& w, HostStream& s, OutBytes buffer, int root) { w.broadcast(s, typed<T>(buffer), root); },
          [](W& w, HostStream& s, InBytes in, int to, OutBytes out, int from) {
            w.send_recv(s, typed<T>(in), to, typed<T>(out), from);
          }};
}

template <class T, class Op, class W>
ReductionCalls<W> reduction_calls() {
  return {move_calls<T, W>(),
          name(comm::ReductionTraits<Op>::op),
          &reduced_integers<Op, T>,
          [](int ranks, std::size_t size) {
            return bytes_of<T>(size, [ranks](std::size_t i) { return reduced_random<Op, T>(ranks, i); });
          },
          [](W& w, HostStream& s, InBytes in, OutBytes out) { w.all_reduce(s, typed<T>(in), typed<T>(out), Op()); },
          [](W& w, HostStream& s, InBytes in, OutBytes out, int root) {
            w.reduce(s, typed<T>(in), typed<T>(out), Op(), root);
          },
          [](W& w, HostStream& s, InBytes in, OutBytes out) { w.reduce_scatter(s, typed<T>(in), typed<T>(out), Op()); },
          [](W& w, HostStream& s, InBytes in, OutBytes out, Counts c) {
            w.reduce_scatter_v(s, typed<T>(in), typed<T>(out), c, Op());
          }};
}

/// The operations on each type of the list.
template <class W, class List = AllElements>
std::vector<MoveCalls<W>> all_moves() {
  std::vector<MoveCalls<W>> calls;
  for_each_type(List(), [&]<class T>() { calls.push_back(move_calls<T, W>()); });
  return calls;
}

/// Every reduction of each type of the list.
template <class W, class List = AllElements>
std::vector<ReductionCalls<W>> all_reductions() {
  std::vector<ReductionCalls<W>> calls;
  for_each_type(List(), [&]<class T>() {
    for_each_reduction<T>([&]<class Op>(Op) { calls.push_back(reduction_calls<T, Op, W>()); });
  });
  return calls;
}

}  // namespace smp::testing
