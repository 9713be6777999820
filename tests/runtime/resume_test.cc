// Stopping, saving and going on elsewhere changes no bit, whatever the stage and the world on either side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/job_stretch.h"

namespace bellows::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kWorlds[] = {1, 2, 3, 4, 6, 8};

AnyJob job_of(int stage, DType precision, int micro_batches = 1) {
  ToyJob toy;
  toy.engine = toy_options(stage, precision);
  toy.engine.micro_batches_per_lane = micro_batches;
  return any_job(toy);
}

struct Place {
  int stage, world;
};
std::vector<Place> places() {
  std::vector<Place> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const int world : kWorlds) all.push_back({stage, world});
  return all;
}
std::string name(const Place& p) { return "stage " + std::to_string(p.stage) + " world " + std::to_string(p.world); }

class Resume : public ::testing::TestWithParam<DType> {};

// Every place saves once and every place loads once; BELLOWS_TEST_FULL=1 takes every pair of them.
TEST_P(Resume, FiveStepsSavedAndFiveElsewhereAreTenStraight) {
  const bool full = std::getenv("BELLOWS_TEST_FULL") != nullptr;
  const StretchResult straight = run_stretch(job_of(0, GetParam()), {1, 10, "", ""});
  const std::vector<Place> all = places();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!full && i % 2 != (GetParam() == DType::kF32)) continue;  // the other half is the other precision's
    const TemporaryDirectory directory;
    const StretchResult first =
        run_stretch(job_of(all[i].stage, GetParam()), {all[i].world, 5, "", directory.string()});
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (!full && k != (i * 5 + 7) % all.size()) continue;
      const std::string pair = name(all[i]) + " to " + name(all[k]);
      const StretchResult second = run_stretch(job_of(all[k].stage, GetParam()), {all[k].world, 5, first.saved, ""});
      EXPECT_EQ(second.entry.source, EntryResult::Source::kCheckpoint) << pair;
      EXPECT_EQ(second.entry.step, 5) << pair;
      EXPECT_EQ(second.before.parameters, first.after.parameters) << pair;
      EXPECT_EQ(second.before.optimizer, first.after.optimizer) << pair;
      std::vector<std::uint32_t> losses = first.loss_bits();
      for (const std::uint32_t bits : second.loss_bits()) losses.push_back(bits);
      EXPECT_EQ(losses, straight.loss_bits()) << pair;
      EXPECT_EQ(second.after.parameters, straight.after.parameters) << pair;
      EXPECT_EQ(second.after.optimizer, straight.after.optimizer) << pair;
      EXPECT_EQ(second.parameters, straight.parameters) << pair;
      EXPECT_EQ(second.steps.back().learning_rate, straight.steps.back().learning_rate) << pair;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, Resume, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Two changes of stage and world in one job, with a save before the first step and accumulation on.
TEST(ResumeTwice, FromStepZeroAndAgain) {
  const TemporaryDirectory directory;
  const StretchResult straight = run_stretch(job_of(1, DType::kF32, 2), {2, 6, "", ""});
  const StretchResult zero = run_stretch(job_of(3, DType::kF32, 2), {3, 0, "", directory.string()});
  const StretchResult half = run_stretch(job_of(2, DType::kF32, 2), {4, 3, zero.saved, directory.string()});
  const StretchResult rest = run_stretch(job_of(0, DType::kF32, 2), {2, 3, half.saved, ""});
  EXPECT_EQ(zero.saved, (directory.path() / "step-00000000").string());
  EXPECT_EQ(half.entry.step, 0);
  EXPECT_EQ(rest.after.parameters, straight.after.parameters);
  EXPECT_EQ(rest.after.optimizer, straight.after.optimizer);
}

TEST(ResumeAfterASkippedStep, CountsUpdatesAndStepsApart) {
  ToyJob toy;
  toy.engine = toy_options(2);
  toy.poison = [](std::int64_t step, int lane) { return step == 4 && lane == 5 ? std::nanf("") : 0.0f; };
  const TemporaryDirectory directory;
  const StretchResult straight = run_stretch(any_job(toy), {2, 8, "", ""});
  const StretchResult first = run_stretch(any_job(toy), {3, 5, "", directory.string()});  // the last one is skipped
  ASSERT_TRUE(first.steps.back().skipped);
  toy.engine.stage = 3;
  const StretchResult second = run_stretch(any_job(toy), {4, 3, first.saved, ""});
  EXPECT_EQ(second.entry.step, 5);
  EXPECT_EQ(straight.updates, 7);
  EXPECT_EQ(second.updates, 7);
  EXPECT_EQ(second.steps.front().learning_rate, straight.steps[5].learning_rate);
  EXPECT_EQ(second.after.parameters, straight.after.parameters);
  EXPECT_EQ(second.after.optimizer, straight.after.optimizer);
}

// ---- Checkpoints of something else ----

// What every rank is told when it starts `job` from `path`; all must be told the same.
std::string refusal(const AnyJob& job, int world, const std::string& path) {
  static std::uint64_t generation = 5000;
  std::vector<std::string> said(world, "accepted");
  run_ranks(world, ++generation, [&](int rank, Communicator& comm) {
    ThreadPool pool(1);
    Engine engine(job.parameters, job.optimizer(), job.options, pool);
    try {
      engine.enter(comm, world, [&] { return std::optional(path); });
    } catch (const UserError& error) {
      said[rank] = error.what();
      EXPECT_FALSE(engine.has_state());
    }
  });
  for (const std::string& text : said) EXPECT_EQ(text, said[0]);
  return said[0];
}

TEST(ResumeFromSomethingElse, IsRefusedByEveryRankWithBothValues) {
  const TemporaryDirectory directory;
  AnyJob job = job_of(2, DType::kF32);
  job.options.job_fingerprint = "data=A";
  const std::string path = run_stretch(job, {2, 1, "", directory.string()}).saved;

  AnyJob other_model = job;
  other_model.parameters = ParameterSet();
  other_model.parameters.add(other_model.parameters.add_unit("only"), "only.weight", {12, 34}, {});
  EXPECT_THAT(refusal(other_model, 3, path),
              AllOf(HasSubstr(path), HasSubstr("another model"), HasSubstr("only.weight"), HasSubstr("table.weight")));

  AnyJob other_optimizer = job;
  other_optimizer.optimizer = [] { return make_sgd(); };
  EXPECT_THAT(refusal(other_optimizer, 3, path),
              AllOf(HasSubstr(path), HasSubstr("another optimizer"), HasSubstr("adamw"), HasSubstr("sgd")));

  AnyJob other_data = job;
  other_data.options.job_fingerprint = "data=B";
  EXPECT_THAT(refusal(other_data, 3, path),
              AllOf(HasSubstr(path), HasSubstr("another job"), HasSubstr("data=A"), HasSubstr("data=B")));

  AnyJob other_seed = job;
  other_seed.options.seed = 8;
  EXPECT_THAT(refusal(other_seed, 2, path), AllOf(HasSubstr("another job"), HasSubstr("seed=7"), HasSubstr("seed=8")));

  AnyJob other_lanes = job;
  other_lanes.options.lanes = 4;
  EXPECT_THAT(refusal(other_lanes, 2, path), AllOf(HasSubstr("lanes=8"), HasSubstr("lanes=4")));

  AnyJob other_batch = job;
  other_batch.options.micro_batch = 3;
  EXPECT_THAT(refusal(other_batch, 2, path), AllOf(HasSubstr("micro_batch=2"), HasSubstr("micro_batch=3")));

  EXPECT_THAT(refusal(job, 3, (directory.path() / "step-misspelt").string()),
              AllOf(HasSubstr("step-misspelt"), HasSubstr("does not exist")));
}

// ---- A rank that dies while saving ----

// Rank 1 goes away as its save begins. The two that stay have not all of the state at stage 2, so they go back to the
// older checkpoint, and end up where an undisturbed run does.
TEST(ResumeAfterADeathInASave, GoesBackToTheOlderCheckpoint) {
  const TemporaryDirectory directory;
  const AnyJob job = job_of(2, DType::kF32);
  const StretchResult straight = run_stretch(job, {1, 6, "", ""});
  std::vector<std::unique_ptr<ToyRank>> ranks;
  ToyJob toy;
  toy.engine = job.options;
  for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<ToyRank>(toy));
  Checkpointer checkpointer(directory.string(), 3);
  const auto steps = [&](Engine& engine, int count) {
    for (int s = 0; s < count; ++s) engine.run_step([&](Step& step) { job.step(step, engine.parameters()); });
    engine.settle();
  };
  std::atomic<int> told{0};
  run_ranks(3, 1, [&](int r, Communicator& comm) {
    Engine& engine = ranks[r]->engine;
    engine.enter(comm, 3, nullptr);
    engine.attach(comm);
    steps(engine, 2);
    ASSERT_TRUE(engine.save(checkpointer, "").ok());
    if (r == 1)
      engine.set_probe([&](const char* phase) {
        if (std::string(phase) == "checkpoint") comm.abort("test: rank 1 dies");
      });
    try {
      steps(engine, 2);  // a peer may be a little behind in its gathers when rank 1 goes away
      (void)engine.save(checkpointer, "");
    } catch (const CommError&) {
      ++told;
    }
    engine.detach();
  });
  EXPECT_EQ(told, 3);
  EXPECT_EQ(CheckpointReader::newest(directory.string()).value_or_throw().meta().step, 2);

  Engine::Digests digests;
  const std::size_t survivors[] = {0, 2};
  run_ranks(2, 2, [&](int r, Communicator& comm) {
    Engine& engine = ranks[survivors[r]]->engine;
    const EntryResult entry = engine.enter(
        comm, 2, [&] { return std::optional(CheckpointReader::newest(directory.string()).value_or_throw().path()); });
    EXPECT_EQ(entry.source, EntryResult::Source::kCheckpoint);
    EXPECT_EQ(entry.step, 2);
    EXPECT_THAT(entry.detail, HasSubstr("living ranks have not enough of step 4"));
    engine.attach(comm);
    steps(engine, 2);
    EXPECT_TRUE(engine.save(checkpointer, "").ok());  // what the death left behind is no obstacle
    steps(engine, 2);
    const auto mine = engine.digests();
    if (r == 0) digests = mine;
    comm.barrier();
    engine.detach();
  });
  EXPECT_EQ(digests.parameters, straight.after.parameters);
  EXPECT_EQ(digests.optimizer, straight.after.optimizer);
  EXPECT_EQ(CheckpointReader::newest(directory.string()).value_or_throw().meta().step, 4);
}

}  // namespace
}  // namespace bellows::test
