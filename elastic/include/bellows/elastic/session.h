#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bellows/base/thread_pool.h"
#include "bellows/elastic/member.h"
#include "bellows/runtime/engine.h"

namespace bellows {

/// What a trainer asks of a run besides the engine's own options.
struct TrainOptions {
  EngineOptions engine;
  std::int64_t steps = 0;                 ///< committed steps after which training is finished
  std::int64_t eval_every = 0;            ///< steps between evaluations; 0: only if `evaluate_at_end`
  int eval_batches = 1;                   ///< global batches per evaluation
  bool evaluate_at_end = true;
  std::string checkpoint;                 ///< directory for checkpoints; empty: none
  std::int64_t checkpoint_every = 0;      ///< steps; 0: at the end only
  int keep = 2;                           ///< checkpoints kept
  std::string resume;                     ///< empty: start fresh; "auto": newest in `checkpoint` if any; else a path
  std::string metrics;                    ///< JSON lines, written by rank 0; empty: none
  double flops_per_token = 0;             ///< model FLOPs per token (docs/mfu.md); 0: MFU unavailable
  std::string transport = "auto";         ///< these three as in CommOptions
  std::string algorithm = "auto";
  std::string bind;
  double collective_timeout_s = 60;       ///< limit of one collective
};

/// One committed step with what it cost on this rank; what --metrics writes.
struct StepRecord {
  StepResult result;
  double step_ms = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;
  int world_size = 1;
  std::uint64_t generation = 0;
  TimeAccounts::Sums accounts{};          ///< nanoseconds since the record before; they add up to step_ms
};

struct TrainHooks {
  /// Rank 0 only, when it enters its first generation: parameters and buffers stand, no step has run.
  std::function<void(const Engine&, const World&)> on_start;
  /// Forward only, on held-out samples; see Engine::evaluate. Empty: no evaluation.
  std::function<void(Step&)> evaluate;
  /// Rank 0 only, after each committed step.
  std::function<void(const StepRecord&)> on_step;
  std::function<void(std::int64_t step, float loss)> on_evaluation;
  /// All ranks, collectively, when training is finished and the communicator still stands.
  std::function<void(Engine&)> on_finish;
};

struct TrainResult {
  enum class End { kFinished, kStopped, kReleased };
  End end = End::kFinished;
  std::int64_t steps = 0;
  int rank = 0;                           ///< at the end
  std::optional<float> evaluation;        ///< the last one
  Engine::Digests digests;                ///< if finished or stopped
  std::string checkpoint;                 ///< path of the last one saved
};

/// What a trainer holds: it joins the job, runs the step loop, and is the only place where a lost peer is caught. The
/// world may change between any two steps; the trainer's functions never notice.
class Session {
 public:
  /// Reads the environment once: `bellows run`, mpirun, or a world of one. `threads` are this rank's.
  static Session from_environment(int threads = 1);
  Session(std::unique_ptr<Member> member, int threads, double window_s = 300, std::string faults = "");
  ~Session();
  Session(Session&&) noexcept;

  ThreadPool& pool();
  /// Trains until `options.steps`, a stop, or until this rank is released. Throws UserError for what a person must mend,
  /// CommError if the world is lost and cannot be replaced.
  TrainResult train(ParameterSet parameters, std::unique_ptr<Optimizer> optimizer, const TrainOptions& options,
                    const std::function<void(Step&)>& step_function, const TrainHooks& hooks = {});

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Runs a trainer's main: prints a UserError and returns 2, any other failure 1, else what `body` returns.
int run_main(const std::function<int()>& body);

}  // namespace bellows
