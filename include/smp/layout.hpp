// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// From a model to units and blocks: a pure walk over `fields()`, equal on all ranks that build equal models.
///
/// Units: an element of a repetition; an element of a sequence that is not inside of a unit (a container there is
/// descended into); a member marked as one. Wrappers are transparent, a hand-written struct is one unit, and what is in
/// no unit belongs to the root.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/error.hpp>
#include <smp/fields.hpp>
#include <smp/module.hpp>
#include <smp/parameter.hpp>
#include <smp/parameter_groups.hpp>
#include <smp/tags.hpp>

namespace smp {

/// What a strategy says of the layout it wants.
struct LayoutOptions {
  std::size_t persistence_threshold = 0;  ///< parameters with fewer elements are never sharded
  bool one_part = false;                  ///< there is one tensor-parallel rank: nobody has summands of its gradients
  int shard_degree = 1;                   ///< of units, where no `Sharded` inside of the model says another
  bool cuts_apart = false;                ///< parameters that are cut over tensor-parallel ranks have their own blocks
  std::vector<ParameterGroup> groups{};   ///< what is updated in other ways
};

/// The units and blocks of a model. Places the model's parameters; must outlive their use.
class Layout {
 public:
  /// Walks `model`, which must stay where it is.
  /// @throws ConfigError if two parameters of one tie differ in shape, cut or type, or a group has no legal rate
  template <class M>
  explicit Layout(M& model, LayoutOptions options = {})
      : options_(std::move(options)), members_(options_.groups.size()) {
    for (const ParameterGroup& g : options_.groups) expect_rate(g);
    units_.push_back({{}, {}, 0, options_.shard_degree});
    walk<NoTags>(model, "", units_.front(), false, options_.shard_degree);
    place();
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  /// Lets a unit use a parameter of another, as if it had declared it with the same tie: where it runs, the values are
  /// there, and its gradient counts. Before the first step.
  /// @param unit path of the unit
  /// @param parameter path of the parameter
  /// @throws ConfigError if there is no such unit or parameter
  void register_parameter(std::string_view unit, std::string_view parameter) {
    const auto user = std::find_if(units_.begin(), units_.end(), [&](const Unit& u) { return u.path == unit; });
    if (user == units_.end()) throw ConfigError("there is no unit \"" + std::string(unit) + "\"");
    for (Block& b : blocks_) {
      const auto is_it = [&](const Block::Segment& s) { return s.name == parameter; };
      if (std::none_of(b.segments.begin(), b.segments.end(), is_it)) continue;
      if (std::find(user->uses.begin(), user->uses.end(), &b) != user->uses.end()) return;
      user->uses.push_back(&b);
      ++b.users;
      return;
    }
    throw ConfigError("there is no parameter \"" + std::string(parameter) + "\"");
  }

  /// The units; the first is the root.
  [[nodiscard]] std::deque<Unit>& units() noexcept { return units_; }
  /// The groups of the options.
  [[nodiscard]] const std::vector<ParameterGroup>& groups() const noexcept { return options_.groups; }
  /// How many parameters of the model are in each group.
  [[nodiscard]] const std::vector<std::size_t>& members() const noexcept { return members_; }
  /// The blocks, in the order in which the units declare them.
  [[nodiscard]] std::deque<Block>& blocks() noexcept { return blocks_; }

 private:
  struct Entry {
    ParameterBase* parameter;
    Block* block;
    std::string name;
    UpdateRule rule;
    std::size_t group;  // those of the options, and behind them what is in none
  };

  Unit& add_unit(std::string path, int degree, const Unit& parent) {
    units_.push_back({std::move(path), {}, static_cast<int>(units_.size()), degree, parent.id});
    return units_.back();
  }

  /// `Outside`: what is around `m`.
  template <class Outside, class M>
  void walk(M& m, const std::string& path, Unit& unit, bool inside, int degree) {
    using Here = typename AroundT<M, Outside>::type;
    if constexpr (requires { m.marked(); }) {
      Unit& own = add_unit(path.substr(0, path.size() - 1), degree, unit);
      m.unit = &own;
      walk<Here>(m.marked(), path, own, true, degree);
    } else if constexpr (requires { m.parts([](auto&, auto) {}); }) {
      m.parts([&]<class At>(auto& each, At) { walk<At>(each, path, unit, inside, degree); });
    } else if constexpr (Wrapper<M>) {
      if constexpr (requires { M::shard_degree; }) degree = unit.shard_degree = M::shard_degree;
      walk<Here>(m.inner(), path, unit, inside, degree);
    } else if constexpr (Container<M>) {
      m.children([&]<class Child, class Said = Here>(const std::string& name, Child& child, Unit*& slot, Said = {}) {
        // A container of plain modules does not know where it stands itself.
        using At = std::conditional_t<std::is_same_v<Said, NoTags>, Here, Said>;
        constexpr bool repeated = requires { requires M::elements_are_units; };
        const std::string child_path = path + name + ".";
        if (repeated || (!inside && !Container<Child>)) {
          slot = &add_unit(path + name, degree, unit);
          walk<At>(child, child_path, *slot, true, degree);
        } else {
          walk<At>(child, child_path, unit, inside, degree);
        }
      });
    } else if constexpr (HasFields<M>) {
      for_each_field(m, [&]<class Member>(Member& member, const auto& field) {
        const std::string name = path + std::string(field.name);
        if constexpr (std::derived_from<Member, ParameterBase>) {
          using Where = typename std::remove_cvref_t<decltype(field)>::where;
          add(member, {sizeof(typename Member::value_type), SummedOverTp<Here, Where>::value}, name, unit,
              field.options);
        } else if constexpr (std::same_as<Member, RandomSite>) {
          member.stream = stream_of(name);
        } else {
          using Where = typename std::remove_cvref_t<decltype(field)>::where;
          walk<typename AroundMember<Here, Where>::type>(member, name + ".", unit, inside, degree);
        }
      });
    }
  }

  /// What the compiler knows of a parameter.
  struct Kind {
    std::size_t element_bytes;
    bool summed_over_tp;  // if all tensor-parallel ranks have it whole
    bool cut = false;     // where it is told apart
  };

  void add(ParameterBase& p, Kind kind, const std::string& path, Unit& unit, FieldOptions options) {
    if (p.shape().elements() == 0) return;  // a parameter that is not there: the bias of a layer without one
    kind.summed_over_tp = kind.summed_over_tp && p.cut().dim < 0 && !options_.one_part;
    kind.cut = options_.cuts_apart && p.cut().parts > 1;
    const std::string tie(options.tie);
    if (!tie.empty()) {
      for (const Entry& first : entries_) {
        if (first.block->tie != tie) continue;
        share(p, *first.parameter, kind, path, tie, unit);
        return;
      }
    }
    const bool persistent = p.size() < options_.persistence_threshold;
    Block& block = block_of(unit, kind, p.frozen(), persistent, tie);
    p.place(&block, 0);
    const std::string& name = tie.empty() ? path : tie;
    const std::size_t group = group_of(name);
    UpdateRule rule{.decay = options.decay};
    if (group < options_.groups.size()) {
      rule = {.decay = rule.decay && options_.groups[group].decay, .rate = options_.groups[group].rate};
      ++members_[group];
    }
    entries_.push_back({&p, &block, name, rule, group});
  }

  static void expect_rate(const ParameterGroup& group) {
    if (group.rate >= 0 && group.rate <= std::numeric_limits<double>::max()) return;
    throw ConfigError("the parameter group \"" + group.names + "\" multiplies the learning rate by " +
                      std::to_string(group.rate) + ": expected a number from 0");
  }
  [[nodiscard]] std::size_t group_of(const std::string& name) const {
    std::size_t group = 0;
    while (group < options_.groups.size() && !options_.groups[group].has(name)) ++group;
    return group;
  }

  /// Ties `p` to the parameter that was declared first: one place, which both units use.
  void share(ParameterBase& p, const ParameterBase& first, Kind kind, const std::string& path, const std::string& tie,
             Unit& unit) {
    const bool same_cut = p.cut().dim == first.cut().dim && p.cut().parts == first.cut().parts;
    if (p.shape() != first.shape() || !same_cut || kind.element_bytes != first.block()->element_bytes) {
      throw ConfigError(path + " is tied to \"" + tie + "\", but has the shape " + to_string(p.shape()) +
                        " where that has " + to_string(first.shape()) + ", or another cut or type");
    }
    if (kind.summed_over_tp != first.block()->summed_over_tp) {
      throw ConfigError(path + " is tied to \"" + tie +
                        "\", but only one of the two has a gradient that is summed over the tensor-parallel ranks");
    }
    p.place(first.block(), first.offset());
    if (std::find(unit.uses.begin(), unit.uses.end(), p.block()) == unit.uses.end()) unit.uses.push_back(p.block());
    tied_.emplace_back(&p, &first);
  }

  Block& block_of(Unit& unit, Kind kind, bool frozen, bool persistent, const std::string& tie) {
    for (Block* b : unit.uses) {
      const bool own = owners_[static_cast<std::size_t>(b->id)] == unit.id;
      if (own && b->element_bytes == kind.element_bytes && b->summed_over_tp == kind.summed_over_tp &&
          b->cut == kind.cut && b->frozen == frozen && b->persistent == persistent && b->tie == tie) {
        return *b;
      }
    }
    Block& block = blocks_.emplace_back();
    block.element_bytes = kind.element_bytes;
    block.summed_over_tp = kind.summed_over_tp;
    block.cut = kind.cut;
    block.frozen = frozen;
    block.persistent = persistent;
    block.tie = tie;
    block.id = static_cast<int>(blocks_.size()) - 1;
    owners_.push_back(unit.id);
    unit.uses.push_back(&block);
    return block;
  }

  /// Inside a block, parameters are in order of (group, weight decay, cut or not): at most four runs of each group for
  /// an optimizer.
  void place() {
    for (std::size_t group = 0; group <= options_.groups.size(); ++group) {
      for (const bool decays : {true, false}) {
        for (const bool is_cut : {true, false}) {
          for (const Entry& e : entries_) {
            if (e.group == group && e.rule.decay == decays && (e.parameter->cut().dim >= 0) == is_cut) append(e);
          }
        }
      }
    }
    for (const auto& [parameter, first] : tied_) parameter->place(first->block(), first->offset());
    for (Unit& u : units_) {
      for (Block* b : u.uses) ++b->users;
    }
    entries_.clear();
  }

  static void append(const Entry& e) {
    const std::size_t begin = e.block->size;
    e.block->size += e.parameter->size();
    e.parameter->place(e.block, begin);
    e.block->segments.push_back({begin, e.block->size, e.name, e.parameter, e.rule});
  }

  LayoutOptions options_;
  std::vector<std::size_t> members_;  // of each group of the options
  std::deque<Unit> units_;
  std::deque<Block> blocks_;
  std::vector<int> owners_;  // of each block: the unit that declares it
  std::vector<Entry> entries_;
  std::vector<std::pair<ParameterBase*, const ParameterBase*>> tied_;
};

}  // namespace smp
