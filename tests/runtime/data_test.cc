#include "bellows/runtime/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "bellows/base/error.h"
#include "bellows/comm/lanes.h"

namespace bellows {
namespace {

/// A file of this process' own, removed when the program ends.
std::string write_file(const std::string& name, const std::string& text) {
  static struct Files {
    std::vector<std::string> paths;
    ~Files() {
      for (const std::string& path : paths) unlink(path.c_str());
    }
  } files;
  const std::string path = ::testing::TempDir() + "data-" + name + std::to_string(::getpid());
  files.paths.push_back(path);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(ShuffledOrder, IsAPermutationInEveryEpoch) {
  for (const std::int64_t samples :
       {1, 2, 3, 4, 5, 15, 16, 17, 24, 25, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097, 65537}) {
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

TEST(ShuffledOrder, IsAPureFunctionOfSeedSamplesAndNumber) {
  const ShuffledOrder a(11, 4097), b(11, 4097);
  std::vector<std::int64_t> forward, backward(3 * 4097);
  for (std::int64_t n = 0; n < 3 * 4097; ++n) forward.push_back(a.at(n));
  for (std::int64_t n = 3 * 4097; n-- > 0;) backward[n] = b.at(n);
  EXPECT_EQ(forward, backward);
}

// Where a sample lands must not depend on where it was: each quarter of the order draws evenly from each quarter of the
// data (4 standard deviations of a hypergeometric count).
TEST(ShuffledOrder, MixesNearAndFar) {
  constexpr std::int64_t kSamples = 4000;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const ShuffledOrder order(seed, kSamples);
    int counts[4][4] = {};
    for (std::int64_t n = 0; n < kSamples; ++n) ++counts[n * 4 / kSamples][order.at(n) * 4 / kSamples];
    for (const auto& row : counts)
      for (const int count : row) EXPECT_NEAR(count, 250, 4 * 12) << "seed " << seed;
  }
}

// A run of any length works in data sets far larger than what is visited, so the walk must stay short.
TEST(ShuffledOrder, HandlesHugeDataSets) {
  for (const std::int64_t samples :
       {(std::int64_t{1} << 40) - 1, std::int64_t{1} << 40, (std::int64_t{1} << 40) + 1, std::int64_t{1} << 61}) {
    const ShuffledOrder order(1, samples);
    std::set<std::int64_t> seen;
    for (std::int64_t n = 0; n < 2000; ++n) {
      const std::int64_t at = order.at(n);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, samples);
      seen.insert(at);
    }
    EXPECT_EQ(seen.size(), 2000u);
  }
}

// cases.md, "Data order after resume or resize": 24 samples, 4 ranks, stop after 8 (twice), resume on 2, on 3. A
// sample's number is a function of step, lane and index, so whoever computes a lane, every sample comes once per epoch.
TEST(ShuffledOrder, ResizingAndResumingVisitsEverySampleOncePerEpoch) {
  for (const std::int64_t samples : {24, 25}) {
    const ShuffledOrder order(3, samples);
    constexpr int kLanes = 4, kPerLane = 1;
    std::vector<std::int64_t> visited;
    const std::vector<std::pair<int, int>> phases = {{4, 2}, {4, 2}, {2, 1}, {3, 20}};  // {ranks, steps}
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
  const TextData data({path}, 3, 1, 0.34);  // 3 sequences, one of them held out
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

std::string complaint(const std::vector<std::string>& files, int seq, double held_out = 0.05) {
  try {
    TextData data(files, seq, 1, held_out);
    return "accepted";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(TextData, NamesTheFileThatCannotBeUsed) {
  using ::testing::HasSubstr;
  EXPECT_THAT(complaint({}, 8), HasSubstr("no data files"));
  EXPECT_THAT(complaint({"/no/such/file"}, 8), HasSubstr("'/no/such/file': No such file"));
  const std::string empty = write_file("empty", "");
  EXPECT_THAT(complaint({empty}, 8), HasSubstr("'" + empty + "' is empty"));
  EXPECT_THAT(complaint({::testing::TempDir()}, 8), HasSubstr("not a regular file"));
  const std::string enough = write_file("enough", "123456789");
  EXPECT_EQ(complaint({enough}, 8), "accepted");
  EXPECT_THAT(complaint({enough}, 0), HasSubstr("at least one token, not 0"));
  EXPECT_THAT(complaint({enough}, 8, 1.0), HasSubstr("held-out share"));
}

// Also when other files are long enough: a file that was asked for is never left out silently.
TEST(TextData, RefusesAFileShorterThanOneSequenceWithItsSizeAndTheNeededOne) {
  const std::string little = write_file("short", "12345678"), enough = write_file("long", std::string(100, 'x'));
  for (const auto& files : {std::vector{little}, std::vector{enough, little}}) {
    const std::string said = complaint(files, 8);
    EXPECT_THAT(said, ::testing::HasSubstr("'" + little + "' has 8 bytes"));
    EXPECT_THAT(said, ::testing::HasSubstr("needs 9"));
  }
}

TEST(TextData, DoesNotBlockOnAPipe) {
  const std::string path = ::testing::TempDir() + "pipe" + std::to_string(::getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(complaint({path}, 8), ::testing::HasSubstr("'" + path + "' is not a regular file"));
  unlink(path.c_str());
}

// The held-out part is the end of each file, no training sequence shares an input with it, and together they are all.
TEST(TextData, HoldsOutTheEndOfEveryFile) {
  std::string text;
  for (int i = 0; i < 1001; ++i) text += static_cast<char>(i / 10);  // sequence k of 10 inputs holds byte k
  const std::string a = write_file("held-a", text), b = write_file("held-b", text.substr(0, 501));
  const TextData data({a, b}, 10, 1, 0.1);
  EXPECT_EQ(data.train_samples(), 90 + 45);
  EXPECT_EQ(data.held_out_samples(), 10 + 5);
  std::vector<std::int32_t> tokens(10), targets(10);
  std::multiset<int> trained, held;
  for (std::int64_t n = 0; n < data.train_samples(); ++n) {
    data.train(n, tokens, targets);
    trained.insert(tokens[0]);
  }
  for (std::int64_t n = 0; n < data.held_out_samples(); ++n) {
    data.held_out(n, tokens, targets);
    held.insert(tokens[0]);
  }
  for (int k = 0; k < 100; ++k) {
    EXPECT_EQ(trained.count(k), (k < 90) + (k < 45)) << k;
    EXPECT_EQ(held.count(k), (k >= 90) + (k >= 45 && k < 50)) << k;
  }
}

TEST(TextData, SaysThatNothingIsHeldOut) {
  const TextData data({write_file("all", std::string(100, 'x'))}, 10, 1, 0.0);
  EXPECT_EQ(data.held_out_samples(), 0);
  std::vector<std::int32_t> tokens(10), targets(10);
  EXPECT_THROW(data.held_out(0, tokens, targets), UserError);
}

TEST(TextData, TrainsOnOtherSequencesInEveryEpochOrder) {
  std::string text;
  for (int i = 0; i < 2501; ++i) text += static_cast<char>(i / 10);
  const TextData data({write_file("order", text)}, 10, 1, 0.0);
  std::vector<std::int32_t> tokens(10), targets(10);
  std::vector<int> first, second;
  for (std::int64_t n = 0; n < 500; ++n) {
    data.train(n, tokens, targets);
    (n < 250 ? first : second).push_back(tokens[0]);
  }
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
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
