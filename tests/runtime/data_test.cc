#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "bellows/base/error.h"
#include "bellows/comm/lanes.h"
#include "bellows/runtime/data.h"

namespace bellows {
namespace {

std::string write_file(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + name + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(ShuffledOrder, IsAPermutationInEveryEpoch) {
  for (const std::int64_t samples : {1, 2, 3, 24, 25, 63, 64, 65, 1000, 4097}) {
    const ShuffledOrder order(5, samples);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < samples; ++i) seen.insert(order.at(epoch * samples + i));
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), samples);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), samples - 1);
    }
  }
}

TEST(ShuffledOrder, DiffersBetweenEpochsAndSeeds) {
  const ShuffledOrder a(5, 1000), b(6, 1000);
  int same_epoch = 0, same_seed = 0, in_place = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    same_epoch += a.at(i) == a.at(1000 + i);
    same_seed += a.at(i) == b.at(i);
    in_place += a.at(i) == i;
  }
  EXPECT_LT(same_epoch, 20);
  EXPECT_LT(same_seed, 20);
  EXPECT_LT(in_place, 20);
}

// cases.md, "Data order after resume or resize": 24 samples, 4 ranks, stop after 8 (twice), resume on 2, on 3. A sample's
// number is a function of step, lane and index, so whoever computes a lane, every sample comes once per epoch.
TEST(ShuffledOrder, ResizingAndResumingVisitsEverySampleOncePerEpoch) {
  for (const std::int64_t samples : {24, 25}) {
    const ShuffledOrder order(3, samples);
    constexpr int kLanes = 4, kPerLane = 1;
    std::vector<std::int64_t> visited;
    const std::vector<std::pair<int, int>> phases = {{4, 2}, {4, 2}, {2, 1}, {3, 20}};   // {ranks, steps}
    std::int64_t step = 0;
    for (const auto& [ranks, steps] : phases)
      for (int s = 0; s < steps; ++s, ++step) {
        std::vector<std::int64_t> in_step;
        const LaneAssignment lanes = contiguous_lanes(kLanes, ranks);
        for (const auto& mine : lanes)
          for (const int lane : mine) in_step.push_back(order.at(step * kLanes * kPerLane + lane));
        visited.insert(visited.end(), in_step.begin(), in_step.end());
      }
    for (std::size_t epoch = 0; (epoch + 1) * samples <= visited.size(); ++epoch) {
      std::set<std::int64_t> seen(visited.begin() + epoch * samples, visited.begin() + (epoch + 1) * samples);
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), samples) << "epoch " << epoch;
    }
  }
}

TEST(TextData, GivesInputsAndTheirNextBytes) {
  const std::string path = write_file("text", "abcdefghij");
  const TextData data({path}, 3, 1, 0.34);   // 3 sequences, one of them held out
  EXPECT_EQ(data.train_samples(), 2);
  EXPECT_EQ(data.held_out_samples(), 1);
  std::vector<std::int32_t> tokens(3), targets(3);
  std::set<char> starts;
  for (int n = 0; n < 2; ++n) {
    data.train(n, tokens, targets);
    starts.insert(static_cast<char>(tokens[0]));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(targets[i], tokens[i] + 1);
  }
  EXPECT_EQ(starts, (std::set<char>{'a', 'd'}));
  data.held_out(0, tokens, targets);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{'g', 'h', 'i'}));
}

TEST(TextData, NamesTheFileThatCannotBeUsed) {
  const auto message = [](const std::vector<std::string>& files, int seq) -> std::string {
    try {
      TextData data(files, seq, 1);
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_NE(message({"/no/such/file"}, 8).find("'/no/such/file': No such file"), std::string::npos);
  const std::string empty = write_file("empty", "");
  EXPECT_NE(message({empty}, 8).find("'" + empty + "' is empty"), std::string::npos);
  const std::string little = write_file("short", "12345678");
  EXPECT_NE(message({little}, 8).find("needs 9"), std::string::npos) << message({little}, 8);
  EXPECT_NE(message({::testing::TempDir()}, 8).find("not a regular file"), std::string::npos);
  EXPECT_EQ(message({write_file("enough", "123456789")}, 8), "accepted");
}

TEST(TextData, FingerprintTellsFilesApart) {
  const std::string a = write_file("a", std::string(100'000, 'x'));
  std::string changed(100'000, 'x');
  changed.back() = 'y';
  const std::string b = write_file("b", changed);
  EXPECT_NE(TextData({a}, 64, 1).fingerprint(), TextData({b}, 64, 1).fingerprint());
  EXPECT_EQ(TextData({a}, 64, 1).fingerprint(), TextData({a}, 64, 2).fingerprint());
}

}  // namespace
}  // namespace bellows
