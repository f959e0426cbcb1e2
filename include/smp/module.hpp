// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The contract of a module, in one place. A module is a plain type with
///
///     using Input = ...; using Output = ...;    // tensors, tuples or structs of them, ids; typed: Dist<...>
///     struct Saved { ... };                     // what backward needs of one micro-batch; the caller owns it
///     Output        forward (auto& ctx, const Input&, Saved&) const;
///     GradOf<Input> backward(auto& ctx, const GradOf<Output>&, Saved&);   // adds to the gradients of parameters
///     static constexpr auto fields();           // its parameters and children, by name
///
/// `forward` is const because several micro-batches are in flight. `Saved` can be made without arguments, and
/// `saved = {}` frees what it holds and keeps its capacity. Whoever calls `backward` says that afterwards, so that
/// activations are freed while backward goes back. `backward` may take the gradient by value, to let go of it early.
///
/// A backward may also come in two parts (`SplitBackward`).

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <smp/distribution.hpp>
#include <smp/parameter.hpp>

namespace smp {

/// How a unit is passed: forward, and backward at once or in two parts, of which only the last completes the gradients
/// of its parameters.
enum class Phase : unsigned char { forward, backward, backward_input, backward_params };

/// True for the passes after which the gradients of a unit's parameters are complete.
[[nodiscard]] constexpr bool completes_gradients(Phase phase) noexcept {
  return phase == Phase::backward || phase == Phase::backward_params;
}

/// Parameters whose values come and go together: a repeated layer, an element of a sequence, a member marked `AsUnit`.
struct Unit {
  std::string path;          ///< of the module in the whole model
  std::vector<Block*> uses;  ///< its own blocks, then those of other units that its parameters are tied to
  int id = 0;                ///< place in the layout; 0 is the root, which is there for the whole call
  int shard_degree = 1;      ///< ranks that share its blocks, as the innermost `Sharded` around it says
  int parent = -1;           ///< unit around it; -1: none
};

/// The nested types of a module.
template <class M>
concept ModuleTypes = requires {
  typename M::Input;
  typename M::Output;
  typename M::Saved;
  requires std::default_initializable<typename M::Saved>;
};

/// A module that runs in a context of type `Ctx`.
template <class M, class Ctx>
concept Module = ModuleTypes<M> && requires(const M& fixed, M& m, Ctx& ctx, const typename M::Input& x,
                                            typename M::Saved& saved, const GradOf<typename M::Output>& dy) {
  { fixed.forward(ctx, x, saved) } -> std::same_as<typename M::Output>;
  { m.backward(ctx, dy, saved) } -> std::same_as<GradOf<typename M::Input>>;
};

/// A module whose backward comes in two parts, for schedules that let the second wait: `backward_input` gives the
/// gradient of the input, `backward_params(ctx, saved)` later adds to the gradients of the parameters.
template <class M, class Ctx>
concept SplitBackward =
    Module<M, Ctx> && requires(M& m, Ctx& ctx, typename M::Saved& saved, const GradOf<typename M::Output>& dy) {
      { m.backward_input(ctx, dy, saved) } -> std::same_as<GradOf<typename M::Input>>;
      m.backward_params(ctx, saved);
    };

/// The first part of a module's backward; all of it if the module has no parts.
template <class M, class Ctx>
[[nodiscard]] GradOf<typename M::Input> backward_input(M& m, Ctx& ctx, GradOf<typename M::Output> dy,
                                                       typename M::Saved& saved) {
  if constexpr (requires { m.backward_input(ctx, dy, saved); }) {
    return m.backward_input(ctx, std::move(dy), saved);
  } else {
    return m.backward(ctx, std::move(dy), saved);
  }
}

/// The second part of a module's backward, if it has parts.
template <class M, class Ctx>
void backward_params(M& m, Ctx& ctx, typename M::Saved& saved) {
  if constexpr (requires { m.backward_params(ctx, saved); }) m.backward_params(ctx, saved);
}

/// A module around another that adds no name: `inner()` is the other.
template <class M>
concept Wrapper = requires(M& m) { m.inner(); };

/// A module made of modules in order: `children(f)` calls `f(name, child, unit slot)` for each, or `f(name, child, unit
/// slot, around)` with what is around the parameters of a plain child. If it says `elements_are_units`, every child is
/// a unit.
template <class M>
concept Container = requires(M& m) { m.children([](auto&&...) {}); };

/// Says in words what is missing in a module; for the static_assert of whatever holds one.
template <class M, class Ctx>
consteval bool expect_module() {
  static_assert(
      requires {
        typename M::Input;
        typename M::Output;
        typename M::Saved;
      }, "smp: a module needs the nested types Input, Output and Saved");
  constexpr bool saved_is_empty_at_first = [] {
    if constexpr (requires { typename M::Saved; }) {
      return std::default_initializable<typename M::Saved> && std::movable<typename M::Saved>;
    }
    return true;
  }();
  static_assert(
      saved_is_empty_at_first,
      "smp: the Saved of a module must have a default constructor and assignment; a View has neither, for its "
      "storage moves: ask for value() again in backward");
  if constexpr (ModuleTypes<M>) {
    constexpr bool runs_forward = requires(const M& m, Ctx& ctx, const typename M::Input& x, typename M::Saved& s) {
      { m.forward(ctx, x, s) } -> std::same_as<typename M::Output>;
    };
    constexpr bool runs_backward =
        requires(M& m, Ctx& ctx, const GradOf<typename M::Output>& dy, typename M::Saved& s) {
          { m.backward(ctx, dy, s) } -> std::same_as<GradOf<typename M::Input>>;
        };
    static_assert(runs_forward, "smp: a module must be callable as 'Output forward(ctx, const Input&, Saved&) const'");
    static_assert(!runs_forward || runs_backward,
                  "smp: a module must be callable as 'GradOf<Input> backward(ctx, const GradOf<Output>&, Saved&)'; the "
                  "gradient of Replicated is Partial, of Partial Replicated, of ids NoGrad");
  }
  return true;
}

}  // namespace smp
