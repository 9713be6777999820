#include "training.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace bellows::testing_tools {
namespace {

// A little English to train on: small, and the same everywhere.
std::string text_file(const std::string& folder) {
  const std::string path = folder + "/text.txt";
  std::ofstream out(path);
  for (int i = 0; i < 400; ++i)
    out << "the ranks hold lane " << i % 17 << " of step " << i << ", and nobody can tell how many they are; ";
  return path;
}

}  // namespace

std::map<int, std::string> Metrics::loss_bits() const {
  std::map<int, std::string> bits;
  for (const auto& line : lines)
    if (!line.contains("event")) bits[line["step"].get<int>()] = line["loss_bits"].get<std::string>();
  return bits;
}

std::vector<nlohmann::json> Metrics::events(const std::string& kind) const {
  std::vector<nlohmann::json> found;
  for (const auto& line : lines)
    if (line.value("event", "") == kind) found.push_back(line);
  return found;
}

std::string Metrics::digests() const {
  const auto end = events("end");
  return end.empty() ? "" : end.back()["params_digest"].get<std::string>() + " " +
                                end.back()["optimizer_digest"].get<std::string>();
}

int Metrics::last_step() const {
  int step = 0;
  for (const auto& line : lines)
    if (!line.contains("event")) step = line["step"].get<int>();
  return step;
}

Metrics read_metrics(const std::string& path) {
  Metrics metrics;
  std::istringstream in(contents(path));
  for (std::string line; std::getline(in, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_discarded()) metrics.lines.push_back(std::move(json));   // the last line may be half written
  }
  return metrics;
}

std::vector<std::string> command_of(const Training& t, const std::string& folder) {
  std::vector<std::string> words = t.launcher;
  if (!words.empty()) words.push_back("--");
  const std::vector<std::string> own = {
      std::string(BELLOWS_BIN_DIR) + "/gpt-train", "--data", text_file(folder), "--layers", "2", "--heads", "2",
      "--dim", "48", "--seq", "32", "--lanes", "4", "--micro-batch", "2", "--global-batch", "8", "--seed", "3",
      "--lr", "0.002", "--steps", std::to_string(t.steps), "--stage", std::to_string(t.stage), "--precision",
      t.precision, "--bucket-mb", t.bucket_mb, "--metrics", folder + "/metrics.jsonl"};
  words.insert(words.end(), own.begin(), own.end());
  words.insert(words.end(), t.more.begin(), t.more.end());
  return words;
}

Metrics run_to_end(const Training& training) {
  const std::string folder = fresh_folder();
  auto environment = training.environment;
  environment["XDG_RUNTIME_DIR"] = folder;
  environment["BELLOWS_PEAK_F32"] = environment["BELLOWS_PEAK_BF16"] = "1e11";   // nothing to measure here
  Process process(command_of(training, folder), environment);
  EXPECT_EQ(process.wait(120), 0) << process.err();
  Metrics metrics = read_metrics(folder + "/metrics.jsonl");
  EXPECT_NE(metrics.digests(), "") << process.err();
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return metrics;
}

const Metrics& undisturbed(int steps, const std::string& precision) {
  static std::map<std::pair<int, std::string>, Metrics> known;
  auto [it, missing] = known.try_emplace({steps, precision});
  if (missing) {
    Training training;
    training.steps = steps;
    training.precision = precision;
    training.stage = 0;
    it->second = run_to_end(training);
  }
  return it->second;
}

void expect_same(const Metrics& metrics, const Metrics& reference, const std::string& what) {
  EXPECT_EQ(metrics.loss_bits(), reference.loss_bits()) << what;
  EXPECT_EQ(metrics.digests(), reference.digests()) << what;
}

}  // namespace bellows::testing_tools
