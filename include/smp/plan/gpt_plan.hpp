// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// The sizes of a language model of GPT's shape, cut over tensor-parallel ranks, and what these send for its
/// activations. Radford and others: Language Models are Unsupervised Multitask Learners, 2019; cut as in Shoeybi and
/// others: Megatron-LM, 2019, and, with slices of the sequence, Korthikanti and others: Reducing Activation
/// Recomputation in Large Transformer Models, 2022.

#include <cstddef>
#include <vector>

#include <smp/plan/model_sizes.hpp>
#include <smp/plan/rank_plan.hpp>

namespace smp {

/// How large a model is.
struct GptShape {
  std::size_t layers = 12;         ///< transformer layers
  std::size_t hidden = 768;        ///< width
  std::size_t sequence = 1024;     ///< places
  std::size_t vocabulary = 50257;  ///< tokens
  bool learned_positions = true;   ///< a parameter for each place; else none, as with rotary positions
  bool tied = true;                ///< the head's matrix is the embedding's
};

/// How it is stored and run.
struct GptRun {
  std::size_t element_bytes = 4;  ///< of parameters and activations
  bool slices =
      false;  ///< tensor-parallel ranks hold slices of the sequence between layers ("memory"), not all ("speed")
  bool recompute = false;        ///< layers are checkpointed
  std::size_t samples = 1;       ///< of a micro-batch, those of all tensor-parallel ranks together
  std::size_t microbatches = 1;  ///< of a step
};

/// The parameters in the order of declaration. Embedding, positions, each layer, the last norm and the head are units,
/// in a root that has nothing of its own.
/// @param places the rank
[[nodiscard]] constexpr std::vector<ParameterSizes> gpt_parameters(const GptShape& shape, const GptRun& run,
                                                                   const GroupPlaces& places) {
  std::vector<ParameterSizes> all;
  const std::size_t tp = places.size(Group::tp), h = shape.hidden;
  const auto add = [&](int unit, std::size_t elements, bool decay, bool cut, int tie = -1) {
    const bool summed = tp > 1 && run.slices && !cut;
    all.push_back({unit, elements, run.element_bytes, tie, decay, false, cut && tp > 1, summed});
  };
  const auto norm = [&](int unit) {
    add(unit, h, false, false);
    add(unit, h, false, false);
  };
  const auto branch = [&](int unit, std::size_t wide, std::size_t inner) {  // h -> wide by columns, inner -> h by rows
    norm(unit);
    add(unit, wide * h / tp, true, true);
    add(unit, wide / tp, false, true);
    add(unit, inner * h / tp, true, true);
    add(unit, h, false, false);
  };
  const auto tokens = [&](int unit) {
    add(unit, piece_size(shape.vocabulary, places.rank_in(Group::tp), tp) * h, true, true, shape.tied ? 0 : -1);
  };
  int unit = 1;
  tokens(unit++);
  if (shape.learned_positions) add(unit, shape.sequence * h, true, false);
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    branch(++unit, 3 * h, h);
    branch(unit, 4 * h, 4 * h);
  }
  norm(++unit);
  tokens(++unit);
  return all;
}

/// Units and blocks of that model on one rank.
[[nodiscard]] constexpr ModelSizes gpt_sizes(const GptShape& shape, const GptRun& run, const GroupPlaces& places,
                                             const BlockOptions& options = {}) {
  std::vector<int> parents(shape.layers + 5, 0);
  parents.front() = -1;
  return make_model_sizes(gpt_parameters(shape, run, places), parents, options);
}

/// Adds what a rank sends in its TP group in a step, for a hidden state of X elements: in a layer two all-reduces of X
/// forward, two backward, and those of forward again if it is recomputed; with slices, an all-gather and a
/// reduce-scatter for each, and two gathers more, of the inputs of which only slices are kept. The embedding sums
/// forward, the head backward, and the loss has two all-reduces: the largest logit of each row, then its sum and the
/// target's.
constexpr void add_gpt_activations(RankPlan& plan, const GptShape& shape, const GptRun& run,
                                   const GroupPlaces& places) {
  const std::size_t tp = places.size(Group::tp), rows = run.samples * shape.sequence, state = rows * shape.hidden;
  if (tp == 1) return;
  const std::size_t passes = (run.recompute ? 3 : 2) * shape.layers;  // through layers
  const std::size_t sums = 2 * passes + 2;
  if (run.slices) {
    const std::size_t slice = (tp - 1) * state / tp * run.element_bytes;
    const std::size_t again = 2 * shape.layers + 1;  // inputs of attentions, MLPs and of the head
    plan.add(Group::tp, Collective::all_gather, run.microbatches * (sums + again),
             run.microbatches * (sums + again) * slice);
    plan.add(Group::tp, Collective::reduce_scatter, run.microbatches * sums, run.microbatches * sums * slice);
  } else {
    plan.add_all_reduce(places, Group::tp, state, run.element_bytes, run.microbatches * sums);
  }
  plan.add_all_reduce(places, Group::tp, rows, run.element_bytes, run.microbatches);
  plan.add_all_reduce(places, Group::tp, 2 * rows, run.element_bytes, run.microbatches);
}

}  // namespace smp
