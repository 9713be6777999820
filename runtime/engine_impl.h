#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/runtime/engine.h"
#include "gather.h"
#include "gradients.h"
#include "model_state.h"
#include "waiter.h"

namespace bellows {

/// How the elements of some parameters are updated: their group's settings, without its name.
struct UpdateRule {
  double learning_rate_scale = 1;
  std::optional<double> weight_decay;   // instead of the optimizer's
  std::optional<std::int64_t> frozen_from_step;
  bool decay = true;
  DType dtype = DType::kF32;            // in compute

  bool frozen(std::int64_t step) const { return frozen_from_step && step >= *frozen_from_step; }
  bool operator==(const UpdateRule&) const = default;
};

/// A stretch of a chunk whose elements are updated alike.
struct Stretch {
  std::size_t begin = 0, end = 0;       // within the chunk
  int rule = 0;                         // in UpdatePlan::rules
};

/// Neighbours under equal rules make one stretch, whatever their groups are called.
struct UpdatePlan {
  UpdatePlan(const ParameterSet& parameters, const ChunkTable& table, const Places& places);

  std::vector<UpdateRule> rules;
  std::vector<std::vector<Stretch>> stretches;   // by chunk, frozen parameters left out
};

/// The engine's parts. A step is in engine.cc, the start of a generation in engine_entry.cc, whole-state operations
/// (digests, checkpoints) in engine_state.cc.
struct Engine::Impl {
  Impl(ParameterSet parameters, std::unique_ptr<Optimizer> optimizer, EngineOptions options, ThreadPool& pool);

  // -- Process lifetime --
  const ParameterSet parameters;
  const std::unique_ptr<Optimizer> optimizer;
  const EngineOptions options;
  ThreadPool& pool;
  const ChunkTable table;
  const Stage stage;
  TimeAccounts accounts;
  Waiter waiter;
  ModelState state;
  Gradients gradients;
  Gather gather;
  std::function<void(const char*)> probe;

  const UpdatePlan plan;

  bool has_state = false;
  std::int64_t step = 0;
  std::int64_t updates = 0;
  int skipped_in_a_row = 0;
  ShardLayout layout;      // of the state
  int layout_rank = -1;    // this rank under it

  // -- One generation --
  Communicator* comm = nullptr;

  // -- One step --
  struct Event {
    int unit = 0;
    bool backward = false;
    bool enter = false;
  };
  bool evaluating = false;
  std::int64_t first_sample = 0;
  std::vector<Event> events;        // of one micro-batch, recorded in the first of the step
  bool recording = false;
  int position = -1;                // running micro-batch: lane position * micro_batches_per_lane + index
  int positions = 0;
  bool reported = false;
  MicroBatch batch;
  std::vector<int> backward_uses;   // by unit, in this micro-batch
  std::vector<double> lane_loss, lane_tokens;
  std::exception_ptr pending_error; // from a scope's end, which must not throw
  struct NonFinite {
    std::int64_t count = 0;
    std::string where;              // first tensor, with the lane
  } non_finite;
  std::vector<RankReport> rank_reports;
  double last_compute_ms = 0, last_data_ms = 0;

  void start(bool evaluate, std::int64_t first);
  bool next(Engine* self);          // false: no micro-batch is left
  void finish_micro_batch();
  void idle_rounds();
  UnitUse enter_unit(Engine* self, int unit, bool backward);
  void exit_unit(int unit, bool backward) noexcept;
  void complete_gradient(int unit);
  void watch_for_non_finite(int unit, const float* grads);
  void run(const std::function<void(Step&)>& function, Engine* self);
  StepResult commit(bool stop, std::uint64_t newest_generation);
  void update(const StepResult& result, double tokens);
  void fire(const char* phase) {
    if (probe) probe(phase);
  }

  // -- Entry --
  void load(const CheckpointReader& reader);
  void check_groups(const CheckpointReader& reader) const;
  /// What a checkpoint and the job that goes on from it must have in common, beside model and optimizer.
  std::string later_numbers() const;
  CheckpointMeta checkpoint_meta(const std::string& extra) const;
};

/// Sum of one value per lane in the order of the lane tree.
double fold_lanes_in_order(std::span<const double> by_lane);

}  // namespace bellows
