// Faults that users of other training systems met in public, as tests of the right value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bellows/base/log.h"
#include "runtime/job_stretch.h"

namespace bellows::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Gradient = std::function<float(const MicroBatch&, std::size_t element, int use)>;
using Loss = std::function<std::pair<double, std::int64_t>(const MicroBatch&)>;

const Loss kOneTokenEach = [](const MicroBatch&) { return std::pair(0.0, std::int64_t{1}); };

/// A job whose gradients and losses are given; updates are plain gradient descent with learning rate 1.
AnyJob given(ParameterSet set, int lanes, Gradient gradient, Loss loss = kOneTokenEach) {
  EngineOptions options;
  options.lanes = lanes;
  options.clip_norm = 0;
  options.schedule.peak = 1;
  options.bucket_bytes = 4096;
  const auto step = [gradient = std::move(gradient), loss = std::move(loss)](Step& step, const ParameterSet& set) {
    const int units = static_cast<int>(set.units().size());
    for (MicroBatch& batch : step) {
      for (int u = 0; u < units; ++u) batch.forward(UnitId{u});
      const auto backward = [&](int u, int times) {
        const UnitUse use = batch.backward(UnitId{u});
        const Unit& unit = set.units()[u];
        for (std::size_t i = 0; i < unit.count; ++i) {
          const float value = gradient(batch, unit.begin + i, times);
          use.grads()[i] = use.accumulate() ? use.grads()[i] + value : value;
        }
      };
      for (int u = 0; u < units; ++u)
        for (int times = 1; times < set.units()[u].backward_uses; ++times) backward(u, times);
      for (int u = units - 1; u >= 0; --u) backward(u, 0);
      const auto [sum, tokens] = loss(batch);
      batch.report(sum, tokens);
    }
  };
  return {std::move(set), options, [] { return make_sgd({.momentum = 0}); }, step};
}

ParameterSet units_of(const std::vector<std::int64_t>& sizes, Init init = Init::zeros()) {
  ParameterSet set;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "p" + std::to_string(i);
    set.add(set.add_unit(name), name + ".weight", {sizes[i]}, {.init = init});
  }
  return set;
}

std::string at(int stage, int world) { return "stage " + std::to_string(stage) + " world " + std::to_string(world); }

void on_every_place(int worlds, const std::function<void(int stage, int world)>& body) {
  for (int stage = 0; stage <= 3; ++stage)
    for (int world = 1; world <= worlds; ++world) {
      SCOPED_TRACE(at(stage, world));
      body(stage, world);
    }
}

// ---- Gradients and numerics ----

TEST(GradientNorm, IsOfTheWholeModelAtEveryStageAndWorld) {
  // [3, 4] and [0, 0] in two units that different ranks own; also from different lanes.
  for (const bool spread : {false, true}) {
    AnyJob job = given(
        units_of({2, 2}), 4,
        [=](const MicroBatch& batch, std::size_t i, int) {
          if (i == 0) return batch.lane() == 0 ? 3.0f : 0.0f;
          if (i == 1) return batch.lane() == (spread ? 3 : 0) ? 4.0f : 0.0f;
          return 0.0f;
        },
        [](const MicroBatch& batch) { return std::pair(0.0, std::int64_t{batch.lane() == 0}); });
    job.options.clip_norm = 1;
    on_every_place(4, [&](int stage, int world) {
      job.options.stage = stage;
      const StretchResult run = run_stretch(job, {world, 1, "", ""});
      EXPECT_EQ(run.steps[0].grad_norm, 5.0);
      EXPECT_NEAR(run.steps[0].clip_coefficient, 0.2, 1e-6);
      const std::vector<float> values = run.floats();
      EXPECT_NEAR(values[0], -0.6f, 1e-5);
      EXPECT_NEAR(values[1], -0.8f, 1e-5);
      EXPECT_EQ(values[2], 0.0f);
    });
  }
}

TEST(Accumulation, SumsFourMicroBatchesAtEveryStage) {
  for (const std::size_t bucket : {std::size_t{4096}, std::size_t{25} << 20}) {  // many reductions under way, or one
    AnyJob job = given(units_of({1500, 7, 1300}), 4,
                       [](const MicroBatch& batch, std::size_t, int) { return static_cast<float>(batch.index() + 1); });
    job.options.micro_batches_per_lane = 4;
    job.options.bucket_bytes = bucket;
    on_every_place(4, [&](int stage, int world) {
      job.options.stage = stage;
      const StretchResult run = run_stretch(job, {world, 1, "", ""});
      EXPECT_EQ(run.steps[0].tokens, 16);
      EXPECT_THAT(run.floats(), Each(-2.5f));  // (1 + 2 + 3 + 4) of 4 lanes over 16 tokens
    });
  }
}

TEST(OddParameters, TrainSaveAndLoadOnAnyWorld) {
  const std::vector<std::vector<std::int64_t>> orders = {{0, 1, 3, 8, 24}, {24, 8, 0, 3, 1}, {3, 1, 24, 8, 0}};
  for (const DType precision : {DType::kF32, DType::kBF16})
    for (std::size_t o = 0; o < orders.size(); ++o)
      for (const bool one_unit : {false, true}) {
        ParameterSet set = units_of(orders[o], Init::normal(0.5f));
        if (one_unit) {
          set = ParameterSet();
          const UnitId unit = set.add_unit("all");
          for (std::size_t i = 0; i < orders[o].size(); ++i)
            set.add(unit, "p" + std::to_string(i), {orders[o][i]}, {.init = Init::normal(0.5f)});
        }
        ASSERT_EQ(set.total(), 36u);
        AnyJob job = given(set, 5, [](const MicroBatch& batch, std::size_t i, int) {
          return 0.01f * static_cast<float>(i + 1) * static_cast<float>(batch.lane() - 1 + batch.step());
        });
        job.optimizer = [] { return make_adamw(); };
        job.options.schedule.peak = 0.01;
        job.options.precision = precision;
        job.options.stage = 0;
        const StretchResult reference = run_stretch(job, {1, 2, "", ""});
        EXPECT_EQ(reference.parameters.size(), 36 * size_of(precision));
        for (int world = 1; world <= 5; ++world) {
          const TemporaryDirectory directory;
          job.options.stage = (world + static_cast<int>(o)) % 4;
          SCOPED_TRACE(at(job.options.stage, world));
          const StretchResult half = run_stretch(job, {world, 1, "", directory.string()});
          job.options.stage = (job.options.stage + 1) % 4;
          const StretchResult rest = run_stretch(job, {6 - world, 1, half.saved, ""});
          EXPECT_EQ(rest.before.parameters, half.after.parameters);
          EXPECT_EQ(rest.parameters, reference.parameters);
          EXPECT_EQ(rest.after.parameters, reference.after.parameters);
          EXPECT_EQ(rest.after.optimizer, reference.after.optimizer);
        }
      }
}

TEST(Loss, IsAveragedOverTokensNotRanks) {
  AnyJob job = given(
      units_of({4}), 2, [](const MicroBatch& batch, std::size_t, int) { return batch.lane() == 0 ? 8.0f : 0.0f; },
      [](const MicroBatch& batch) {
        if (batch.index() == 1) return std::pair(0.0, std::int64_t{0});  // a micro-batch without a valid token
        return batch.lane() == 0 ? std::pair(8.0, std::int64_t{1}) : std::pair(0.0, std::int64_t{3});
      });
  for (const int micro_batches : {1, 2}) {
    job.options.micro_batches_per_lane = micro_batches;
    on_every_place(2, [&](int stage, int world) {
      job.options.stage = stage;
      const StretchResult run = run_stretch(job, {world, 1, "", ""});
      EXPECT_EQ(run.steps[0].loss, 2.0f);
      EXPECT_EQ(run.steps[0].tokens, 4);
      EXPECT_THAT(run.floats(), Each(-2.0f * static_cast<float>(micro_batches)));  // gradients alike
    });
  }
}

TEST(Loss, AGlobalBatchWithoutAValidTokenUpdatesNothing) {
  const AnyJob job = given(
      units_of({4}, Init::ones()), 4, [](const MicroBatch&, std::size_t, int) { return 0.0f; },
      [](const MicroBatch&) { return std::pair(0.0, std::int64_t{0}); });
  const StretchResult run = run_stretch(job, {3, 2, "", ""});
  for (const StepResult& step : run.steps) {
    EXPECT_TRUE(step.skipped);
    EXPECT_EQ(step.loss, 0.0f);
    EXPECT_EQ(step.grad_norm, 0.0);
  }
  EXPECT_THAT(run.floats(), Each(1.0f));
  EXPECT_EQ(run.updates, 0);
}

TEST(NonFiniteGradient, IsSkippedByAllRanksAlikeAndNamed) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const DType precision : {DType::kF32, DType::kBF16})
    for (const float value : {inf, -inf, std::nanf("")})
      for (int stage = std::isnan(value) ? 0 : 1; stage <= 3; stage += 2) {
        SCOPED_TRACE(at(stage, 3) + " " + std::string(name_of(precision)) + " " + std::to_string(value));
        ToyJob toy;
        toy.engine = toy_options(stage, precision);
        toy.poison = [&](std::int64_t step, int lane) { return step == 2 && lane == 6 ? value : 0.0f; };
        const TemporaryDirectory directory;
        const StretchResult two = run_stretch(any_job(toy), {3, 2, "", directory.string()});
        ::testing::internal::CaptureStderr();
        ::testing::internal::CaptureStdout();
        const StretchResult third = run_stretch(any_job(toy), {3, 1, two.saved, ""});
        log::default_logger()->flush();
        const std::string logged = ::testing::internal::GetCapturedStdout() + ::testing::internal::GetCapturedStderr();
        EXPECT_THAT(third.skipped, Each(std::vector<bool>{true}));
        EXPECT_EQ(third.after.parameters, two.after.parameters);
        EXPECT_EQ(third.after.optimizer, two.after.optimizer);
        EXPECT_EQ(third.parameters, two.parameters);
        EXPECT_EQ(third.updates, 2);
        EXPECT_THAT(logged, AllOf(HasSubstr("step 3 skipped"), HasSubstr("rank "), HasSubstr("lane 6"),
                                  HasSubstr("'block1.weight'")));
        EXPECT_EQ(logged.find("skipped"), logged.rfind("skipped")) << "one warning, not one per rank: " << logged;
      }
}

// Every gradient is finite, but their squares are not: the norm overflows in no type that the update relies on.
TEST(NonFiniteGradient, ASumThatOverflowsIsSkippedToo) {
  const AnyJob job = given(units_of({3}), 4, [](const MicroBatch&, std::size_t, int) { return 3e38f; });
  const StretchResult run = run_stretch(job, {2, 1, "", ""});
  EXPECT_THAT(run.skipped, Each(std::vector<bool>{true}));
  EXPECT_THAT(run.floats(), Each(0.0f));
}

// ---- Checkpoint and resume ----

TEST(FrozenParameter, StaysBitEqualThroughTrainingSavingAndLoading) {
  ParameterSet set;
  for (const bool frozen : {false, true, false}) {
    const std::string name = "p" + std::to_string(set.units().size());
    set.add(set.add_unit(name), name, {11, 3}, {.init = Init::normal(0.5f), .frozen = frozen});
  }
  std::vector<float> start(set.total());
  AnyJob job = given(set, 4, [](const MicroBatch&, std::size_t i, int) { return i >= 33 && i < 66 ? 1000.0f : 1.0f; });
  set.initialise(job.options.seed, {0, set.total()}, start);
  job.optimizer = [] { return make_adamw(); };
  job.options.schedule.peak = 0.01;
  job.options.stage = 0;
  const StretchResult straight = run_stretch(job, {1, 6, "", ""});
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(at(stage, 3));
    const TemporaryDirectory directory;
    job.options.stage = stage;
    const StretchResult first = run_stretch(job, {3, 3, "", directory.string()});
    const StretchResult second = run_stretch(job, {2, 3, first.saved, ""});
    const std::vector<float> values = second.floats();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i >= 33 && i < 66)
        EXPECT_EQ(values[i], start[i]) << i;
      else
        EXPECT_NE(values[i], start[i]) << i;
    }
    EXPECT_DOUBLE_EQ(second.steps[0].grad_norm, std::sqrt(66.0));  // the frozen one's 1000s are not in it
    EXPECT_EQ(second.after.parameters, straight.after.parameters);
    EXPECT_EQ(second.after.optimizer, straight.after.optimizer);
    // It is present in the checkpoint, its untouched moments too.
    const auto reader = CheckpointReader::open(first.saved).value_or_throw();
    std::vector<float> saved(33);
    ASSERT_TRUE(reader.read(0, {33, 66}, saved).ok());
    EXPECT_TRUE(std::equal(saved.begin(), saved.end(), start.begin() + 33));
    for (int kind = 1; kind < static_cast<int>(reader.meta().kinds.size()); ++kind) {
      ASSERT_TRUE(reader.read(kind, {33, 66}, saved).ok());
      EXPECT_THAT(saved, Each(0.0f));
    }
  }
}

TEST(TiedWeights, AreOneStorageWhoseGradientIsTheSumOfBothUses) {
  ParameterSet set;
  set.add(set.add_unit("table", 2), "table.weight", {8, 3}, {});
  set.add(set.add_unit("body"), "body.weight", {5}, {});
  EXPECT_EQ(set.total(), 29u);  // counted once
  AnyJob job = given(set, 4, [](const MicroBatch&, std::size_t i, int use) {
    return i >= 24 ? 0.0f : use ? 1.0f : 2.0f;
  });
  on_every_place(4, [&](int stage, int world) {
    job.options.stage = stage;
    const TemporaryDirectory directory;
    const StretchResult first = run_stretch(job, {world, 1, "", directory.string()});
    EXPECT_EQ(first.steps[0].grad_norm, std::sqrt(24 * 9.0));  // counted once, both uses in it
    const StretchResult second = run_stretch(job, {5 - world, 1, first.saved, ""});
    const std::vector<float> values = second.floats();
    ASSERT_EQ(values.size(), 29u);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < 24 ? -6.0f : 0.0f) << i;
  });
}

}  // namespace
}  // namespace bellows::test
