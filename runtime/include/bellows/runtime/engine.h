#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/thread_pool.h"
#include "bellows/comm/communicator.h"
#include "bellows/optimizer/optimizer.h"
#include "bellows/optimizer/schedule.h"
#include "bellows/runtime/checkpoint.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/step.h"
#include "bellows/runtime/time_accounts.h"

namespace bellows {

struct EngineOptions {
  int stage = 2;                          ///< ZeRO 0-3
  DType precision = DType::kF32;          ///< of parameters in compute: kF32 or kBF16 (master weights are float32)
  int lanes = 8;                          ///< V: fixed for the life of a job; the most ranks it can have
  int micro_batch = 1;                    ///< samples in one micro-batch
  int micro_batches_per_lane = 1;
  std::size_t bucket_bytes = std::size_t{25} << 20;   ///< gradients that travel together, in float32 bytes
  int prefetch_units = 1;                 ///< stage 3: units gathered ahead of their use
  double clip_norm = 1.0;                 ///< largest global gradient norm; 0: no clipping
  std::uint64_t seed = 1;                 ///< of the starting values
  Schedule schedule;                      ///< learning rate by update
  int max_skipped_in_a_row = 20;          ///< steps with non-finite gradients before the run gives up
  /// Loading: go on with this job's groups where the checkpoint has others. Otherwise a difference is a UserError.
  bool accept_changed_groups = false;
  std::string job_fingerprint;            ///< of data and whatever else the trainer's numbers depend on

  std::int64_t global_batch() const {
    return static_cast<std::int64_t>(lanes) * micro_batches_per_lane * micro_batch;
  }
};

/// What each rank says of itself at a commit; the same list on every rank.
struct RankReport {
  double compute_ms = 0;
  double data_ms = 0;
};

/// A committed step, the same on every rank but for `accounts`.
struct StepResult {
  std::int64_t step = 0;                  ///< its number: 1 for the first
  float loss = 0;                         ///< mean over valid tokens of the global batch
  double grad_norm = 0;                   ///< global, before clipping
  float clip_coefficient = 1;
  float learning_rate = 0;
  std::int64_t tokens = 0;                ///< valid ones
  bool skipped = false;                   ///< non-finite gradients: nothing was updated
  bool stop = false;                      ///< somebody asked for an orderly stop
  std::uint64_t newest_generation = 0;    ///< the largest that any rank has heard of
  std::vector<RankReport> ranks;          ///< of the step before, by rank
};

/// How a rank came to its state at the start of a generation.
struct EntryResult {
  enum class Source { kInitial, kLivingRanks, kCheckpoint };
  Source source = Source::kInitial;
  std::int64_t step = 0;                  ///< committed steps in that state
  std::uint64_t bytes_moved = 0;          ///< between ranks, all of them together
  std::uint64_t bytes_minimum = 0;        ///< what no layout of the new world could go below (see docs/memory.md)
  std::string detail;                     ///< for people
};

/// Bytes by purpose on this rank.
struct MemoryLine {
  std::string name;
  std::size_t bytes = 0;
};

/// The stage logic. Outlives generations: holds parameters, optimizer state and the step count; `attach` and `detach` tie
/// it to one generation's communicator. All calls from one thread, the same on every rank of the generation.
class Engine {
 public:
  Engine(ParameterSet parameters, std::unique_ptr<Optimizer> optimizer, EngineOptions options, ThreadPool& pool);
  ~Engine();

  const ParameterSet& parameters() const;
  const EngineOptions& options() const;
  TimeAccounts& accounts();
  /// All that changes the numbers and that two ranks of one job must agree on.
  std::string fingerprint() const;

  bool has_state() const;
  std::int64_t step() const;              ///< committed steps
  std::int64_t updates() const;           ///< those that were not skipped

  // -- Generations --
  /// Collective over the transition world, whose first `members` ranks form the new generation: agrees on the newest
  /// state that living ranks can put together and moves it (reshard_plan); if there is none, reads the checkpoint that
  /// rank 0's `fallback` names (one step's directory), or starts from the seed.
  /// Throws CommError (state as before) or UserError (all ranks alike; for instance a checkpoint of another model).
  EntryResult enter(Communicator& transition, int members, const std::function<std::optional<std::string>()>& fallback);
  /// Collective over the members after enter(): windows, buffers, whole parameters complete.
  void attach(Communicator& comm);
  /// Collective: finishes parameter gathers under way, so that a planned change finds whole parameters everywhere.
  void settle();
  void detach() noexcept;

  // -- Steps --
  /// One transaction: computes, reduces, commits, updates. CommError before the commit leaves everything as it was.
  StepResult run_step(const std::function<void(Step&)>& step_function, bool stop = false,
                      std::uint64_t newest_generation = 0);
  /// Forward only, on `batches` global batches of samples numbered from 0; mean loss over their tokens, the same on every
  /// world. Nothing if there was no token.
  std::optional<float> evaluate(const std::function<void(Step&)>& step_function, int batches);

  // -- Whole state, collective --
  struct Digests {
    std::string parameters;               ///< xxh64 of the float32 master weights in canonical order
    std::string optimizer;                ///< xxh64 of the optimizer's arrays in canonical order
  };
  Digests digests();
  /// Parameters of the whole model on rank 0 (empty elsewhere), one after another, each in its dtype in compute.
  std::vector<std::byte> gather_parameters();
  Result<std::string> save(Checkpointer& checkpointer, const std::string& extra);

  std::vector<MemoryLine> memory() const;

  /// Called at "forward", "backward", "reduce", "commit", "gather", "checkpoint": fault injection and traces.
  void set_probe(std::function<void(const char* phase)> probe);

 private:
  friend class UnitUse;
  friend class MicroBatch;
  friend class Step;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows
