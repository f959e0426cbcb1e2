// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// A model whose layers are spread over ranks. Each rank constructs the whole model, for modules own no storage, and
/// places the parameters of its own stages only, under their names in the whole model: so initial values, seeds and
/// files are those of one rank.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <smp/comm/communicator.hpp>
#include <smp/comm/facts.hpp>
#include <smp/error.hpp>
#include <smp/module.hpp>
#include <smp/parallel/count_parameters.hpp>
#include <smp/pipeline/checkpoint_groups.hpp>
#include <smp/pipeline/crossing.hpp>
#include <smp/pipeline/layers.hpp>
#include <smp/pipeline/parcels.hpp>
#include <smp/pipeline/partition.hpp>
#include <smp/pipeline/runner.hpp>
#include <smp/pipeline/schedules.hpp>
#include <smp/pipeline/stage.hpp>
#include <smp/pipeline/work.hpp>
#include <smp/timeline.hpp>
#include <smp/topology.hpp>

namespace smp {

/// How a model is spread over the ranks of a pipeline.
struct PipelineOptions {
  /// Layers of each stage, in the order of the model; empty: as even as it goes, by the size of their parameters.
  std::vector<int> partition{};
  CheckpointGroups checkpointing{};  ///< layers of a stage that keep their input together, and compute twice
  int active = 0;       ///< at most this many micro-batches under way on a rank; 0: as many as the schedule likes
  bool overlap = true;  ///< send and receive beside the computation; an MPI without threads cannot
  Timeline* timeline = nullptr;  ///< actions are noted there; outlives the pipeline
  /// Gets, on rank 0 of the world alone, sentences about what is not done as the model says though it can be run; null:
  /// they are written on stderr.
  std::vector<std::string>* warnings = nullptr;
};

/// The layers of a `Sequential` on the ranks of the PP group, run as the schedule `S` says. Strategies of parameters
/// are put around it, and `smp::step` runs it:
///
///     using Model = smp::Pipeline<smp::Schedule::Interleaved, Net>;
///     smp::DataParallel<Model> trainer(ctx, Model(ctx, Net(...)), smp::optim::AdamW{});
///     smp::step(ctx, trainer, loss, inputs, targets, {.microbatches = 8});
///
/// A `Checkpointed<Repeat<...>>` among the children keeps its input only, if all of its layers are on one stage. If an
/// automatic partition cuts it, it is run as if it were not wrapped, with a warning; a given partition must not cut it.
/// Any other wrapper is one layer, whatever is in it.
/// @tparam S a schedule; `Schedule::Runtime` is said when the model is constructed
/// @tparam M a `Sequential`, or derived from one. Its children are the layers; of a `Repeat` or a
///   `Checkpointed<Repeat<...>>` among them each element is one
template <PipelineSchedule S, class M>
class Pipeline {
  static_assert(
      HasLayers<M>,
      "smp::Pipeline: the model is no Sequential, nor derived from one: a pipeline cuts between the children of "
      "a Sequential. A Checkpointed or another wrapper around it would lie across stages: wrap its children, or "
      "say PipelineOptions::checkpointing");

 public:
  using Schedule = S;                           ///< the order of actions
  using Model = M;                              ///< what is spread
  using Rows = LayersOf<M>;                     ///< its layers
  using Input = typename M::Input;              ///< of the first stage
  using Output = typename M::Output;            ///< of the last stage
  struct Saved {};                              ///< what is saved is in the slots of the micro-batches
  using Slots = std::vector<StageSaved<Rows>>;  ///< of one chunk

  /// Spreads `model`; all ranks of the PP group call it with equal models.
  /// @throws ConfigError if the layers cannot be spread like that
  template <class Ctx>
  Pipeline(Ctx& ctx, M model, PipelineOptions options = {}, S schedule = S{})
      : model_(std::move(model)),
        schedule_(std::move(schedule)),
        options_(std::move(options)),
        rank_(ctx.groups()[Group::pp].rank()),
        placed_(place_stages(schedule_, shape_of(schedule_, {.ranks = ctx.groups()[Group::pp].size()}))),
        slots_(static_cast<std::size_t>(placed_.shape.chunks)) {
    if (placed_.stages() < 1) detail::refuse_number("the number of stages", placed_.stages(), 1);
    cut();
    const std::vector<CheckpointedTree> trees = rows().trees();
    for (int chunk = 0; chunk < chunks(); ++chunk) {
      groups_.push_back(group_layers(range(chunk), options_.checkpointing, trees));
    }
    comm::expect_equal_facts(ctx.groups()[Group::world], facts(trees));
    if (!options_.partition.empty()) refuse_torn(trees);
    if (ctx.groups()[Group::world].rank() == 0) warn_of_torn(trees);
  }

  /// Calls `f(name, child, unit slot, around)` for the layers on this rank, with their names in the whole model.
  template <class F>
  void children(F&& f) {
    for (int chunk = 0; chunk < chunks(); ++chunk) rows().children(range(chunk), f);
  }

  /// The layers of the whole model.
  [[nodiscard]] Rows rows() noexcept { return Rows(model_); }
  /// The whole model; only the layers of this rank have values.
  [[nodiscard]] M& model() noexcept { return model_; }
  /// Which layers each stage has.
  [[nodiscard]] const Partition& partition() const noexcept { return partition_; }
  /// The layers of one of this rank's chunks, in groups that are checkpointed together.
  [[nodiscard]] const std::vector<LayerGroup>& groups(int chunk) const noexcept {
    return groups_[static_cast<std::size_t>(chunk)];
  }
  /// The layers of one of this rank's chunks.
  [[nodiscard]] LayerRange range(int chunk) const noexcept {
    const int stage = this->stage(chunk);
    return stage < 0 ? LayerRange{} : range_of(stage);
  }
  /// Which stage one of this rank's chunks is; -1 if there is no such chunk.
  [[nodiscard]] int stage(int chunk) const noexcept { return placed_.chunk_stage[rank_ * chunks() + chunk]; }
  /// Most stages on one rank.
  [[nodiscard]] int chunks() const noexcept { return placed_.shape.chunks; }
  /// How many stages there are.
  [[nodiscard]] int stages() const noexcept { return placed_.stages(); }
  /// The rank of the PP group that has a stage.
  [[nodiscard]] int rank_of(int stage) const noexcept { return placed_.stage_rank[stage]; }

  /// What this rank does in a step of that many micro-batches. Kept for the next one.
  /// @throws ConfigError if the schedule cannot run that many; all ranks find out alike
  [[nodiscard]] const PipelineWork& work(int microbatches, bool training) {
    for (const auto& known : works_) {
      if (known->plan.shape.microbatches == microbatches && known->training == training) return *known;
    }
    const PipelineShape shape{.ranks = placed_.ranks(), .microbatches = microbatches, .active = options_.active};
    works_.push_back(
        std::make_unique<PipelineWork>(training ? make_pipeline_work(schedule_, shape, rank_)
                                                : make_pipeline_work(ForwardOnlySchedule<S>{schedule_}, shape, rank_)));
    return *works_.back();
  }
  /// What micro-batches save in a chunk: at least `count` slots. They are kept.
  [[nodiscard]] Slots& slots(int chunk, int count) {
    Slots& all = slots_[static_cast<std::size_t>(chunk)];
    if (all.size() < static_cast<std::size_t>(count)) all.resize(static_cast<std::size_t>(count));
    return all;
  }

  /// What is left of a step that has failed.
  void clear() {
    for (Slots& all : slots_) {
      for (auto& saved : all) saved.clear();
    }
    mail_.reset();
  }

  /// Runs this rank's part of a step. `strategy` is around this pipeline.
  /// @param microbatches of the step
  /// @param training with backwards
  /// @param completes the step is the last one before the update: gradients are reduced as they are completed
  /// @param ends as `PipelineRun`
  /// @throws what an action has thrown, here or on a rank that this one waits for; all messages have arrived then
  template <class Ctx, class Strategy, class Ends>
  void run(Ctx& ctx, Strategy& strategy, int microbatches, bool training, bool completes, Ends& ends) {
    if (!knows(microbatches, training)) {
      comm::expect_equal_facts(ctx.groups()[Group::mp], {{"micro-batches", std::to_string(microbatches)},
                                                         {"training", training ? "yes" : "no"},
                                                         {"the batch", ends.text()}});
    }
    const PipelineWork& todo = work(microbatches, training);
    if (mail_ == nullptr) mail_ = std::make_unique<PipelineMail<Rows>>(works_beside(ctx));
    PipelineRun<Ctx, Strategy, Ends>(ctx, strategy, todo, *mail_, ends, completes, options_.timeline)();
  }

 private:
  [[nodiscard]] LayerRange range_of(int stage) const noexcept {
    return {partition_.first[stage], partition_.first[stage + 1]};
  }
  template <class Ctx>
  [[nodiscard]] bool works_beside(Ctx& ctx) const {
    auto& group = ctx.groups()[Group::pp];
    return options_.overlap && group.size() > 1 && ctx.stream().mode() == HostStream::Mode::at_once &&
           comm::works_in_any_thread(group);
  }
  [[nodiscard]] bool knows(int microbatches, bool training) const noexcept {
    return std::any_of(works_.begin(), works_.end(), [&](const auto& known) {
      return known->plan.shape.microbatches == microbatches && known->training == training;
    });
  }
  /// What all ranks must have been told: the messages of a step follow from it, and from the batch.
  [[nodiscard]] std::vector<comm::Fact> facts(const std::vector<CheckpointedTree>& trees) {
    std::vector<comm::Fact> all{{"the schedule", std::string(name_of(schedule_))},
                                {"chunks", std::to_string(chunks())},
                                {"stages", std::to_string(stages())},
                                {"active micro-batches", std::to_string(options_.active)},
                                {"layers", std::to_string(rows().size())}};
    rows().for_each([&](const std::string& name, auto& layer) {
      all.push_back({"bytes of layer " + name, std::to_string(parameter_bytes(layer))});
    });
    std::string cuts, twice;
    for (int stage = 0; stage < stages(); ++stage) {
      cuts += (stage > 0 ? "," : "") + std::to_string(partition_.size(stage));
      for (const LayerGroup& group : group_layers(range_of(stage), options_.checkpointing, trees)) {
        if (!group.checkpointed) continue;
        twice += (twice.empty() ? "" : ",") + std::to_string(group.layers.first) + "-" +
                 std::to_string(group.layers.last - 1);
      }
    }
    all.push_back({"the partition", cuts});
    all.push_back({"checkpointed layers", twice});
    all.push_back({"the same randomness", options_.checkpointing.same_randomness ? "yes" : "no"});
    all.push_back({"tensors between stages, and those of them that cross in slices", crossings()});
    return all;
  }
  /// "1/1,3/1": of each value between two stages.
  [[nodiscard]] std::string crossings() {
    std::string text;
    for (int stage = 1; stage < stages(); ++stage) {
      int tensors = 0, in_slices = 0;
      typename Rows::Value value = rows().value_before(partition_.first[stage]);
      for_each_tensor_of(value, [&]<class T, class Tag>(T&, Tag) {
        ++tensors;
        in_slices += crosses_in_slices<Tag> ? 1 : 0;
      });
      text += (stage > 1 ? "," : "") + std::to_string(tensors) + "/" + std::to_string(in_slices);
    }
    return text;
  }
  void cut() {
    Table<int> first;
    int next = 0;
    for (const int layers : options_.partition) {
      first.append(next);
      next += layers;
    }
    if (options_.partition.empty()) {
      Table<PartitionNode> layers;
      rows().for_each([&](const std::string&, auto& layer) {
        PartitionNode node;
        node.parameters = static_cast<double>(parameter_bytes(layer));
        layers.append(std::move(node));
      });
      partition_ = partition_by_cost(layers, stages(), {.ties = TiedUnits::apart});
      return;
    }
    if (first.size() != stages() || next != rows().size()) {
      throw ConfigError("the partition has " + std::to_string(first.size()) + " stages with " + std::to_string(next) +
                        " layers, but the pipeline has " + std::to_string(stages()) + " stages and the model " +
                        std::to_string(rows().size()) + " layers");
    }
    partition_ = partition_at(first, next);
  }

  /// Where the layers of a tree are that is on several stages; else nothing.
  [[nodiscard]] std::string stages_of_torn(const CheckpointedTree& tree) const {
    const int first = partition_.stage_of(tree.layers.first), last = partition_.stage_of(tree.layers.last - 1);
    if (first == last) return {};
    return tree.name + ".0 to " + tree.name + "." + std::to_string(tree.layers.last - tree.layers.first - 1) +
           " on stages " + std::to_string(first) + " to " + std::to_string(last);
  }
  void refuse_torn(const std::vector<CheckpointedTree>& trees) const {
    for (const CheckpointedTree& tree : trees) {
      const std::string where = stages_of_torn(tree);
      if (where.empty()) continue;
      throw ConfigError("the partition puts the layers " + where + ", but " + tree.name +
                        " is Checkpointed as a whole: give its layers to one stage, put Checkpointed around each of "
                        "them, or take it away and say PipelineOptions::checkpointing");
    }
  }
  void warn_of_torn(const std::vector<CheckpointedTree>& trees) const {
    for (const CheckpointedTree& tree : trees) {
      const std::string where = stages_of_torn(tree);
      if (where.empty()) continue;
      const std::string sentence = "smp: the Checkpointed around " + tree.name +
                                   " does nothing, for the automatic partition puts the layers " + where +
                                   ": put Checkpointed around each of them, or take it away and say "
                                   "PipelineOptions::checkpointing";
      if (options_.warnings != nullptr) {
        options_.warnings->push_back(sentence);
      } else {
        std::fprintf(stderr, "%s\n", sentence.c_str());
      }
    }
  }

  M model_;
  S schedule_;
  PipelineOptions options_;
  int rank_;
  PipelinePlan placed_;  // where the stages are
  Partition partition_;
  std::vector<std::unique_ptr<PipelineWork>> works_;
  std::vector<std::vector<LayerGroup>> groups_;  // by chunk
  std::vector<Slots> slots_;                     // by chunk
  std::unique_ptr<PipelineMail<Rows>> mail_;     // made by the first step
};

}  // namespace smp
