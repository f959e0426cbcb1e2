// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Three ranks, of which rank 1 does something else just before its part of an operation. What the others say then, and
/// when, is judged from outside.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include <smp/comm/communicator.hpp>

namespace absent_rank {

/// How long a rank waits before the job ends.
inline constexpr std::chrono::milliseconds timeout{2000};

/// What is called: `all_reduce`, `barrier`, or `message`: rank 0 sends to rank 1, which sends to rank 2.
template <class C>
void operate(C& world, const std::string& operation) {
  smp::HostStream stream;
  std::vector<double> data(std::size_t{1} << 18);  // too large for any MPI to send it ahead of its receiver
  if (operation == "all_reduce") {
    world.all_reduce(stream, data, data, smp::sum);
  } else if (operation == "barrier") {
    world.barrier(stream);
  } else if (operation == "message") {
    if (world.rank() > 0) world.recv(stream, data, world.rank() - 1);
    if (world.rank() < 2) world.send(stream, data, world.rank() + 1);
  } else {
    throw std::invalid_argument("unknown operation " + operation);
  }
}

/// What rank 1 does first.
inline void deviate(const std::string& deviation) {
  if (deviation == "stop") {
    std::raise(SIGSTOP);
  } else if (deviation == "block") {
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
  } else if (deviation == "throw") {
    throw std::runtime_error("layer 3 is out of memory");
  } else if (deviation == "exit") {
    std::exit(0);
  } else if (deviation == "compute") {
    std::this_thread::sleep_for(timeout * 3 / 4);
  } else {
    throw std::invalid_argument("unknown deviation " + deviation);
  }
}

/// All ranks call an operation that no rank can perform; each sees that for itself.
template <class C>
void misuse(C& world) {
  smp::HostStream stream;
  std::vector<int> in(4);
  std::vector<int> out(3);
  try {
    world.all_reduce(stream, in, out, smp::sum);
  } catch (const smp::CommError&) {
    return;
  }
  throw std::logic_error("sizes that differ were accepted");
}

/// The body of every rank.
template <class C>
void run(C& world, const std::string& operation, const std::string& deviation) {
  std::fprintf(stderr, "rank %d is process %d\n", world.rank(), static_cast<int>(::getpid()));
  const int rounds = deviation == "compute" ? 2 : 1;
  for (int i = 0; i < 3; ++i) operate(world, operation);
  for (int i = 0; i < rounds; ++i) {
    if (deviation == "misuse") {
      misuse(world);
    } else if (world.rank() == 1) {
      if (deviation == "return") return;
      deviate(deviation);
    }
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::fprintf(stderr, "rank %d enters at %.3f\n", world.rank(), now);
    operate(world, operation);
  }
}

}  // namespace absent_rank
