// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A communicator whose gathers take the way that `GatherOptions` choose, and that says which they took.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/any.hpp>
#include <smp/comm/gather_choice.hpp>
#include <smp/comm/hierarchical.hpp>
#include <smp/comm/nodes.hpp>
#include <smp/comm/piece_messages.hpp>

namespace smp::comm {

/// Who shares a node in the group of `c`: as the options say, or as the communicator knows. Collective.
/// @throws ConfigError if the options name a layout without some of the ranks
template <Communicator C>
[[nodiscard]] NodeLayout node_layout(C& c, const GatherOptions& options) {
  const std::vector<int>& members = c.group().world_ranks;
  if (!options.nodes.node.empty()) return nodes_of_group(options.nodes, members);
  if (options.ranks_per_node == 0) return node_layout(c);
  std::vector<int> node;
  for (const int rank : members) node.push_back(rank / options.ranks_per_node);
  return nodes_by_number(node);
}

/// A communicator whose gathers take the way that the options choose for their size. Other operations are those of the
/// communicator inside.
template <HostCommunicator C>
class Gathering : public Decorator<Gathering<C>, C> {
 public:
  /// Around `flat`. Collective: makes the groups of a hierarchical gather, if there can be one.
  /// @throws ConfigError if an option cannot work, or, on all ranks, if theirs differ
  explicit Gathering(C flat, const GatherOptions& options = {})
      : Gathering(std::move(flat), options, [](C& c, const GatherOptions& o) { return comm::node_layout(c, o); }) {}

  /// What was chosen so far; the same object in all copies.
  [[nodiscard]] std::shared_ptr<const GatherReport> report() const noexcept { return {state_, &state_->report}; }
  /// Where the ranks of the group are.
  [[nodiscard]] NodeLayout node_layout() const { return state_->nodes; }

  /// A part of the group, with the same options and a report of its own.
  [[nodiscard]] Gathering split(int colour, int key, std::string name) {
    return Gathering(
        this->inner().split(colour, key, std::move(name)), state_->report.options(),
        [this](C& part, const GatherOptions&) { return nodes_of_part(state_->nodes, this->group(), part.group()); });
  }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate) {
    const GatherBackend backend = is_all_gather(call.operation) ? count(call) : GatherBackend::flat;
    if (backend == GatherBackend::hierarchical) {
      state_->hierarchical->execute(call);
    } else if (backend == GatherBackend::one_hop) {
      state_->one_hop->execute(call);
    } else {
      this->inner().execute(call, gate...);
    }
  }

 private:
  struct State {
    State(const Membership& group, const GatherOptions& options, NodeLayout layout)
        : report(group.name, options, GroupOnNodes::of(layout)), nodes(std::move(layout)) {}
    GatherReport report;
    NodeLayout nodes;
    std::optional<Hierarchical<C>> hierarchical;  // if a gather can take this way
    std::optional<OneHop<C>> one_hop;             // likewise
  };

  template <class Layout>
  Gathering(C flat, const GatherOptions& options, Layout layout) : Decorator<Gathering<C>, C>(std::move(flat)) {
    check(options);
    state_ = std::make_shared<State>(this->group(), options, layout(this->inner(), options));
    agree();
    switch (state_->report.choose(0).backend) {
      case GatherBackend::hierarchical:
        state_->hierarchical.emplace(this->inner(), state_->nodes);
        break;
      case GatherBackend::one_hop:
        state_->one_hop.emplace(this->inner());
        break;
      default:
        break;
    }
  }

  [[nodiscard]] GatherBackend count(const Call& call) noexcept {
    std::size_t piece = call.count;
    for (const std::size_t n : call.counts) piece = std::max(piece, n);
    return state_->report.count(piece * call.element_bytes).backend;
  }

  /// Compares the options of all ranks: with other ones a rank would wait for messages that nobody sends.
  void agree() {
    const GatherOptions& o = state_->report.options();
    std::uint64_t layout = 14695981039346656037u;  // FNV-1a
    for (const auto& ranks : state_->nodes.ranks) {
      for (const int rank : ranks) layout = (layout ^ static_cast<std::uint64_t>(rank + 1)) * 1099511628211u;
      layout *= 1099511628211u;
    }
    constexpr std::array names{"backend", "hierarchical", "scratch_bytes", "sort_bytes", "nodes"};
    using Values = std::array<std::uint64_t, names.size()>;
    const Values mine{static_cast<std::uint64_t>(o.backend), o.hierarchical ? 1u : 0u, o.scratch_bytes, o.sort_bytes,
                      layout};
    std::vector<std::uint64_t> all;
    for (int r = 0; r < this->size(); ++r) all.insert(all.end(), mine.begin(), mine.end());
    HostStream now;
    this->inner().all_gather(now, mine, all, Purpose::control);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] == all[i % mine.size()]) continue;
      throw ConfigError("the ranks of the " + describe(this->group()) + ", disagree about the gather option " +
                        names[i % mine.size()] + ": rank " + std::to_string(i / mine.size()) +
                        " has another value than rank 0");
    }
  }

  std::shared_ptr<State> state_;
};

/// The gathers of a group, whichever communicator it has: for what is compiled once and learns its group when it runs.
/// Costs a virtual call for each.
class GroupGather : public Operations<GroupGather> {
 public:
  /// Of the group of `flat`. Collective.
  /// @throws ConfigError as `Gathering` does
  template <class C>
    requires(!std::same_as<C, GroupGather> && HostCommunicator<C>)
  explicit GroupGather(C flat, const GatherOptions& options = {})
      : GroupGather(Gathering<C>(std::move(flat), options)) {}

  /// The group, and this rank's place in it.
  [[nodiscard]] const Membership& group() const noexcept { return gathering_.group(); }
  /// What was chosen so far.
  [[nodiscard]] const GatherReport& report() const noexcept { return *report_; }
  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { gathering_.enqueue(stream, call); }

 private:
  template <class C>
  explicit GroupGather(Gathering<C> gathering) : report_(gathering.report()), gathering_(std::move(gathering)) {}

  std::shared_ptr<const GatherReport> report_;
  Any gathering_;
};

}  // namespace smp::comm
