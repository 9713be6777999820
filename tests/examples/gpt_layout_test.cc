#include <cmath>

#include "bellows/base/error.h"
#include "flops.h"
#include "gpt_fixture.h"

namespace gpt {
namespace {

TEST(GptLayout, OfGpt2HasTheKnownNumberOfParameters) {
  GptConfig c;
  c.vocab = 50257;
  c.layers = c.heads = 12;
  c.dim = 768;
  c.seq = 1024;
  EXPECT_EQ(GptLayout(c).total(), 124439808u);  // GPT-2 small
}

TEST(GptLayout, OfLlamaHasTheKnownNumberOfParameters) {
  GptConfig c = GptConfig::llama();
  c.vocab = 32000;
  c.layers = 22;
  c.heads = 32;
  c.kv_heads = 4;
  c.dim = 2048;
  c.hidden = 5632;
  EXPECT_EQ(GptLayout(c).total(), 1100048384u);  // TinyLlama 1.1B
}

TEST(GptLayout, ParametersLieOneAfterAnotherInTheirUnit) {
  for (const GptConfig& config : {tiny(), tiny_llama()})
    for (const auto& unit : GptLayout(config).units) {
      std::size_t at = 0;
      for (const auto& p : unit.parameters) {
        EXPECT_EQ(p.offset, at);
        at += p.count;
      }
      EXPECT_EQ(unit.count, at);
    }
}

TEST(GptLayout, ATiedTableIsUsedTwice) {
  GptConfig c = tiny();
  EXPECT_EQ(GptLayout(c).embedding().backward_uses, 2);
  EXPECT_FALSE(GptLayout(c).head().has("output"));
  c.tied = false;
  EXPECT_EQ(GptLayout(c).embedding().backward_uses, 1);
  EXPECT_TRUE(GptLayout(c).head().has("output"));
}

TEST(GptLayout, DecaysMatricesOnlyAndScalesWhatEntersTheResidualStream) {
  const GptLayout layout(tiny());
  for (const auto& unit : layout.units)
    for (const auto& p : unit.parameters) EXPECT_EQ(p.decay, p.shape.size() == 2) << p.name;
  EXPECT_FLOAT_EQ(layout.block(0).find("mlp.up.weight").start.stddev, 0.02f);
  EXPECT_FLOAT_EQ(layout.block(0).find("mlp.down.weight").start.stddev, 0.01f);  // 0.02 / sqrt(2 * 2 layers)
  EXPECT_FLOAT_EQ(layout.block(1).find("attention.out.weight").start.stddev, 0.01f);
  EXPECT_EQ(layout.block(0).find("norm1.weight").start.kind, Start::Kind::kOnes);
}

TEST(GptConfig, RefusesShapesThatDoNotFit) {
  const auto refused = [](void (*change)(GptConfig&), const char* value) {
    GptConfig c = tiny_llama();
    change(c);
    try {
      c.resolved();
    } catch (const bellows::UserError& error) {
      return std::string(error.what()).find(value) != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused([](GptConfig& c) { c.dim = 25; }, "25"));
  EXPECT_TRUE(refused([](GptConfig& c) { c.kv_heads = 3; }, "3"));
  EXPECT_TRUE(refused([](GptConfig& c) { c.dim = 12; }, "even"));
  EXPECT_TRUE(refused([](GptConfig& c) { c.layers = 0; }, "layers"));
  EXPECT_TRUE(refused([](GptConfig& c) { c.seq = -4; }, "-4"));
  EXPECT_NO_THROW(tiny_llama().resolved());
}

TEST(GptFlops, CountMatrixProductsOnly) {
  GptConfig c;  // 6 layers, 384 wide
  c.vocab = 8192;
  const std::int64_t block = 4 * 384 * 384 + 2 * 384 * 1536;
  EXPECT_EQ(matrix_parameters(c), 6 * block + 8192 * 384);
  EXPECT_DOUBLE_EQ(model_flops_per_token(c), 6.0 * (6 * block + 8192 * 384) + 12.0 * 6 * 384 * 256);
  c.tied = false;  // the head counts once either way
  EXPECT_EQ(matrix_parameters(c), 6 * block + 8192 * 384);
}

TEST(GptFlops, SharedKeysAndValuesCountOnce) {
  const GptConfig c = tiny_llama();  // 24 wide, 4 heads on 2, hidden 41, vocabulary 37
  EXPECT_EQ(matrix_parameters(c), 2 * (24 * 48 + 24 * 24 + 3 * 24 * 41) + 37 * 24);
}

}  // namespace
}  // namespace gpt
