// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Notes when communication happens.

#include <string>
#include <utility>

#include <smp/comm/decorator.hpp>
#include <smp/timeline.hpp>

namespace smp::comm {

/// A communicator whose calls are events of a timeline, in rows named after their groups. A call lasts from when its
/// stream comes to it until it is done: waiting for others is part of it.
template <HostCommunicator C>
class Traced : public Decorator<Traced<C>, C> {
 public:
  /// Adds to `timeline`, which outlives all communicators made of this one.
  Traced(C inner, Timeline& timeline) : Decorator<Traced<C>, C>(std::move(inner)), timeline_(&timeline) {}

  /// A part of the group, noted in the same timeline.
  [[nodiscard]] Traced split(int colour, int key, std::string name) {
    return Traced(this->inner().split(colour, key, std::move(name)), *timeline_);
  }
  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }
  /// Performs `call` now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate) {
    const Timeline::Scope scope(timeline_, this->group().name, name(call.operation), name(call.purpose));
    this->inner().execute(call, gate...);
  }

 private:
  Timeline* timeline_;
};

}  // namespace smp::comm
