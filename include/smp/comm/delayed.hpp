// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Makes communication take the time it would take over a slower network, to show what overlaps: over shared memory
/// a transfer is work of the same cores that compute.

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include <smp/comm/counted.hpp>
#include <smp/comm/decorator.hpp>

namespace smp::comm {

/// The network that `Delayed` imitates.
struct Network {
  std::chrono::nanoseconds latency{0};  ///< of each call
  double bytes_per_second = 1e300;      ///< at which a rank sends

  /// The time that a call takes in which a rank sends `bytes`.
  [[nodiscard]] std::chrono::nanoseconds time(std::uint64_t bytes) const noexcept {
    const double seconds = static_cast<double>(bytes) / bytes_per_second;
    return latency + std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  }
};

/// A communicator whose calls end no sooner than `Network::time` after they began. The stream sleeps meanwhile.
template <HostCommunicator C>
class Delayed : public Decorator<Delayed<C>, C> {
 public:
  /// `inner` over `network`.
  Delayed(C inner, Network network) : Decorator<Delayed<C>, C>(std::move(inner)), network_(network) {}

  /// A part of the group, over the same network.
  [[nodiscard]] Delayed split(int colour, int key, std::string name) {
    return Delayed(this->inner().split(colour, key, std::move(name)), network_);
  }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate) {
    const auto end = Clock::now() + network_.time(bytes_sent(call, this->group()));
    this->inner().execute(call, gate...);
    std::this_thread::sleep_until(end);
  }

 private:
  Network network_;
};

}  // namespace smp::comm
