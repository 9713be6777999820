#include "plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bellows/base/error.h"

namespace bellows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Plot : public ::testing::Test {
 protected:
  Plot() : dir_(std::filesystem::path(::testing::TempDir()) / ("plot-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(dir_);
  }
  ~Plot() override {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  std::string write(const std::string& text) {
    const std::string path = (dir_ / "run.jsonl").string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string complaint(const std::string& text) {
    try {
      MetricsFile::read(write(text));
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  }
  static std::string step(int number, double loss, const std::string& mfu = "0.5", int world_size = 2) {
    return "{\"step\":" + std::to_string(number) + ",\"loss\":" + std::to_string(loss) +
           ",\"tokens\":1000,\"step_ms\":100.0,\"mfu\":" + mfu + ",\"world_size\":" + std::to_string(world_size) +
           ",\"accounts\":{\"compute\":66.6,\"straggler_wait\":33.4}}\n";
  }
  static int call(int (*command)(int, char**), std::vector<std::string> words) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    return command(static_cast<int>(words.size()), argv.data());
  }

  std::filesystem::path dir_;
};

const std::string kChange =
    "{\"event\":\"world\",\"step\":2,\"from\":2,\"to\":1,\"planned\":false,\"reason\":\"rank 1 <killed> & gone\","
    "\"bytes_moved\":1024,\"ms\":171.0}\n";
const std::string kEnd =
    "{\"event\":\"end\",\"params_digest\":\"aa\",\"optimizer_digest\":\"bb\",\"steps\":3,\"stopped\":false}\n";

TEST_F(Plot, AStepCommittedAgainCountsOnceInTheCurvesAndTwiceInTheTime) {
  const auto run =
      MetricsFile::read(write(step(1, 5) + step(2, 4) + step(3, 3.5) + kChange + step(2, 4.25) + step(3, 3)));
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.steps[1].loss, 4.25);
  EXPECT_EQ(run.steps[2].loss, 3);
  EXPECT_EQ(run.repeated, 2);
  EXPECT_DOUBLE_EQ(run.wall_ms, 500);
  EXPECT_DOUBLE_EQ(run.accounts_ms[0].second, 5 * 66.6);
}

TEST_F(Plot, ABrokenLineIsNamedByFileAndNumber) {
  const std::string path = (dir_ / "run.jsonl").string();
  EXPECT_THAT(complaint(step(1, 5) + "{\"step\":2,\n" + step(3, 4)), HasSubstr(path + ":2: not a JSON object"));
  EXPECT_THAT(complaint(step(1, 5) + "\n[1]\n"), HasSubstr(path + ":3: not a JSON object"));
  EXPECT_THAT(complaint("{\"step\":\"one\",\"loss\":1}\n"), HasSubstr(path + ":1: not a line of a metrics file"));
  EXPECT_THAT(complaint("{\"loss\":1}\n"), HasSubstr(path + ":1:"));
  EXPECT_THAT(complaint(""), HasSubstr("'" + path + "' holds no step"));
  EXPECT_THAT(complaint(kEnd), HasSubstr("holds no step"));
}

TEST_F(Plot, ALineThatIsBeingWrittenIsLeftOut) {
  const auto run = MetricsFile::read(write(step(1, 5) + "{\"step\":2,\"lo"));
  EXPECT_EQ(run.steps.size(), 1u);
  EXPECT_FALSE(run.ended);
}

TEST_F(Plot, AMissingFileIsNamed) {
  EXPECT_EQ(call(report_main, {"bellows report", (dir_ / "none").string()}), 2);
  try {
    MetricsFile::read((dir_ / "none").string());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr((dir_ / "none").string()), HasSubstr("No such file")));
  }
}

TEST_F(Plot, SharesAddUpToAHundredPercent) {
  for (const auto& values : std::vector<std::vector<double>>{
           {1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}, {1e9, 1, 1}, {0, 5, 0}, {66.6, 33.4}, {0.1, 0.2, 0.3, 1e-9}}) {
    const std::vector<int> shares = tenths_of_percent(values);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), 1000);
    for (const int share : shares) EXPECT_GE(share, 0);
  }
  EXPECT_EQ(tenths_of_percent({1, 1, 1})[0] + tenths_of_percent({1, 1, 1})[1], 667);
  EXPECT_EQ(tenths_of_percent({0, 0}), (std::vector<int>{0, 0}));
}

TEST_F(Plot, NumbersAndTimesReadWell) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(2867200), "2,867,200");
  EXPECT_EQ(grouped(-1234), "-1,234");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(duration_text(800), "0.8 s");
  EXPECT_EQ(duration_text(59'400), "59 s");
  EXPECT_EQ(duration_text(114'000), "1 min 54 s");
  EXPECT_EQ(duration_text(11'100'000), "3 h 05 min");
}

TEST_F(Plot, ReportSaysWhatHappened) {
  const auto run = MetricsFile::read(write(step(1, 5) + step(2, 4) + "{\"event\":\"eval\",\"step\":2,\"loss\":4.5}\n" +
                                           kChange + step(3, 3, "0.5", 1) + kEnd));
  const std::string text = report_text(run);
  EXPECT_THAT(text, HasSubstr("5.0000 at step 1 -> 4.0000 (mean of the last 3 steps)"));
  EXPECT_THAT(text, HasSubstr("4.5000 at step 2"));
  EXPECT_THAT(text, HasSubstr("2 -> 1"));
  EXPECT_THAT(text, HasSubstr("rank 1 <killed> & gone"));
  EXPECT_THAT(text, HasSubstr("unplanned"));
  EXPECT_THAT(text, HasSubstr("50.0 % on average"));
  EXPECT_THAT(text, HasSubstr("straggler wait                 0.10    33.4"));
  EXPECT_THAT(text, HasSubstr("3,000, 10,000 per second"));
  EXPECT_THAT(text, Not(HasSubstr("has not ended")));
}

TEST_F(Plot, ReportForProgramsSaysTheSame) {
  const auto run = MetricsFile::read(write(step(1, 5, "null") + step(2, 4, "null") +
                                           "{\"event\":\"eval\",\"step\":2,\"loss\":null}\n" + kChange +
                                           step(3, 3, "null", 1) + kEnd));
  const auto json = nlohmann::json::parse(report_json(run));
  EXPECT_EQ(json["first_loss"], 5.0);
  EXPECT_EQ(json["last_loss"], 3.0);
  EXPECT_EQ(json["tokens"], 3000);
  EXPECT_TRUE(json["mean_mfu"].is_null());
  ASSERT_EQ(json["held_out"].size(), 1u);
  EXPECT_TRUE(json["held_out"][0]["loss"].is_null());
  ASSERT_EQ(json["world_changes"].size(), 1u);
  EXPECT_EQ(json["world_changes"][0]["reason"], "rank 1 <killed> & gone");
  EXPECT_EQ(json["world_changes"][0]["planned"], false);
  double percent = 0;
  for (const auto& share : json["accounts"]) percent += share["percent"].get<double>();
  EXPECT_NEAR(percent, 100, 1e-9);
}

TEST_F(Plot, UnknownMfuIsNotANumber) {
  const auto run = MetricsFile::read(write(step(1, 5, "null") + step(2, 4, "null")));
  EXPECT_THAT(report_text(run), HasSubstr("unavailable"));
  EXPECT_THAT(draw_run(run, "t"), HasSubstr("unavailable"));
}

TEST_F(Plot, PictureIsWellFormedWhateverTheRun) {
  const std::vector<std::string> runs = {step(1, 5),
                                         step(1, 5) + step(2, 5),
                                         step(1, 5) + kChange + step(2, 4, "null"),
                                         "{\"step\":1,\"loss\":null}\n" + step(2, 4),
                                         "{\"step\":1,\"loss\":null}\n",
                                         [] {
                                           std::string many;
                                           for (int i = 1; i <= 5000; ++i)
                                             many +=
                                                 step(i, 5.0 - i * 1e-4, "0.3", 1 + i % 4) + (i % 100 ? "" : kChange);
                                           return many;
                                         }()};
  for (const std::string& text : runs) {
    const std::string svg = draw_run(MetricsFile::read(write(text)), "a <title> & more");
    EXPECT_THAT(svg, AllOf(HasSubstr("a &lt;title&gt; &amp; more"), Not(HasSubstr("nan\"")), Not(HasSubstr("inf"))));
    EXPECT_EQ(svg.find("nan "), svg.npos);
    EXPECT_LT(svg.size(), 400'000u);
    EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
  }
}

TEST_F(Plot, WritesBesideTheMetricsOrWhereAsked) {
  const std::string path = write(step(1, 5) + step(2, 4));
  EXPECT_EQ(call(plot_main, {"bellows plot", path}), 0);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "run.svg"));
  EXPECT_EQ(call(plot_main, {"bellows plot", path, "-o", (dir_ / "pictures/").string()}), 0);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "pictures" / "run.svg"));
  EXPECT_EQ(call(plot_main, {"bellows plot", path, "-o", (dir_ / "loss.png").string(), "--title", "T"}), 0);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "loss.svg"));
  EXPECT_EQ(call(plot_main, {"bellows plot", path, "-o", (dir_ / "no" / "loss.svg").string()}), 2);
}

}  // namespace
}  // namespace bellows
