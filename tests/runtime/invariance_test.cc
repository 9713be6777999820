// Idea 1 of the design: the world size is never visible in the numbers.
#include <gtest/gtest.h>

#include "toy_job.h"

namespace bellows::test {
namespace {

struct Case {
  int stage;
  DType precision;
  std::size_t bucket_bytes;
  int micro_batches_per_lane;
};

ToyJob job_of(const Case& c) {
  ToyJob job;
  job.engine = toy_options(c.stage, c.precision, c.bucket_bytes);
  job.engine.micro_batches_per_lane = c.micro_batches_per_lane;
  return job;
}

void expect_same(const ToyRun& run, const ToyRun& reference, const std::string& what) {
  EXPECT_EQ(run.loss_bits, reference.loss_bits) << what;
  EXPECT_EQ(run.digests.parameters, reference.digests.parameters) << what;
  EXPECT_EQ(run.digests.optimizer, reference.digests.optimizer) << what;
  EXPECT_EQ(run.evaluation, reference.evaluation) << what;
}

TEST(Invariance, EveryWorldStageAndBucketGivesTheSameBits) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    for (const int micro_batches : {1, 2}) {
      const ToyRun reference = run_toy(job_of({0, precision, 1 << 20, micro_batches}), 1, true);
      ASSERT_EQ(reference.loss_bits.size(), 4u);
      EXPECT_NE(reference.loss_bits.front(), reference.loss_bits.back());
      for (int world = 1; world <= 8; ++world)
        for (int stage = 0; stage <= 3; ++stage) {
          const std::size_t bucket = world % 2 ? 4096 : 1 << 20;
          expect_same(run_toy(job_of({stage, precision, bucket, micro_batches}), world, true), reference,
                      "world " + std::to_string(world) + " stage " + std::to_string(stage) + " precision " +
                          std::string(name_of(precision)) + " micro-batches " + std::to_string(micro_batches));
        }
    }
  }
}

TEST(Invariance, LanesNeedNotBeAPowerOfTwo) {
  ToyJob job = job_of({0, DType::kF32, 4096, 1});
  job.engine.lanes = 6;
  const ToyRun reference = run_toy(job, 1);
  for (int world = 2; world <= 6; ++world)
    for (int stage = 0; stage <= 3; ++stage) {
      job.engine.stage = stage;
      expect_same(run_toy(job, world), reference, "world " + std::to_string(world) + " stage " + std::to_string(stage));
    }
}

TEST(Invariance, MoreRanksThanLanesIsRefused) {
  const ToyJob job = job_of({2, DType::kF32, 4096, 1});
  try {
    run_toy(job, 9);
    FAIL() << "9 ranks on 8 lanes were accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("more ranks than lanes: 9 ranks share 8 lanes"), std::string::npos)
        << error.what();
  }
}

TEST(Invariance, GrowingAndShrinkingChangesNoBit) {
  for (const DType precision : {DType::kF32, DType::kBF16})
    for (int stage = 0; stage <= 3; ++stage) {
      ToyJob job = job_of({stage, precision, 4096, 1});
      job.steps = 10;
      const ToyRun reference = run_toy(job, 1);
      const ToyRun changed = run_phases(job, {{2, 2}, {4, 2}, {3, 2}, {1, 1}, {5, 2}, {2, 1}});
      expect_same(changed, reference, "stage " + std::to_string(stage));
      for (std::size_t i = 1; i < changed.entries.size(); ++i) {
        const EntryResult& entry = changed.entries[i];
        EXPECT_EQ(entry.source, EntryResult::Source::kLivingRanks);
        // The toy model has a dozen chunks in all, so shares round coarsely here; ShardLayout tests bound the movement
        // for models with enough of them.
        EXPECT_EQ(entry.bytes_moved > 0, entry.bytes_minimum > 0) << "change " << i;
      }
    }
}

TEST(Invariance, ClippingReportsTheNormBeforeItAndTheCoefficient) {
  ToyJob job = job_of({2, DType::kF32, 4096, 1});
  const ToyRun run = run_toy(job, 3);
  for (const StepResult& result : run.results) {
    EXPECT_GT(result.grad_norm, job.engine.clip_norm);
    EXPECT_NEAR(result.clip_coefficient, job.engine.clip_norm / result.grad_norm, 1e-6);
  }
}

TEST(Transaction, ANonFiniteGradientIsSkippedByEveryRank) {
  for (const int stage : {0, 1, 2, 3}) {
    ToyJob job = job_of({stage, DType::kF32, 4096, 1});
    job.steps = 5;
    const ToyRun clean = run_toy(job, 3);
    job.poison = [](std::int64_t step, int lane) {
      return step == 2 && lane == 5 ? std::numeric_limits<float>::infinity() : 0.0f;
    };
    const ToyRun run = run_toy(job, 3);
    for (int s = 0; s < 5; ++s) EXPECT_EQ(run.results[s].skipped, s == 2) << "stage " << stage << " step " << s;
    EXPECT_NE(run.digests.parameters, clean.digests.parameters);
    const ToyRun alone = run_toy(job, 1);
    EXPECT_EQ(run.digests.parameters, alone.digests.parameters);
    EXPECT_EQ(run.digests.optimizer, alone.digests.optimizer);
  }
}

TEST(Transaction, GivesUpAfterTooManySkippedSteps) {
  ToyJob job = job_of({2, DType::kF32, 4096, 1});
  job.engine.max_skipped_in_a_row = 3;
  job.poison = [](std::int64_t, int lane) { return lane == 1 ? std::nanf("") : 0.0f; };
  try {
    run_toy(job, 2);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("block1.weight"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("lane 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace bellows::test
