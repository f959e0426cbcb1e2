// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A second stream of a rank, for communication beside the computation.

#include <utility>

namespace smp {

/// A stream with a thread of its own, and the events that order it and the stream of the computation.
template <class Stream>
struct SideStream {
  Stream stream{Stream::Mode::worker};  ///< beside the computation
  typename Stream::Event ready;         ///< recorded in the stream of the computation: what is to be sent is there
  typename Stream::Event done;          ///< recorded beside it: what was asked for has arrived

  /// Lets what `beside(stream)` enqueues here run after everything enqueued in `compute` before, at the same time as
  /// what `meanwhile()` enqueues there; `compute` goes on when both are done. What the first uses must not be freed
  /// before this returns.
  template <class First, class Second>
  void run(Stream& compute, First&& beside, Second&& meanwhile) {
    compute.record(ready);
    stream.wait(ready);
    std::forward<First>(beside)(stream);
    stream.record(done);
    std::forward<Second>(meanwhile)();
    compute.wait(done);
  }
};

}  // namespace smp
