#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bellows/base/philox.h"
#include "bellows/base/thread_pool.h"
#include "bellows/comm/communicator.h"
#include "bellows/runtime/engine.h"

namespace bellows::test {

/// A model whose gradient is cheap and depends on every parameter and every sample: each sample pulls each parameter
/// towards a random target of its own. Odd sizes, a parameter of size zero, a tied unit, one without decay.
inline ParameterSet toy_parameters() {
  ParameterSet set;
  const UnitId table = set.add_unit("table", 2);
  set.add(table, "table.weight", {37, 11}, {.init = Init::normal(0.5f)});
  for (int i = 0; i < 3; ++i) {
    const std::string name = "block" + std::to_string(i);
    const UnitId block = set.add_unit(name);
    set.add(block, name + ".weight", {61, 23 + i}, {.init = Init::normal(0.3f)});
    set.add(block, name + ".empty", {0}, {});
    set.add(block, name + ".bias", {5}, {.init = Init::zeros(), .decay = false});
  }
  const UnitId last = set.add_unit("last");
  set.add(last, "last.scale", {1}, {.init = Init::ones(), .decay = false});
  return set;
}

struct ToyJob {
  EngineOptions engine;
  int steps = 4;
  /// Called for every (step, lane, index) before the gradient is computed.
  std::function<void(const MicroBatch&)> on_batch;
  std::function<float(std::int64_t step, int lane)> poison;   ///< added to one gradient element
};

inline EngineOptions toy_options(int stage, DType precision = DType::kF32, std::size_t bucket_bytes = 4096) {
  EngineOptions options;
  options.stage = stage;
  options.precision = precision;
  options.bucket_bytes = bucket_bytes;
  options.lanes = 8;
  options.micro_batch = 2;
  options.clip_norm = 0.5;
  options.seed = 7;
  options.schedule.peak = 0.05;
  options.schedule.warmup_steps = 2;
  options.schedule.total_steps = 50;
  return options;
}

template <class T>
double toy_unit(const UnitUse& use, const ParameterSet& set, int unit, std::span<const std::int64_t> samples,
                float* grads, bool accumulate) {
  const Unit& u = set.units()[unit];
  const T* params = static_cast<const T*>(use.params());
  double loss = 0;
  for (std::size_t i = 0; i < u.count; ++i) {
    float g = 0;
    for (const std::int64_t sample : samples) {
      const Philox random(99, static_cast<std::uint64_t>(sample));
      const float target = static_cast<float>(random.uniform(u.begin + i)) - 0.5f;
      const float away = static_cast<float>(params[i]) - target;
      g += away;
      loss += 0.5 * away * away;
    }
    if (grads) grads[i] = accumulate ? grads[i] + g : g;
  }
  return loss;
}

inline void toy_step(Step& step, const ParameterSet& set, DType precision, const ToyJob& job) {
  const int units = static_cast<int>(set.units().size());
  const auto visit = [&](MicroBatch& batch, int unit, bool backward) {
    const UnitUse use = backward ? batch.backward(UnitId{unit}) : batch.forward(UnitId{unit});
    float* grads = backward ? use.grads() : nullptr;
    const double loss = precision == DType::kF32
                            ? toy_unit<float>(use, set, unit, batch.samples(), grads, use.accumulate())
                            : toy_unit<bf16>(use, set, unit, batch.samples(), grads, use.accumulate());
    if (backward && job.poison && unit == 2) grads[3] += job.poison(batch.step(), batch.lane());
    return loss;
  };
  for (MicroBatch& batch : step) {
    if (job.on_batch) job.on_batch(batch);
    double loss = 0;
    for (int u = 0; u < units; ++u) loss += visit(batch, u, false);
    visit(batch, 0, false);   // tied: used again as the head
    if (!step.evaluating()) {
      visit(batch, 0, true);
      for (int u = units - 1; u >= 0; --u) visit(batch, u, true);
    }
    batch.report(loss, static_cast<std::int64_t>(batch.samples().size()));
  }
}

/// A rank process of the toy job: what survives generations.
struct ToyRank {
  explicit ToyRank(const ToyJob& job) : pool(1), engine(toy_parameters(), make_adamw(), job.engine, pool) {}
  ThreadPool pool;
  Engine engine;
};

struct ToyRun {
  std::vector<std::uint32_t> loss_bits;
  std::vector<StepResult> results;
  std::optional<float> evaluation;
  Engine::Digests digests;
  std::vector<EntryResult> entries;
};

/// Runs `body(rank, communicator)` on `ranks` threads connected over inproc; rethrows the first failure.
inline void run_ranks(int ranks, std::uint64_t generation, const std::function<void(int, Communicator&)>& body) {
  InprocBootstrap bootstrap;
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        CommOptions options;
        options.timeout_s = 20;
        auto comm = connect(World{r, ranks, r, ranks, generation}, bootstrap, options);
        body(r, *comm);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  for (auto& error : errors)
    if (error) std::rethrow_exception(error);
}

/// One stretch of a job: a world of `world` ranks that commits `steps` steps.
struct ToyPhase {
  int world = 1;
  int steps = 1;
};

/// Runs the phases one after another on the same rank processes, growing and shrinking between them.
inline ToyRun run_phases(const ToyJob& job, const std::vector<ToyPhase>& phases, bool evaluate = false) {
  std::vector<std::unique_ptr<ToyRank>> ranks;
  ToyRun run;
  int before = 0;
  std::uint64_t generation = 0;
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const int world = phases[p].world;
    while (static_cast<int>(ranks.size()) < std::max(world, before)) ranks.push_back(std::make_unique<ToyRank>(job));
    ++generation;
    run_ranks(std::max(world, before), generation, [&](int r, Communicator& comm) {
      const EntryResult entry = ranks[r]->engine.enter(comm, world, nullptr);
      if (r == 0) run.entries.push_back(entry);
    });
    run_ranks(world, generation, [&](int r, Communicator& comm) {
      Engine& engine = ranks[r]->engine;
      engine.attach(comm);
      for (int s = 0; s < phases[p].steps; ++s) {
        const StepResult result =
            engine.run_step([&](Step& step) { toy_step(step, engine.parameters(), job.engine.precision, job); });
        if (r == 0) {
          run.loss_bits.push_back(std::bit_cast<std::uint32_t>(result.loss));
          run.results.push_back(result);
        }
      }
      engine.settle();
      if (evaluate) {
        const auto loss =
            engine.evaluate([&](Step& step) { toy_step(step, engine.parameters(), job.engine.precision, job); }, 2);
        if (r == 0) run.evaluation = loss;
      }
      const auto digests = engine.digests();
      if (r == 0) run.digests = digests;
      comm.barrier();
      engine.detach();
    });
    ranks.resize(world);
    before = world;
  }
  return run;
}

inline ToyRun run_toy(const ToyJob& job, int world, bool evaluate = false) {
  return run_phases(job, {{world, job.steps}}, evaluate);
}

}  // namespace bellows::test
