// The real model on the real engine: one series of bits for every world, stage, bucket and thread count.
#include <gtest/gtest.h>

#include "runtime/toy_job.h"
#include "trainer.h"

namespace bellows::test {
namespace {

// Not "Run": that is a member of every test.
struct Trained {
  std::vector<std::uint32_t> loss_bits;
  Engine::Digests digests;
  std::optional<float> evaluation;
};

gpt::GptConfig tiny(bool llama) {
  gpt::GptConfig config = llama ? gpt::GptConfig::llama() : gpt::GptConfig{};
  config.vocab = 50;
  config.layers = 2;
  config.heads = 2;
  config.dim = 32;
  config.seq = 24;
  return config.resolved();
}

Trained train(const gpt::GptConfig& config, EngineOptions options, int world, int threads) {
  Trained run;
  options.lanes = 4;
  options.micro_batch = 2;
  options.schedule.peak = 0.01;
  options.schedule.kind = Schedule::Kind::kConstant;
  run_ranks(world, 1, [&](int rank, Communicator& comm) {
    ThreadPool pool(threads);
    gpt::Trainer trainer(config, options.micro_batch, options.precision,
                         gpt::synthetic_source(config.vocab, config.seq, 3), pool);
    Engine engine(trainer.parameters(), make_adamw(), options, pool);
    engine.enter(comm, world, nullptr);
    engine.attach(comm);
    const auto step = [&](Step& s) { trainer.step(s); };
    for (int s = 0; s < 3; ++s) {
      const StepResult result = engine.run_step(step);
      if (rank == 0) run.loss_bits.push_back(std::bit_cast<std::uint32_t>(result.loss));
    }
    engine.settle();
    const auto evaluation = engine.evaluate(step, 1);
    const auto digests = engine.digests();
    if (rank == 0) run.evaluation = evaluation, run.digests = digests;
    comm.barrier();
    engine.detach();
  });
  return run;
}

TEST(GptInvariance, EveryWorldStageAndThreadCountGivesTheSameBits) {
  for (const bool llama : {false, true})
    for (const DType precision : {DType::kF32, DType::kBF16}) {
      EngineOptions options;
      options.precision = precision;
      options.stage = 0;
      const Trained reference = train(tiny(llama), options, 1, 1);
      EXPECT_NE(reference.loss_bits[0], reference.loss_bits[2]);
      for (int world = 1; world <= 4; ++world)
        for (int stage = 0; stage <= 3; ++stage) {
          options.stage = stage;
          options.bucket_bytes = stage % 2 ? 8192 : 1 << 20;
          const Trained run = train(tiny(llama), options, world, 1 + stage % 2);
          const std::string what = std::string(llama ? "llama" : "gpt2") + " world " + std::to_string(world) +
                                   " stage " + std::to_string(stage) + " " + std::string(name_of(precision));
          EXPECT_EQ(run.loss_bits, reference.loss_bits) << what;
          EXPECT_EQ(run.digests.parameters, reference.digests.parameters) << what;
          EXPECT_EQ(run.digests.optimizer, reference.digests.optimizer) << what;
          EXPECT_EQ(run.evaluation, reference.evaluation) << what;
        }
    }
}

}  // namespace
}  // namespace bellows::test
