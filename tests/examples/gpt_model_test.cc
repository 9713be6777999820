#include <cmath>
#include <cstring>

#include "bellows/base/error.h"
#include "gpt_fixture.h"

namespace gpt {
namespace {

using bellows::bf16;

template <class T>
class GptModelOf : public testing::Test {};
using Precisions = testing::Types<float, bf16>;
TYPED_TEST_SUITE(GptModelOf, Precisions);

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

GptConfig several_blocks(GptConfig c) {
  c.seq = 150;
  return c;
}

TYPED_TEST(GptModelOf, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const GptConfig& config : {several_blocks(tiny()), several_blocks(tiny_llama())}) {
    const Batch batch = random_batch(config, 3, 1);
    Rig<TypeParam> one(config, 3, 1);
    const LossSum expected = one.step(batch);
    for (const int threads : {2, 3}) {
      Rig<TypeParam> many(config, 3, threads);
      const LossSum loss = many.step(batch);
      EXPECT_EQ(loss.sum, expected.sum);
      EXPECT_TRUE(same_bits(many.gradient(), one.gradient())) << threads << " threads";
    }
  }
}

TYPED_TEST(GptModelOf, GivesTheSameBitsWhereverItsMemoryLies) {
  const GptConfig config = several_blocks(tiny());
  const Batch batch = random_batch(config, 1, 2);
  Rig<TypeParam> plain(config, 1);
  const LossSum expected = plain.step(batch);
  for (const std::size_t misalign : {1, 7}) {
    Rig<TypeParam> moved(config, 1, 1, misalign);
    EXPECT_EQ(moved.step(batch).sum, expected.sum);
    EXPECT_TRUE(same_bits(moved.gradient(), plain.gradient())) << "off by " << misalign;
  }
}

TYPED_TEST(GptModelOf, GivesTheSameBitsWhenTheStepIsRunAgain) {
  const GptConfig config = several_blocks(tiny_llama());
  Rig<TypeParam> rig(config, 2, 2);
  const Batch batch = random_batch(config, 2, 3), other = random_batch(config, 2, 4);
  rig.step(batch);
  const std::vector<float> first(rig.gradient().begin(), rig.gradient().end());
  rig.step(other);
  rig.step(batch);
  EXPECT_TRUE(same_bits(rig.gradient(), first));
}

TYPED_TEST(GptModelOf, AddsToGradientsThatAccumulate) {
  for (GptConfig config : {tiny(), tiny_llama()}) {
    const Batch a = random_batch(config, 2, 5), b = random_batch(config, 2, 6);
    Rig<TypeParam> rig(config, 2);
    rig.step(a);
    const std::vector<float> first(rig.gradient().begin(), rig.gradient().end());
    rig.step(b);
    const std::vector<float> second(rig.gradient().begin(), rig.gradient().end());
    rig.step(a);
    rig.step(b, true);
    for (std::size_t i = 0; i < first.size(); ++i)
      ASSERT_NEAR(rig.grads()[i], first[i] + second[i], 2e-5 * (1 + std::abs(first[i]) + std::abs(second[i]))) << i;
  }
}

TYPED_TEST(GptModelOf, SumsBothUsesOfATiedTable) {
  GptConfig tied = tiny(), untied = tiny();
  untied.tied = false;
  const Batch batch = random_batch(tied, 2, 7);
  Rig<TypeParam> one(tied, 2), two(untied, 2);
  // The same values: the untied head holds a copy of the table.
  std::copy_n(one.params(), one.size(), two.params());
  const std::size_t table = static_cast<std::size_t>(tied.vocab) * tied.dim;
  const std::size_t output = two.begin(two.head()) + two.model.layout().head().find("output").offset;
  std::copy_n(one.params(), table, two.params() + output);
  EXPECT_EQ(one.step(batch).sum, two.step(batch).sum);
  for (std::size_t i = 0; i < table; ++i)
    ASSERT_NEAR(one.grads()[i], two.grads()[i] + two.grads()[output + i], 1e-4f) << i;
}

TYPED_TEST(GptModelOf, AMicroBatchWithoutTargetsHasNoLossAndNoGradient) {
  const GptConfig config = tiny();
  Batch batch = random_batch(config, 2, 8);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  Rig<TypeParam> rig(config, 2);
  const LossSum loss = rig.step(batch);
  EXPECT_EQ(loss.tokens, 0);
  EXPECT_EQ(loss.sum, 0);
  for (const float g : rig.gradient()) ASSERT_EQ(g, 0);
}

TYPED_TEST(GptModelOf, HasTheSameLossWithoutABackwardPass) {
  const GptConfig config = tiny_llama();
  const Batch batch = random_batch(config, 2, 9);
  Rig<TypeParam> rig(config, 2);
  EXPECT_EQ(rig.forward(batch, false).sum, rig.forward(batch, true).sum);
}

TYPED_TEST(GptModelOf, ANotANumberInAParameterReachesTheLoss) {
  const GptConfig config = tiny();
  for (const char* name : {"attention.qkv.weight", "norm1.weight", "mlp.up.bias"}) {
    Rig<TypeParam> rig(config, 1);
    rig.params()[rig.begin(1) + rig.model.layout().block(0).find(name).offset] =
        static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(rig.forward(random_batch(config, 1, 10), true).sum)) << name;
  }
}

TYPED_TEST(GptModelOf, ComputesOnlyTheRowsThatAreAskedFor) {
  GptConfig config = several_blocks(tiny_llama());
  const Batch batch = random_batch(config, 1, 12);
  Rig<TypeParam> rig(config, 1);
  rig.forward(batch, false);
  std::vector<float> whole(config.vocab), piecewise(config.vocab);
  rig.model.logits(rig.unit(rig.head()), rig.unit(0), 140, whole);
  // The same text in two pieces, the second on what the first left behind; what comes after row 140 does not matter.
  Batch changed = batch;
  std::fill(changed.tokens.begin() + 141, changed.tokens.end(), 0);
  Rig<TypeParam> fresh(config, 1);
  const auto pass = [&](long first, long last) {
    fresh.model.limit_forward(first, last);
    fresh.model.embed_forward(fresh.unit(0), changed.tokens);
    for (int l = 0; l < config.layers; ++l) fresh.model.block_forward(l, fresh.unit(1 + l));
  };
  pass(0, 100);
  pass(100, 141);
  fresh.model.logits(fresh.unit(fresh.head()), fresh.unit(0), 140, piecewise);
  EXPECT_TRUE(same_bits(piecewise, whole));
}

TEST(GptModel, RefusesTokensOutsideTheVocabulary) {
  const GptConfig config = tiny();
  Rig<float> rig(config, 1);
  Batch batch = random_batch(config, 1, 13);
  batch.tokens[3] = 37;
  EXPECT_THROW(rig.forward(batch, false), bellows::UserError);
  batch.tokens[3] = -1;
  EXPECT_THROW(rig.forward(batch, false), bellows::UserError);
  batch.tokens[3] = 0;
  batch.targets[2] = 37;
  EXPECT_THROW(rig.forward(batch, false), bellows::UserError);
}

TEST(GptModel, KeepsLessInBfloat16) {
  bellows::ThreadPool pool(1);
  const GptConfig config = several_blocks(tiny());
  const GptModel wide(config, 2, bellows::DType::kF32, pool), narrow(config, 2, bellows::DType::kBF16, pool);
  EXPECT_LT(narrow.bytes(), wide.bytes());
}

}  // namespace
}  // namespace gpt
