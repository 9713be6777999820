// Coordinator and agents as processes of their own, and starts without any of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "job_process.h"
#include "mpirun.h"

namespace bellows::testing_tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kTestRank = std::string(BELLOWS_BIN_DIR) + "/test_rank";

class AgentsTest : public testing::Test {
 protected:
  AgentsTest() : folder_(fresh_folder()), trace_(folder_ + "/trace") {}
  ~AgentsTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::unique_ptr<Process> coordinator(std::vector<std::string> flags) {
    std::vector<std::string> words = {"bellows", "coordinator", "--job", "j"};
    words.insert(words.end(), flags.begin(), flags.end());
    auto process = std::make_unique<Process>(words, variables());
    eventually([&] {
      return contents(folder_ + "/bellows/j.json").find("\"pid\": " + std::to_string(process->pid())) !=
             std::string::npos;
    });
    address_ = nlohmann::json::parse(contents(folder_ + "/bellows/j.json")).at("address");
    return process;
  }
  std::unique_ptr<Process> agent(const std::string& host, int slots, const std::vector<std::string>& flags = {}) {
    std::vector<std::string> words = {
        "bellows", "agent",   "--coordinator", address_, "--host",  host,    "--slots", std::to_string(slots),
        "--",      kTestRank, "--trace",       trace_,   "--steps", "100000"};
    words.insert(words.end(), flags.begin(), flags.end());
    return std::make_unique<Process>(words, variables());
  }
  std::map<std::string, std::string> variables() const {
    return {{"XDG_RUNTIME_DIR", folder_}, {"BELLOWS_TOKEN", "secret"}};
  }
  std::string trace() const { return contents(trace_); }
  nlohmann::json status() const {
    Process ctl({"bellows", "ctl", "status", "--json", "--coordinator", address_}, variables());
    return ctl.wait() == 0 ? nlohmann::json::parse(ctl.out()) : nlohmann::json::object();
  }
  bool settles_with(int ranks) const {
    return eventually([&] {
      const auto now = status();
      return now.value("world_size", 0) == ranks && now.value("settled", false);
    });
  }

  const std::string folder_, trace_;
  std::string address_;
};

TEST_F(AgentsTest, MembersComeAndGoWithTheirAgents) {
  const auto boss = coordinator({"-n", "4", "--min", "2", "--suspect-limit", "0.5"});
  const auto first = agent("north", 2);
  auto second = agent("south", 2);
  ASSERT_TRUE(settles_with(4)) << boss->err();
  for (const int pause : {200, 1500}) {
    second->signal(SIGKILL);
    second->wait();
    EXPECT_TRUE(settles_with(2)) << boss->err();
    pause_ms(pause);
    second = agent("south", 2);
    EXPECT_TRUE(settles_with(4)) << boss->err();
  }
  Process drain({"bellows", "ctl", "drain", "south", "--coordinator", address_}, variables());
  EXPECT_EQ(drain.wait(), 0) << drain.err();
  EXPECT_TRUE(settles_with(2)) << boss->err();
  EXPECT_EQ(status()["failures"], 4) << "draining is planned; " << boss->err();
  Process stop({"bellows", "ctl", "stop", "--coordinator", address_}, variables());
  EXPECT_EQ(stop.wait(), 0);
  EXPECT_EQ(boss->wait(), 0) << boss->err();
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(AgentsTest, AKilledCoordinatorIsReplacedAndTheRanksNeverStop) {
  auto boss = coordinator({"-n", "2", "--min", "1", "--max", "3"});
  const auto hands = agent("north", 3, {"--free"});
  ASSERT_TRUE(settles_with(2)) << boss->err();
  const std::string port = address_.substr(address_.rfind(':') + 1);
  boss->signal(SIGKILL);
  boss->wait();
  const int done = count(trace(), "has done step");
  EXPECT_TRUE(eventually([&] { return count(trace(), "has done step") >= done + 8; })) << "they train on alone";
  boss = coordinator({"-n", "1", "--min", "1", "--max", "3", "--port", port});
  ASSERT_TRUE(settles_with(2)) << boss->err();
  EXPECT_EQ(status()["generation"], 1) << "the very same world";
  Process scale({"bellows", "ctl", "scale", "3", "--coordinator", address_}, variables());
  EXPECT_EQ(scale.wait(), 0) << scale.err();
  EXPECT_EQ(count(trace(), "generation 1 rank"), 2);
  EXPECT_EQ(count(trace(), "generation 2 rank"), 3);
  Process stop({"bellows", "ctl", "stop", "--coordinator", address_}, variables());
  EXPECT_EQ(stop.wait(), 0);
  EXPECT_EQ(boss->wait(), 0) << boss->err();
  EXPECT_EQ(hands->wait(), 0) << hands->err();
}

TEST_F(AgentsTest, AnAgentWithTheWrongTokenSaysSo) {
  const auto boss = coordinator({"-n", "1"});
  auto wrong = variables();
  wrong["BELLOWS_TOKEN"] = "guess";
  Process hands({"bellows", "agent", "--coordinator", address_, "--", kTestRank}, wrong);
  EXPECT_EQ(hands.wait(), 2);
  EXPECT_THAT(hands.err(), HasSubstr("wrong token"));
}

TEST_F(AgentsTest, SigtermEndsAnAgentAndItsRanks) {
  const auto boss = coordinator({"-n", "1", "--min", "1", "--max", "2"});
  const auto hands = agent("north", 2);
  ASSERT_TRUE(settles_with(1)) << boss->err();
  hands->signal(SIGTERM);
  EXPECT_EQ(hands->wait(), 128 + SIGTERM);
  EXPECT_TRUE(hands->living_offspring().empty());
}

TEST_F(AgentsTest, PlainStartIsAWorldOfOne) {
  Process plain({"test_rank", "--steps", "3", "--trace", trace_});
  EXPECT_EQ(plain.wait(), 0) << plain.err();
  EXPECT_THAT(trace(), HasSubstr("generation 1 rank 0 of 1"));
}

TEST_F(AgentsTest, HalfSetVariablesNameTheMissingOne) {
  Process half({"test_rank"}, {{"BELLOWS_COORDINATOR", "127.0.0.1:1"}});
  EXPECT_EQ(half.wait(), 2);
  EXPECT_THAT(half.err(), HasSubstr("BELLOWS_TOKEN"));
}

TEST_F(AgentsTest, MpirunGivesTheSameWorld) {
  Process probe({"mpirun", "--version"});
  if (probe.wait() != 0) GTEST_SKIP() << "no mpirun on this host";
  Process run({"mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", "3",
               kTestRank, "--steps", "3", "--trace", trace_},
              {{"UCX_TLS", "tcp"}, {"ASAN_OPTIONS", kAsanOptionsUnderMpirun}});
  if (run.wait() == 2 && run.err().find("cannot find each other") != std::string::npos)
    GTEST_SKIP() << "this build has no MPI plugin: " << run.err();
  EXPECT_EQ(run.wait(), 0) << run.err();
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(trace(), HasSubstr("generation 1 rank " + std::to_string(rank) + " of 3"));
}

}  // namespace
}  // namespace bellows::testing_tools
