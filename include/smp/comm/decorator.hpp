// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// What communicators have in common that add something to another communicator.

#include <utility>

#include <smp/comm/communicator.hpp>

namespace smp::comm {

/// A communicator `Self` around a `C`: the same group, the same stream. A decorator adds `enqueue` and `split`.
template <class Self, Communicator C>
class Decorator : public Operations<Self, typename C::Stream> {
 public:
  /// The communicator inside.
  [[nodiscard]] C& inner() noexcept { return inner_; }

  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return inner_.group(); }

  /// Boxes for notes between the ranks of the group, of the communicator inside. Collective.
  [[nodiscard]] auto mailbox() const
    requires requires(const C& c) { c.mailbox(); }
  {
    return inner_.mailbox();
  }

 protected:
  /// Around `inner`.
  explicit Decorator(C inner) : inner_(std::move(inner)) {}

 private:
  C inner_;
};

}  // namespace smp::comm
