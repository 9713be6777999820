#include "doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bellows/comm/topology.h"
#include "bench_optimizer.h"
#include "job_process.h"

namespace bellows {
namespace {

std::string output_of(int (*main_function)(int, char**), std::vector<std::string> words, int expected = 0) {
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  testing::internal::CaptureStdout();
  EXPECT_EQ(main_function(static_cast<int>(words.size()), argv.data()), expected);
  return testing::internal::GetCapturedStdout();
}

TEST(Doctor, SaysWhatTheHostAndTheBuildOffer) {
  const auto report = nlohmann::json::parse(output_of(doctor_main, {"doctor", "--json"}));
  EXPECT_GE(report["cpu"]["allowed_cores"].get<int>(), 1);
  EXPECT_GT(report["peak"]["f32_flops_per_core"].get<double>(), 1e9);
  EXPECT_GT(report["memory"]["triad_gbps"].get<double>(), 0.0);
  EXPECT_EQ(report["gpus"].empty(), !report["gpu_note"].get<std::string>().empty());
  std::vector<std::string> names;
  for (const auto& transport : report["transports"]) names.push_back(transport["name"]);
  EXPECT_NE(std::find(names.begin(), names.end(), "shm"), names.end());
}

TEST(Doctor, RecordsTheTopologyOfTheHost) {
  const std::string file = testing_tools::fresh_folder() + "/topology.json";
  const auto report = nlohmann::json::parse(output_of(doctor_main, {"doctor", "--json", "--record", file}));
  const auto recorded = load_topology(file);
  ASSERT_TRUE(recorded.ok()) << recorded.error();
  ASSERT_EQ(recorded.value().hosts.size(), 1u);
  EXPECT_EQ(recorded.value().hosts[0], this_host());
  EXPECT_EQ(report["topology"], nlohmann::json::parse(testing_tools::contents(file)));
  std::filesystem::remove_all(std::filesystem::path(file).parent_path());
}

TEST(Doctor, ThePageForPeopleHasEverySectionAndOneVerdict) {
  const std::string page = output_of(doctor_main, {"doctor"});
  for (const char* part :
       {"Processor\n", "Matrix product peak\n", "Memory\n", "GPUs\n", "Topology\n", "Transports\n", "Limits\n"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_NE(page.find("Nothing here will hurt") == std::string::npos, page.find("This will hurt") == std::string::npos);
}

TEST(BenchOptimizer, PrintsOneObjectPerOptimizerAndDtype) {
  const auto rows = nlohmann::json::parse(
      output_of(bench_optimizer_main, {"bench", "--elements", "40001", "--threads", "2", "--samples", "5", "--json"}));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0]["optimizer"], "adamw");
  EXPECT_EQ(rows[0]["bytes_per_element"], 28);
  EXPECT_EQ(rows[1]["dtype"], "bf16");
  EXPECT_EQ(rows[1]["bytes_per_element"], 30);
  for (const auto& row : rows) {
    EXPECT_LE(row["min_us"], row["median_us"]);
    EXPECT_LE(row["median_us"], row["max_us"]);
    EXPECT_GT(row["ratio"].get<double>(), 0.0);
  }
}

TEST(BenchOptimizer, RefusesWhatItDoesNotKnow) {
  output_of(bench_optimizer_main, {"bench", "--optimizers", "adam"}, 2);
  output_of(bench_optimizer_main, {"bench", "--element", "5"}, 2);
}

}  // namespace
}  // namespace bellows
