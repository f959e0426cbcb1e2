// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A `Sequential` as the row of layers that a pipeline cuts: its children, of a `Repeat` each element, also of one in a
/// `Checkpointed`. A run of layers is run by itself; which layers is known at run time, so that the depth of a pipeline
/// costs nothing at compile time.

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <smp/module.hpp>
#include <smp/parallel/boundary.hpp>
#include <smp/parallel/checkpointed.hpp>
#include <smp/parallel/repeat.hpp>
#include <smp/parallel/sequential.hpp>
#include <smp/pipeline/checkpoint_groups.hpp>

namespace smp {

/// How many layers a child of the model is: one, whatever it is made of.
template <class C>
struct RowOf {
  static constexpr bool repeats = false;  ///< it is no repetition
};
/// One for each element of a repetition.
template <class M>
struct RowOf<Repeat<M>> {
  static constexpr bool repeats = true;  ///< it is one
  using Layer = M;                       ///< an element
  /// The elements of `child`.
  [[nodiscard]] static Repeat<M>& elements(Repeat<M>& child) noexcept { return child; }
  /// What they have saved.
  [[nodiscard]] static typename Repeat<M>::Saved& saved(typename Repeat<M>::Saved& all) noexcept { return all; }
  /// Whether only their input is kept.
  [[nodiscard]] static bool checkpointed(const Repeat<M>&) noexcept { return false; }
};
/// The same of a repetition that is checkpointed as a whole. Its layers are run one by one, so who runs them keeps what
/// the wrapper would have kept.
template <class M, int Enabled>
struct RowOf<Checkpointed<Repeat<M>, Enabled>> {
  static constexpr bool repeats = true;            ///< it is one
  using Layer = M;                                 ///< an element
  using Child = Checkpointed<Repeat<M>, Enabled>;  ///< the wrapper
  /// The elements of `child`.
  [[nodiscard]] static Repeat<M>& elements(Child& child) noexcept { return child.inner(); }
  /// What they have saved.
  [[nodiscard]] static typename Repeat<M>::Saved& saved(typename Child::Saved& all) noexcept { return all.inner; }
  /// Whether only their input is kept.
  [[nodiscard]] static bool checkpointed(const Child& child) noexcept { return child.enabled(); }
};

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
  template <std::size_t I>
  using Row = RowOf<Child<I>>;
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
      if constexpr (Row<I>::repeats) layers = static_cast<int>(elements<I>().size());
      first_[I + 1] = first_[I] + layers;
    });
  }

  /// How many layers there are.
  [[nodiscard]] int size() const noexcept { return first_[count]; }
  /// Calls `f(name, layer)` for each layer, with its name in the model.
  template <class F>
  void for_each(F&& f) {
    for_each_child([&]<std::size_t I>(Index<I>) {
      if constexpr (Row<I>::repeats) {
        auto& all = elements<I>();
        for (std::size_t i = 0; i < all.size(); ++i) f(model_->name(I) + "." + std::to_string(i), all[i]);
      } else {
        f(model_->name(I), model_->template child<I>());
      }
    });
  }
  /// The layers that are checkpointed together, in order.
  [[nodiscard]] std::vector<CheckpointedTree> trees() const {
    std::vector<CheckpointedTree> all;
    for_each_child([&]<std::size_t I>(Index<I>) {
      if constexpr (Row<I>::repeats) {
        const LayerRange layers{first_[I], first_[I + 1]};
        if (layers.first < layers.last && Row<I>::checkpointed(model_->template child<I>())) {
          all.push_back({model_->name(I), layers});
        }
      }
    });
    return all;
  }
  /// Calls `f(name, child, unit slot, around)` for what of the children is in `range`, as a container does.
  template <class F>
  void children(LayerRange range, F&& f) {
    for_each_child([&]<std::size_t I>(Index<I>) {
      const LayerRange part = part_of<I>(range);
      if (part.first >= part.last) return;
      if constexpr (Row<I>::repeats) {
        RepeatPart<typename Row<I>::Layer> some{elements<I>(), part};
        f(model_->name(I), some, model_->unit(I), typename Joint<I>::Outside{});
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
      if constexpr (Row<I>::repeats) {
        const auto& all = elements<I>();
        auto& kept = Row<I>::saved(std::get<I>(saved));
        kept.resize(all.size());
        for (auto i = begin(part); i < end(part); ++i) {
          value = ctx.unit(all.unit(i), Phase::forward,
                           [&] { return ElementJoint<I>::forward(all[i], ctx, value, kept[i]); });
        }
        x.template emplace<In>(std::move(value));
      } else {
        const Model& model = *model_;
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
      if constexpr (Row<I>::repeats) {
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
      if constexpr (Row<I>::repeats) {
        for (auto i = begin(part); i < end(part); ++i) Row<I>::saved(std::get<I>(saved))[i] = {};
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
      if constexpr (Row<I>::repeats) {
        auto& all = elements<I>();
        auto& kept = Row<I>::saved(std::get<I>(saved));
        for (auto i = end(part); i-- > begin(part);) {
          ctx.unit(all.unit(i), Phase::backward_params,
                   [&] { ElementJoint<I>::backward_params(all[i], ctx, kept[i]); });
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
  using ElementJoint = smp::Joint<typename Row<I>::Layer, typename Joint<I>::Arriving>;
  /// The elements of a repetition.
  template <std::size_t I>
  [[nodiscard]] auto& elements() const noexcept {
    return Row<I>::elements(model_->template child<I>());
  }

  template <std::size_t I>
  auto backward_elements(auto& ctx, LayerRange part, GradOf<typename Joint<I>::Output> dy, Saved& saved, Phase phase) {
    auto& all = elements<I>();
    auto& kept = Row<I>::saved(std::get<I>(saved));
    for (auto i = end(part); i-- > begin(part);) {
      dy = ctx.unit(all.unit(i), phase, [&] {
        return phase == Phase::backward_input ? ElementJoint<I>::backward_input(all[i], ctx, std::move(dy), kept[i])
                                              : ElementJoint<I>::backward(all[i], ctx, std::move(dy), kept[i]);
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
