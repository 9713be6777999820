#include "gpt_fixture.h"
#include "sample.h"

namespace gpt {
namespace {

TEST(Sample, TheLikeliestTokenWithoutTemperature) {
  const float logits[] = {0.5f, 3.0f, -1.0f, 2.9f};
  for (std::uint64_t draw = 0; draw < 5; ++draw) EXPECT_EQ(choose_token(logits, 0, 1, draw), 1);
}

TEST(Sample, DrawsTokensAsOftenAsTheirProbabilitiesSay) {
  const float logits[] = {std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  int count[3] = {};
  for (std::uint64_t draw = 0; draw < 4000; ++draw) ++count[choose_token(logits, 1, 7, draw)];
  EXPECT_NEAR(count[0], 400, 80);
  EXPECT_NEAR(count[1], 2400, 130);
  EXPECT_NEAR(count[2], 1200, 120);
}

TEST(Sample, IsAFunctionOfTheSeed) {
  Rig<float> rig(tiny_llama(), 1);
  const std::int32_t prompt[] = {3, 5};
  const auto text = [&](std::uint64_t seed) {
    return sample_tokens(tiny_llama(), bellows::DType::kF32, rig.params(), rig.pool, prompt, {seed, 30, 1.0});
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

// Greedy text against a plain forward of everything so far, beyond the sequence's end as well.
TEST(Sample, GoesOnAsAWholeForwardWould) {
  GptConfig config = tiny();
  config.seq = 20;
  Rig<float> rig(config, 1);
  const std::int32_t prompt[] = {3};
  const auto got = sample_tokens(config, bellows::DType::kF32, rig.params(), rig.pool, prompt, {1, 50, 0});
  std::vector<std::int32_t> window = {3};
  std::vector<float> logits(config.vocab);
  for (const std::int32_t token : got) {
    std::vector<std::int32_t> padded = window;
    padded.resize(config.seq, 0);
    rig.model.embed_forward(rig.unit(0), padded);
    for (int l = 0; l < config.layers; ++l) rig.model.block_forward(l, rig.unit(1 + l));
    rig.model.logits(rig.unit(rig.head()), rig.unit(0), static_cast<long>(window.size()) - 1, logits);
    ASSERT_EQ(token, choose_token(logits, 0, 1, 0));
    if (window.size() == 20) window.erase(window.begin(), window.begin() + 10);
    window.push_back(token);
  }
}

}  // namespace
}  // namespace gpt
