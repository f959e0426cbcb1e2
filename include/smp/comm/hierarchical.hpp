// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Gathers that cross the network between nodes as seldom as possible.
///
/// Of a buffer gathered by p ranks, k on a node, a node has its own k pieces; the other p - k come in once, each to one
/// rank of the node, and that rank hands it to its neighbours. A flat gather brings p - 1. The method is that of MiCS
/// (Zhang et al., arXiv:2205.00119), where nodes have equal numbers of ranks and the pieces of a node have
/// to be put in order between the two steps; here a message knows the place of its piece, which does both: no step in
/// between, and any number of ranks on a node.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/comm/decorator.hpp>
#include <smp/comm/node_layout.hpp>
#include <smp/comm/nodes.hpp>
#include <smp/comm/piece_messages.hpp>

namespace smp::comm {

/// What one rank sends and receives in a hierarchical gather.
struct HierarchicalSteps {
  std::vector<PieceMessage> across;  ///< first, between nodes; peers are ranks of the group
  std::vector<PieceMessage> within;  ///< then, on this node; peers are local ranks
};

/// The local rank that brings the piece of rank `piece` to node `node`: itself, or the ranks in turn. On nodes of equal
/// size that is the rank with the same place.
[[nodiscard]] inline int carrier(const NodeLayout& layout, int piece, int node) {
  const auto of = [](int i) { return static_cast<std::size_t>(i); };
  const int home = layout.node[of(piece)];
  const int local = layout.local_rank[of(piece)];
  if (home == node) return local;
  std::size_t before = 0;  // pieces of the nodes before `home`; those of `node` itself change no remainder
  for (int n = 0; n < home; ++n) before += layout.ranks[of(n)].size();
  return static_cast<int>((before + of(local)) % layout.ranks[of(node)].size());
}

/// What `rank` does. A pure function of the layout, so that the steps of all ranks fit.
[[nodiscard]] inline HierarchicalSteps hierarchical_steps(const NodeLayout& layout, int rank) {
  const auto of = [](int i) { return static_cast<std::size_t>(i); };
  const int nodes = layout.nodes();
  const int node = layout.node[of(rank)];
  const int local = layout.local_rank[of(rank)];
  const int neighbours = layout.local_size(rank);
  HierarchicalSteps steps;
  std::vector<std::vector<int>> brought(
      of(neighbours));               // pieces, by the local rank that has them after the first step
  for (int i = 0; i < nodes; ++i) {  // the next node first: not all to one at a time
    const int other = (node + i) % nodes;
    for (const int piece : layout.ranks[of(other)]) {
      const int by = carrier(layout, piece, node);
      brought[of(by)].push_back(piece);
      if (other != node && by == local) steps.across.push_back({piece, piece, true});
    }
    if (other == node) continue;
    const int to = layout.ranks[of(other)][of(carrier(layout, rank, other))];
    steps.across.push_back({to, rank, false});
  }
  for (int i = 1; i < neighbours; ++i) {
    const int to = (local + i) % neighbours;
    const int from = (local + neighbours - i) % neighbours;
    for (const int piece : brought[of(local)]) steps.within.push_back({to, piece, false});
    for (const int piece : brought[of(from)]) steps.within.push_back({from, piece, true});
  }
  return steps;
}

/// A communicator whose gathers take two steps, first between nodes and then on each of them. What they carry is
/// counted as exchanges of the groups NAME.across and NAME.node. Other operations are those of the communicator inside.
/// @tparam Intra transport on a node
/// @tparam Inter transport between nodes, and of all other operations
template <HostCommunicator Intra, HostCommunicator Inter = Intra>
class Hierarchical : public Decorator<Hierarchical<Intra, Inter>, Inter> {
  using Base = Decorator<Hierarchical<Intra, Inter>, Inter>;

 public:
  /// Around `flat`, whose rank `r` is where `layout` says. Collective.
  /// @throws ConfigError if the layout is not of as many ranks
  Hierarchical(Inter flat, NodeLayout layout)
    requires std::is_same_v<Intra, Inter>
      : Base(std::move(flat)), state_(make(layout, part(layout, "node", true))) {}

  /// The same with a transport of its own on each node: `node` has the ranks of this node, by local rank.
  /// @throws ConfigError if the layout is not of as many ranks
  Hierarchical(Inter flat, NodeLayout layout, Intra node)
      : Base(std::move(flat)), state_(make(layout, std::move(node))) {}

  /// Where the ranks of the group are.
  [[nodiscard]] NodeLayout node_layout() const { return state_->layout; }

  /// A part of the group, whose ranks are where they were. Collective.
  [[nodiscard]] Hierarchical split(int colour, int key, std::string name) {
    Inter part = this->inner().split(colour, key, std::move(name));
    NodeLayout layout = nodes_of_part(state_->layout, this->group(), part.group());
    const int local = layout.local_rank[static_cast<std::size_t>(part.rank())];
    Intra node = state_->node.split(colour, local, part.group().name + ".node");
    return Hierarchical(std::move(part), std::move(layout), std::move(node));
  }

  /// Performs `call` in `stream`.
  void enqueue(HostStream& stream, const Call& call) { execute_in(stream, *this, call); }

  /// Performs `call` now, or what a gate lets through of it.
  template <class... Gate>
  void execute(const Call& call, Gate&... gate) {
    if (!is_all_gather(call.operation)) {
      this->inner().execute(call, gate...);
      return;
    }
    State& s = *state_;
    s.messages.begin(call, this->rank(), this->size());
    s.messages.exchange(s.across, s.steps.across);
    s.messages.exchange(s.node, s.steps.within);
  }

 private:
  struct State {
    NodeLayout layout;
    HierarchicalSteps steps;
    Inter across;
    Intra node;
    PieceMessages messages;
  };

  [[nodiscard]] Inter part(const NodeLayout& layout, const char* what, bool of_node) {
    const auto self = static_cast<std::size_t>(this->rank());
    if (layout.node.size() != this->group().world_ranks.size()) {
      throw ConfigError("the node layout of " + describe(this->group()) + ", is of " +
                        std::to_string(layout.node.size()) + " ranks, but must be of " + std::to_string(this->size()));
    }
    return this->inner().split(of_node ? layout.node[self] : 0, of_node ? layout.local_rank[self] : this->rank(),
                               this->group().name + "." + what);
  }

  [[nodiscard]] std::shared_ptr<State> make(NodeLayout& layout, Intra node) {
    Inter across = part(layout, "across", false);
    HierarchicalSteps steps = hierarchical_steps(layout, this->rank());
    return std::make_shared<State>(
        State{std::move(layout), std::move(steps), std::move(across), std::move(node), PieceMessages()});
  }

  std::shared_ptr<State> state_;
};

}  // namespace smp::comm
