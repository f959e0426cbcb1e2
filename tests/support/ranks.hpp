// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Test bodies that run on ranks: threads of this process, or the processes of an mpiexec. The same file is compiled
/// for both (SMP_TEST_MPI), so a test must not care which it is.
///
///   TEST_CASE("all ranks see the sum") {
///     smp::testing::on_ranks({1, 2, 3, 4, 8}, [](auto& world) { CHECK(...); });
///   }
///
/// CHECK, REQUIRE, CAPTURE and INFO work inside a body; SUBCASE does not (doctest enters one subcase at a time,
/// whatever the thread).

#include <algorithm>
#include <initializer_list>
#include <span>
#include <vector>

#if SMP_TEST_MPI
#include <smp/comm/mpi.hpp>
#else
#include <smp/comm/launch.hpp>
#include <smp/comm/threads.hpp>
#endif

namespace smp::testing {

#if SMP_TEST_MPI

/// The communicator that a body gets.
using World = comm::Mpi;

/// All processes of this mpiexec; support/mpi_main.cpp owns it.
World& mpi_world();

/// Calls `body(World&)` on every rank if the mpiexec has one of these sizes, else does nothing: the test is then run by
/// another mpiexec. Each body has a communicator of its own, so that what a failed one leaves behind meets nobody.
template <class Body>
void on_ranks(std::span<const int> sizes, const Body& body) {
  World& all = mpi_world();
  if (std::find(sizes.begin(), sizes.end(), all.size()) == sizes.end()) return;
  World world(all.handle());
  body(world);
}

#else

/// The communicator that a body gets.
using World = comm::Threads;

/// Calls `body(World&)` on every rank of a world of each of these sizes, one world after the other.
template <class Body>
void on_ranks(std::span<const int> sizes, const Body& body) {
  for (const int size : sizes) comm::launch(size, [&](World& world) { body(world); });
}

#endif

/// The same for sizes written in place.
template <class Body>
void on_ranks(std::initializer_list<int> sizes, const Body& body) {
  on_ranks(std::span<const int>(sizes.begin(), sizes.size()), body);
}

/// The same, but on eight ranks only if they are threads: for bodies that make groups again and again, which takes
/// processes that share cores seconds.
template <class Body>
void on_few_ranks(std::initializer_list<int> sizes, const Body& body) {
  std::vector<int> few(sizes);
#if SMP_TEST_MPI
  std::erase_if(few, [](int size) { return size >= 8; });
#endif
  on_ranks(std::span<const int>(few), body);
}

}  // namespace smp::testing
