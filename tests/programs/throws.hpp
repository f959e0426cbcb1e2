// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A user's training loop that throws between two collective operations, with everything on its stack that a trainer
/// has there: parts of the world, streams, counters. None of them may wait for anybody while it is destroyed.

#include <stdexcept>
#include <string>
#include <vector>

#include <smp/comm/counted.hpp>
#include <smp/comm/groups.hpp>

namespace smp::testing {

/// What is told of the exception; `place` is the line of the operation before it, as "throws.hpp:80".
inline constexpr const char* thrown_text = "forward of micro-batch 2: token 50300 is not in a vocabulary of 50257";

struct UserError : std::runtime_error {
  UserError() : runtime_error(thrown_text) {}
};

/// Which ranks throw.
enum class Thrower { nobody, rank_1, everybody };

/// Steps of collective operations on four ranks; `thrower` throws between two of the third.
template <class World>
void train(World& world, Thrower thrower, HostStream::Mode mode) {
  comm::Groups<World> groups(world, DynamicTopology(Degrees{.pp = 2, .tp = 1, .rdp = 2}));
  World reversed = world.split(0, -world.rank(), "REVERSED");
  comm::Counted<World> counted(groups[Group::rdp]);
  std::vector<float> gradient(1000), activation(1000);
  HostStream gradients(mode), activations(mode);
  HostEvent reduced;
  for (int micro_batch = 0; micro_batch < 5; ++micro_batch) {
    counted.all_reduce(gradients, gradient, gradient, sum, Purpose::gradient);
    gradients.record(reduced);
    activations.wait(reduced);
    groups[Group::pp].broadcast(activations, activation, 0, Purpose::activation);
    if (micro_batch == 2 && thrower == Thrower::everybody) throw UserError();
    if (micro_batch == 2 && thrower == Thrower::rank_1 && world.rank() == 1) throw UserError();
    reversed.all_reduce(activations, activation, activation, maximum);
  }
  gradients.synchronize();
  activations.synchronize();
}

}  // namespace smp::testing
