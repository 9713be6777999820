#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bellows/base/error.h"
#include "options.h"

namespace gpt {
namespace {

GptOptions parse(std::vector<std::string> words) {
  words.insert(words.begin(), "gpt-train");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}
std::string refusal(const std::vector<std::string>& words) {
  try {
    parse(words);
  } catch (const bellows::UserError& error) {
    return error.what();
  }
  return "";
}

TEST(GptOptions, CutTheGlobalBatchIntoLanesAndMicroBatches) {
  const auto engine =
      parse({"--data", "synthetic", "--global-batch", "64", "--lanes", "4", "--micro-batch", "8"}).train.engine;
  EXPECT_EQ(engine.lanes, 4);
  EXPECT_EQ(engine.micro_batch, 8);
  EXPECT_EQ(engine.micro_batches_per_lane, 2);
  EXPECT_EQ(engine.global_batch(), 64);
}

TEST(GptOptions, WithoutAGlobalBatchEveryLaneHasOneMicroBatch) {
  const auto engine = parse({"--data", "synthetic", "--lanes", "4", "--micro-batch", "3"}).train.engine;
  EXPECT_EQ(engine.micro_batches_per_lane, 1);
  EXPECT_EQ(engine.global_batch(), 12);
}

TEST(GptOptions, NameTheBatchThatDoesNotDivide) {
  EXPECT_THAT(refusal({"--data", "synthetic", "--lanes", "8", "--global-batch", "30"}),
              testing::HasSubstr("--global-batch 30"));
  EXPECT_THAT(refusal({"--data", "synthetic", "--lanes", "8", "--global-batch", "16", "--micro-batch", "4"}),
              testing::HasSubstr("2 sequences per lane"));
}

TEST(GptOptions, TheArchitectureIsWhereTheOtherChoicesComeFrom) {
  const GptConfig llama = parse({"--data", "synthetic", "--architecture", "llama"}).model;
  EXPECT_EQ(llama.norm, Norm::kRms);
  EXPECT_EQ(llama.position, Position::kRotary);
  EXPECT_EQ(llama.activation, Activation::kSwiGlu);
  EXPECT_FALSE(llama.bias);
  EXPECT_FALSE(llama.tied);
  const GptConfig mixed =
      parse({"--data", "synthetic", "--architecture", "llama", "--norm", "layer", "--tied", "--biases"}).model;
  EXPECT_EQ(mixed.norm, Norm::kLayer);
  EXPECT_EQ(mixed.activation, Activation::kSwiGlu);
  EXPECT_TRUE(mixed.tied);
  EXPECT_TRUE(mixed.bias);
  const GptConfig gpt = parse({"--data", "synthetic", "--no-tied"}).model;
  EXPECT_EQ(gpt.norm, Norm::kLayer);
  EXPECT_FALSE(gpt.tied);
}

TEST(GptOptions, TextNeedsAVocabularyOfBytes) {
  EXPECT_THAT(refusal({"--data", "book.txt", "--vocab", "100"}), testing::HasSubstr("--vocab 100"));
  EXPECT_EQ(refusal({"--data", "synthetic", "--vocab", "100"}), "");
}

TEST(GptOptions, RefuseWhatMakesNoSense) {
  EXPECT_THAT(refusal({"--data", "synthetic", "--layer", "3"}), testing::HasSubstr("--layers"));
  EXPECT_THAT(refusal({"--data", "synthetic", "--dim", "100", "--heads", "6"}), testing::HasSubstr("100"));
  EXPECT_THAT(refusal({"--data", "synthetic", "--steps", "10", "--warmup", "20"}), testing::HasSubstr("20"));
  EXPECT_THAT(refusal({"--data", "synthetic", "--precision", "fp8"}), testing::HasSubstr("fp8"));
  EXPECT_THAT(refusal({"--steps", "10"}), testing::HasSubstr("data"));
}

}  // namespace
}  // namespace gpt
