// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The run-time twin of communicators: one type for whichever a program has found, so that what is written on top of it
/// is compiled once.

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <smp/comm/communicator.hpp>
#include <smp/comm/nodes.hpp>
#include <smp/device/host_stream.hpp>

namespace smp::comm {

/// A communicator of the host that was chosen when the program ran. Copies are handles of the same one. Costs a virtual
/// call for each operation.
class Any : public Operations<Any, HostStream> {
 public:
  /// Around `communicator`.
  template <class C>
    requires(!std::same_as<C, Any> && HostCommunicator<C> && std::same_as<typename C::Stream, HostStream>)
  explicit Any(C communicator) : held_(std::make_shared<Holder<C>>(std::move(communicator))) {}

  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return held_->group(); }
  /// Whether streams with a worker can use it.
  [[nodiscard]] bool any_thread() noexcept { return held_->any_thread(); }
  /// Which ranks of the group share a node, as far as the communicator inside knows. Collective.
  [[nodiscard]] NodeLayout node_layout() { return held_->node_layout(); }
  /// As the communicator inside. Collective.
  [[nodiscard]] Any split(int colour, int key, std::string name) {
    return Any(held_->split(colour, key, std::move(name)));
  }
  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { held_->enqueue(stream, call); }
  /// Performs `call` now.
  void execute(const Call& call) { held_->execute(call); }

 private:
  struct Held {
    Held() = default;
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    virtual ~Held() = default;
    [[nodiscard]] virtual const Membership& group() const noexcept = 0;
    [[nodiscard]] virtual bool any_thread() noexcept = 0;
    [[nodiscard]] virtual NodeLayout node_layout() = 0;
    [[nodiscard]] virtual std::shared_ptr<Held> split(int colour, int key, std::string name) = 0;
    virtual void enqueue(HostStream& stream, const Call& call) = 0;
    virtual void execute(const Call& call) = 0;
  };

  template <class C>
  struct Holder final : Held {
    explicit Holder(C c) : communicator(std::move(c)) {}
    [[nodiscard]] const Membership& group() const noexcept override { return communicator.group(); }
    [[nodiscard]] bool any_thread() noexcept override { return works_in_any_thread(communicator); }
    [[nodiscard]] NodeLayout node_layout() override { return comm::node_layout(communicator); }
    [[nodiscard]] std::shared_ptr<Held> split(int colour, int key, std::string name) override {
      return std::make_shared<Holder>(communicator.split(colour, key, std::move(name)));
    }
    void enqueue(HostStream& stream, const Call& call) override { communicator.enqueue(stream, call); }
    void execute(const Call& call) override { communicator.execute(call); }

    C communicator;
  };

  explicit Any(std::shared_ptr<Held> held) noexcept : held_(std::move(held)) {}

  std::shared_ptr<Held> held_;
};

static_assert(HostCommunicator<Any>);

}  // namespace smp::comm
