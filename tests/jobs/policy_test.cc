// Policies acting on real jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "training.h"

namespace bellows::testing_tools {
namespace {

using testing::HasSubstr;

/// Runs a job with a policy to its end; its events in order.
std::vector<nlohmann::json> events_of(std::vector<std::string> flags, int steps, const std::string& fault,
                                      Metrics* metrics) {
  const std::string folder = fresh_folder();
  Training training;
  training.steps = steps;
  training.launcher = {"bellows", "run", "-n", "4", "--min", "1", "--max", "4", "--events", folder + "/events.jsonl"};
  training.launcher.insert(training.launcher.end(), flags.begin(), flags.end());
  Process process(command_of(training, folder), {{"XDG_RUNTIME_DIR", folder},
                                                 {"BELLOWS_FAULT", fault},
                                                 {"BELLOWS_PEAK_F32", "1e11"},
                                                 {"BELLOWS_PEAK_BF16", "1e11"}});
  EXPECT_EQ(process.wait(120), 0) << process.err();
  *metrics = read_metrics(folder + "/metrics.jsonl");
  std::vector<nlohmann::json> events;
  std::istringstream in(contents(folder + "/events.jsonl"));
  for (std::string line; std::getline(in, line);) events.push_back(nlohmann::json::parse(line));
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return events;
}

// A peak that no rank reaches, so MFU is below any threshold. Acceptance 5.
TEST(MfuThreshold, ReleasesAfterExactlyThreeValidWindowsAndSaysWhy) {
  Metrics metrics;
  const auto events = events_of({"--policy", "mfu-threshold", "--mfu-threshold", "0.99", "--window", "0.5", "--windows", "3",
                                 "--straggler-gate", "1000"},
                                150, "sleep=0.02:every=1,phase=commit", &metrics);
  int valid = 0, blank = 0;
  for (const auto& event : events) {
    if (event["event"] != "decision") continue;
    const std::string text = event["text"];
    if (event["from"] != event["to"]) {
      EXPECT_EQ(event["from"], 4);
      EXPECT_EQ(event["to"], 3) << "a fifth of 4, at least one";
      EXPECT_THAT(text, HasSubstr("below 0.990"));
      ++valid;
      break;
    }
    text.find("does not count") != std::string::npos ? ++blank : ++valid;
  }
  EXPECT_EQ(valid, 3);
  EXPECT_GE(blank, 1) << "the first window of a generation is blank";
  const auto changes = metrics.events("world");
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes[0]["from"], 4);
  EXPECT_EQ(changes[0]["to"], 3);
  expect_same(metrics, undisturbed(150, "fp32"), "mfu-threshold");
}

TEST(MfuGuard, SettlesAndNeverReverses) {
  Metrics metrics;
  const auto events = events_of({"--policy", "mfu-guard", "--mfu-threshold", "0.99", "--window", "0.2", "--windows", "2",
                                 "--straggler-gate", "1000"},
                                250, "sleep=0.02:every=1,phase=commit", &metrics);
  int windows = 0;
  for (const auto& event : events) windows += event["event"] == "decision";
  EXPECT_GE(windows, 20);
  int size = 4;
  for (const auto& change : metrics.events("world")) {
    EXPECT_EQ(change["from"], size);
    EXPECT_LT(change["to"].get<int>(), size) << "a shrink was followed by a grow";
    size = change["to"];
  }
  EXPECT_EQ(size, 1);
  expect_same(metrics, undisturbed(250, "fp32"), "mfu-guard");
}

// cases.md, "Which rank is slow?": the report names rank 2 and the phase, not the ranks that waited, and fewer ranks would
// not cure it, so the world stays.
TEST(Straggler, IsNamedWithItsPhaseAndTheWorldIsLeftAlone) {
  const std::pair<const char*, const char*> phases[] = {{"forward", "compute"}, {"data", "data"}};
  for (const auto& [fault_phase, named] : phases) {
    Metrics metrics;
    const auto events =
        events_of({"--policy", "mfu-threshold", "--mfu-threshold", "0.99", "--window", "0.5", "--windows", "2"}, 40,
                  std::string("sleep=0.05:rank=2,every=1,phase=") + fault_phase, &metrics);
    int findings = 0;
    for (const auto& event : events) {
      if (event["event"] != "finding") continue;
      ++findings;
      EXPECT_THAT(event["text"].get<std::string>(), HasSubstr("rank 2"));
      EXPECT_THAT(event["text"].get<std::string>(), HasSubstr(named));
    }
    EXPECT_GE(findings, 1) << named;
    EXPECT_TRUE(metrics.events("world").empty()) << named;
  }
}

}  // namespace
}  // namespace bellows::testing_tools
