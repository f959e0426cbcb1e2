// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A `Sequential` as the row of layers that a pipeline cuts: its children, of a `Repeat` each element. A run of layers
/// is run by itself; which layers is known at run time, so that the depth of a pipeline costs nothing at compile time.

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/checkpoint_groups.hpp>

namespace smp {

/// True for the repetitions.
template <class M>
inline constexpr bool is_repeat = false;
/// They are.
template <class M>
inline constexpr bool is_repeat<Repeat<M>> = true;

/// The alternatives of a variant: types that are new, behind those that it has.
template <class Variant, class... Ts>
struct WithAlternatives {
  using type = Variant;  ///< nothing is added
};
template <class... Vs, class T, class... Ts>
struct WithAlternatives<std::variant<Vs...>, T, Ts...>
    : WithAlternatives<std::conditional_t<(std::is_same_v<T, Vs> || ...), std::variant<Vs...>, std::variant<Vs..., T>>,
                       Ts...> {};

/// Elements `first` to `last - 1` of a repetition, as a container for the layout.
template <class M>
struct RepeatPart {
  static constexpr bool elements_are_units = true;  ///< for the layout
  Repeat<M>& whole;                                 ///< the repetition
  LayerRange range;                                 ///< which elements
  /// Calls `f(name, child, unit slot)` for each element; names are those in the repetition.
  template <class F>
  void children(F&& f) {
    for (auto i = static_cast<std::size_t>(range.first); i < static_cast<std::size_t>(range.last); ++i) {
      f(std::to_string(i), whole[i], whole.unit(i));
    }
  }
};

/// The layers of a model; see the file.
template <class M>
class Layers;

/// @tparam Ms children of the `Sequential`
template <class... Ms>
class Layers<Sequential<Ms...>> {
  using Model = Sequential<Ms...>;
  static constexpr std::size_t count = sizeof...(Ms);
  template <std::size_t I>
  using Joint = typename Model::template JointAt<I>;
  template <std::size_t I>
  using Child = std::tuple_element_t<I, std::tuple<Ms...>>;
  template <class Indices>
  struct Types;
  template <std::size_t... I>
  struct Types<std::index_sequence<I...>> {
    using Value = typename WithAlternatives<std::variant<std::monostate>, typename Joint<I>::Input...,
                                            typename Model::Output>::type;
    using Gradient = typename WithAlternatives<std::variant<std::monostate>, GradOf<typename Joint<I>::Input>...,
                                               GradOf<typename Model::Output>>::type;
  };
  using All = Types<std::make_index_sequence<count>>;

 public:
  using Saved = typename Model::Saved;      ///< of all layers; a run of them uses its own part
  using Value = typename All::Value;        ///< what passes from one layer to the next; nothing at first
  using Gradient = typename All::Gradient;  ///< its gradient

  /// The layers of `model`, which stays where it is.
  explicit Layers(Model& model) : model_(&model) {
    for_each_child([&]<std::size_t I>(Index<I>) {
      int layers = 1;
      if constexpr (is_repeat<Child<I>>) layers = static_cast<int>(model.template child<I>().size());
      first_[I + 1] = first_[I] + layers;
    });
  }

  /// How many layers there are.
  [[nodiscard]] int size() const noexcept { return first_[count]; }
  /// Calls `f(name, layer)` for each layer, with its name in the model.
  template <class F>
  void for_each(F&& f) {
    for_each_child([&]<std::size_t I>(Index<I>) {
      auto& child = model_->template child<I>();
      if constexpr (is_repeat<Child<I>>) {
        for (std::size_t i = 0; i < child.size(); ++i) f(model_->name(I) + "." + std::to_string(i), child[i]);
      } else {
        f(model_->name(I), child);
      }
    });
  }
  /// Calls `f(name, child, unit slot, around)` for what of the children is in `range`, as a container does.
  template <class F>
  void children(LayerRange range, F&& f) {
    for_each_child([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      if constexpr (is_repeat<Child<I>>) {
        RepeatPart<typename Child<I>::value_type> elements{model_->template child<I>(), part};
        f(model_->name(I), elements, model_->unit(I), typename Joint<I>::Outside{});
      } else {
        f(model_->name(I), model_->template child<I>(), model_->unit(I), typename Joint<I>::Outside{});
      }
    });
  }

  /// An empty value of the type that arrives at a layer; of the model's output, behind the last one.
  [[nodiscard]] Value value_before(int layer) const {
    Value value{std::in_place_type<typename Model::Output>};
    for_each_child([&]<std::size_t I>(Index<I>) {
      if (layer >= first_[I] && layer < first_[I + 1]) value.template emplace<typename Joint<I>::Input>();
    });
    return value;
  }
  /// An empty gradient of what arrives at a layer.
  [[nodiscard]] Gradient gradient_before(int layer) const {
    Gradient gradient{std::in_place_type<GradOf<typename Model::Output>>};
    for_each_child([&]<std::size_t I>(Index<I>) {
      if (layer >= first_[I] && layer < first_[I + 1]) gradient.template emplace<GradOf<typename Joint<I>::Input>>();
    });
    return gradient;
  }

  /// The layers of `range`, in order. `x` is what arrives at the first of them.
  template <class Ctx>
  [[nodiscard]] Value forward(Ctx& ctx, LayerRange range, Value x, Saved& saved) const {
    for_each_child([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      using In = typename Joint<I>::Input;
      In value = std::move(*std::get_if<In>(&x));
      x = std::monostate{};
      const Model& model = *model_;
      if constexpr (is_repeat<Child<I>>) {
        auto& elements = std::get<I>(saved);
        elements.resize(model.template child<I>().size());
        for (auto i = begin(part); i < end(part); ++i) {
          value = ctx.unit(model.template child<I>().unit(i), Phase::forward, [&] {
            return ElementJoint<I>::forward(model.template child<I>()[i], ctx, value, elements[i]);
          });
        }
        x.template emplace<In>(std::move(value));
      } else {
        x.template emplace<typename Joint<I>::Output>(model.template forward_child<I>(ctx, value, saved));
      }
    });
    return x;
  }

  /// Their backward, from the last to the first: all of it, or the first part.
  template <class Ctx>
  [[nodiscard]] Gradient backward(Ctx& ctx, LayerRange range, Gradient dy, Saved& saved, Phase phase) {
    for_each_child_back([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      using Out = GradOf<typename Joint<I>::Output>;
      using In = GradOf<typename Joint<I>::Input>;
      Out gradient = std::move(*std::get_if<Out>(&dy));
      dy = std::monostate{};
      if constexpr (is_repeat<Child<I>>) {
        dy.template emplace<In>(backward_elements<I>(ctx, part, std::move(gradient), saved, phase));
      } else if (phase == Phase::backward_input) {
        dy.template emplace<In>(model_->template backward_input_child<I>(ctx, std::move(gradient), saved));
      } else {
        dy.template emplace<In>(model_->template backward_child<I>(ctx, std::move(gradient), saved));
      }
    });
    return dy;
  }

  /// Frees what the layers of `range` have saved.
  void clear(LayerRange range, Saved& saved) const {
    for_each_child([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      if constexpr (is_repeat<Child<I>>) {
        for (auto i = begin(part); i < end(part); ++i) std::get<I>(saved)[i] = {};
      } else {
        std::get<I>(saved) = {};
      }
    });
  }

  /// The second part of their backward.
  template <class Ctx>
  void backward_params(Ctx& ctx, LayerRange range, Saved& saved) {
    for_each_child_back([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      if constexpr (is_repeat<Child<I>>) {
        auto& child = model_->template child<I>();
        for (auto i = end(part); i-- > begin(part);) {
          ctx.unit(child.unit(i), Phase::backward_params,
                   [&] { ElementJoint<I>::backward_params(child[i], ctx, std::get<I>(saved)[i]); });
        }
      } else {
        model_->template backward_params_child<I>(ctx, saved);
      }
    });
  }

 private:
  template <std::size_t I>
  using Index = std::integral_constant<std::size_t, I>;
  /// An element of a repetition where the repetition stands.
  template <std::size_t I>
  using ElementJoint = smp::Joint<typename Child<I>::value_type, typename Joint<I>::Arriving>;

  template <std::size_t I>
  auto backward_elements(auto& ctx, LayerRange part, GradOf<typename Joint<I>::Output> dy, Saved& saved, Phase phase) {
    auto& child = model_->template child<I>();
    auto& elements = std::get<I>(saved);
    for (auto i = end(part); i-- > begin(part);) {
      dy = ctx.unit(child.unit(i), phase, [&] {
        return phase == Phase::backward_input
                   ? ElementJoint<I>::backward_input(child[i], ctx, std::move(dy), elements[i])
                   : ElementJoint<I>::backward(child[i], ctx, std::move(dy), elements[i]);
      });
    }
    return dy;
  }

  /// What of child `I` is in `range`: elements of a repetition, else 0 to 1 or nothing.
  template <std::size_t I>
  [[nodiscard]] LayerRange part_of(LayerRange range) const noexcept {
    const int from = range.first > first_[I] ? range.first : first_[I];
    const int to = range.last < first_[I + 1] ? range.last : first_[I + 1];
    return {from - first_[I], to - first_[I]};
  }
  [[nodiscard]] static std::size_t begin(LayerRange part) noexcept { return static_cast<std::size_t>(part.first); }
  [[nodiscard]] static std::size_t end(LayerRange part) noexcept { return static_cast<std::size_t>(part.last); }

  template <class F>
  static void for_each_child(F&& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) { (f(Index<I>{}), ...); }(std::make_index_sequence<count>{});
  }
  template <class F>
  static void for_each_child_back(F&& f) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (f(Index<count - 1 - I>{}), ...);
    }(std::make_index_sequence<count>{});
  }

  Model* model_;
  std::array<int, count + 1> first_{};  // by child: its first layer
};

/// The layers of a model that is, or is derived from, this `Sequential`.
template <class... Ms>
Layers<Sequential<Ms...>> layers_of(Sequential<Ms...>& model) {
  return Layers<Sequential<Ms...>>(model);
}
/// A model whose layers a pipeline can spread.
template <class M>
concept HasLayers = requires(M& model) { layers_of(model); };

/// The layers of a model, as a type.
template <class M>
struct LayersOfT {
  /// What is used of the layers of a model that has none, before that is said.
  struct None {
    struct Value {};     ///< there is none
    struct Gradient {};  ///< there is none
    struct Saved {};     ///< there is none
  };
  using type = None;  ///< of a model that has none
};
template <HasLayers M>
struct LayersOfT<M> {
  using type = decltype(layers_of(std::declval<M&>()));  ///< its own
};
/// The layers of a model, as a type.
template <class M>
using LayersOf = typename LayersOfT<M>::type;

}  // namespace smp
