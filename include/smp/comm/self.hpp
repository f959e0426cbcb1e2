// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The communicator of a rank that is alone: every group of a world of one. Needs no threads and no MPI.

#include <smp/comm/communicator.hpp>
#include <smp/comm/note.hpp>

namespace smp::comm {

/// A group of one rank. Its operations copy input to output; a message to itself is a copy, too.
class Self : public Operations<Self> {
 public:
  /// A group called `name`.
  explicit Self(std::string name = "WORLD") : group_{std::move(name), {0}, 0} {}

  /// The group: world rank 0.
  [[nodiscard]] const Membership& group() const noexcept { return group_; }

  /// A part of this group is this group, under another name.
  [[nodiscard]] Self split(int /*colour*/, int /*key*/, std::string name) const { return Self(std::move(name)); }

  /// Boxes for notes between the ranks of the group, of which there is one: nothing is ever posted.
  struct NoMailbox {
    /// Never called: there is no peer.
    static void post(int /*peer*/, const Note& /*note*/) noexcept {}
    /// Nothing ever arrives.
    [[nodiscard]] static bool poll(int /*peer*/, Note& /*note*/) noexcept { return false; }
    /// There is no peer.
    [[nodiscard]] static bool gone(int /*peer*/) noexcept { return true; }
    /// Nothing to wait for.
    static void pause() noexcept {}
    /// A job of one rank does not end behind its back.
    [[nodiscard]] static bool ended(std::string& /*why*/) noexcept { return false; }
  };
  /// Boxes that stay empty.
  [[nodiscard]] static NoMailbox mailbox() noexcept { return {}; }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now.
  /// @throws CommError for a send without its receive, or of another size: nobody else could complete it
  void execute(const Call& call) const {
    if (!is_point_to_point(call.operation)) {
      copy(call.output, call.input, call.count * call.element_bytes);
      return;
    }
    std::size_t received = 0;
    std::size_t sent = 0;
    for_each_transfer(call, [&](const Transfer& in) {
      if (!in.incoming) {
        ++sent;
        return;
      }
      std::size_t outgoing = 0;  // messages of a pair keep their order: the n-th received is the n-th sent
      bool matched = false;
      for_each_transfer(call, [&](const Transfer& out) {
        if (out.incoming || outgoing++ != received || out.bytes != in.bytes) return;
        copy(in.received, out.sent, in.bytes);
        matched = true;
      });
      if (!matched) refuse(call);
      ++received;
    });
    if (sent != received) refuse(call);
  }
  /// Performs `call` now: no gate has to wait for another rank.
  template <class Gate>
  void execute(const Call& call, Gate& /*gate*/) const {
    execute(call);
  }

 private:
  [[noreturn]] void refuse(const Call& call) const {
    throw CommError(describe(call, group_) +
                    ": a rank that is alone can only send to itself what it receives from "
                    "itself in the same send_recv or exchange, with the same size");
  }

  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    if (bytes != 0) std::memmove(to, from, bytes);
  }

  Membership group_;
};

}  // namespace smp::comm
