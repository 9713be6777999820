#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/toy_job.h"

namespace bellows::test {

/// A directory of its own, gone at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    static std::atomic<int> number{0};
    path_ = std::filesystem::path(::testing::TempDir()) /
            ("job-" + std::to_string(getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// A job as the engine sees it: what it is made of and what its trainer does in a step.
struct AnyJob {
  ParameterSet parameters;
  EngineOptions options;
  std::function<std::unique_ptr<Optimizer>()> optimizer;
  std::function<void(Step&, const ParameterSet&)> step;
};

inline AnyJob any_job(const ToyJob& toy) {
  return {toy_parameters(), toy.engine, [] { return make_adamw(); },
          [toy](Step& step, const ParameterSet& set) { toy_step(step, set, toy.engine.precision, toy); }};
}

/// One life of a job's processes: they start, load or begin anew, commit some steps, perhaps save, and end.
struct Stretch {
  int world = 1;
  int steps = 0;
  std::string from;     ///< a checkpoint's directory; empty: start from the seed
  std::string save_in;  ///< a directory of checkpoints; empty: no save at the end
};

struct StretchResult {
  EntryResult entry;
  Engine::Digests before, after;           ///< of the state as it was entered and at the end
  std::vector<StepResult> steps;           ///< of rank 0
  std::vector<std::vector<bool>> skipped;  ///< by rank and step
  std::int64_t updates = 0;
  std::vector<std::byte> parameters;  ///< of the whole model at the end, in the compute type
  std::string saved;                  ///< path of the checkpoint

  std::vector<float> floats() const {
    std::vector<float> values(parameters.size() / sizeof(float));
    std::memcpy(values.data(), parameters.data(), parameters.size());
    return values;
  }
  std::vector<std::uint32_t> loss_bits() const {
    std::vector<std::uint32_t> bits;
    for (const StepResult& step : steps) bits.push_back(std::bit_cast<std::uint32_t>(step.loss));
    return bits;
  }
};

inline StretchResult run_stretch(const AnyJob& job, const Stretch& stretch) {
  static std::atomic<std::uint64_t> generation{1000};
  StretchResult result;
  std::vector<std::vector<bool>> skipped(stretch.world);
  run_ranks(stretch.world, ++generation, [&](int rank, Communicator& comm) {
    ThreadPool pool(1);
    Engine engine(job.parameters, job.optimizer(), job.options, pool);
    const EntryResult entry = engine.enter(comm, stretch.world, [&]() -> std::optional<std::string> {
      return stretch.from.empty() ? std::nullopt : std::optional(stretch.from);
    });
    engine.attach(comm);
    const Engine::Digests before = engine.digests();
    std::vector<StepResult> steps;
    for (int s = 0; s < stretch.steps; ++s)
      steps.push_back(engine.run_step([&](Step& step) { job.step(step, engine.parameters()); }));
    engine.settle();
    for (const StepResult& step : steps) skipped[rank].push_back(step.skipped);
    std::string saved;
    if (!stretch.save_in.empty()) {
      Checkpointer checkpointer(stretch.save_in, 100);
      saved = engine.save(checkpointer, "").value_or_throw();
    }
    const Engine::Digests after = engine.digests();
    std::vector<std::byte> parameters = engine.gather_parameters();
    if (rank == 0)
      result = {entry, before, after, std::move(steps), {}, engine.updates(), std::move(parameters), std::move(saved)};
    comm.barrier();
    engine.detach();
  });
  result.skipped = std::move(skipped);
  return result;
}

}  // namespace bellows::test
