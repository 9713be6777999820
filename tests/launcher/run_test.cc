// `bellows run` with real processes: exit codes, signals, growing, shrinking, and nothing left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "job_process.h"

namespace bellows::testing_tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const std::string kTestRank = std::string(BELLOWS_BIN_DIR) + "/test_rank";

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Every test has job files and traces of its own.
class RunTest : public testing::Test {
 protected:
  RunTest() : folder_(fresh_folder()), trace_(folder_ + "/trace") {}
  ~RunTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::map<std::string, std::string> environment() const { return {{"XDG_RUNTIME_DIR", folder_}}; }
  std::vector<std::string> rank(const std::vector<std::string>& flags = {}) const {
    return std::vector<std::string>{"--", kTestRank, "--trace", trace_} + flags;
  }
  std::string trace() const { return contents(trace_); }
  bool traced(const std::string& part, int times = 1) const {
    return eventually([&] { return count(trace(), part) >= times; });
  }
  /// Waits until the job file is there; the job's name.
  std::string job_name() const {
    std::string name;
    eventually([&] {
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(folder_ + "/bellows", ignored)) {
        if (entry.path().extension() == ".json") name = entry.path().stem();
      }
      return !name.empty();
    });
    return name;
  }
  nlohmann::json status() const {
    Process ctl({"bellows", "ctl", "status", "--json"}, environment());
    return ctl.wait() == 0 ? nlohmann::json::parse(ctl.out()) : nlohmann::json();
  }
  int ctl(const std::vector<std::string>& words, std::string* said = nullptr) const {
    Process process(std::vector<std::string>{"bellows", "ctl"} + words, environment());
    const int code = process.wait();
    if (said) *said = process.out() + process.err();
    return code;
  }
  static bool all_gone(const Process& process) {
    return eventually([&] { return process.living_offspring().empty(); }, 10);
  }

  const std::string folder_, trace_;
};

TEST_F(RunTest, RunsToTheEndAndForwardsRankZeroOnly) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3"} + rank({"--steps", "5", "--say", "hello person"}),
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(run.out(), "hello person\n");
  EXPECT_EQ(count(trace(), "finished at step 5"), 3);
  EXPECT_THAT(run.err(), HasSubstr("training finished"));
  EXPECT_TRUE(all_gone(run));
  EXPECT_TRUE(fs::is_empty(folder_ + "/bellows")) << "the job's file is removed";
}

TEST_F(RunTest, ARanksExitCodePassesThroughWithItsLastLines) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3"} + rank({"--steps", "1000", "--at", "3:1:exit=7"}),
              environment());
  EXPECT_EQ(run.wait(), 7);
  EXPECT_THAT(run.err(), HasSubstr("rank 1"));
  EXPECT_THAT(run.err(), HasSubstr("exited with code 7"));
  EXPECT_THAT(run.err(), HasSubstr("| about to exit=7"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AKilledRankGives128PlusTheSignal) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3"} + rank({"--steps", "1000", "--at", "3:2:kill"}),
              environment());
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.err(), HasSubstr("rank 2"));
  EXPECT_THAT(run.err(), HasSubstr("signal 9"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AnExceptionEndsTheJobAndIsShown) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2"} + rank({"--steps", "1000", "--at", "3:1:throw"}),
              environment());
  EXPECT_EQ(run.wait(), 1);
  EXPECT_THAT(run.err(), HasSubstr("thrown on purpose"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, WhatAPersonMustMendIsNotTriedAgain) {
  // Elastic, so a crash would be repaired: but more ranks than lanes is nobody's crash.
  Process run(std::vector<std::string>{"bellows", "run", "-n", "4", "--min", "1"} + rank({"--lanes", "3"}),
              environment());
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.err(), HasSubstr("more ranks than lanes: 4 ranks"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AProgramThatIsNotThereIsNamed) {
  Process run({"bellows", "run", "-n", "2", "--min", "1", "--", "/no/such/program"}, environment());
  EXPECT_EQ(run.wait(), 127);
  EXPECT_THAT(run.err(), HasSubstr("cannot start /no/such/program: No such file"));
}

TEST_F(RunTest, AnotherPrograms_ExitCodeIsItsOwn) {
  Process good({"bellows", "run", "-n", "2", "--", "/bin/sh", "-c", "echo $BELLOWS_MEMBER"}, environment());
  EXPECT_EQ(good.wait(), 0) << good.err();
  Process bad({"bellows", "run", "-n", "2", "--", "/bin/sh", "-c", "exit 9"}, environment());
  EXPECT_EQ(bad.wait(), 9);
}

// ---- nothing is left behind

TEST_F(RunTest, KillingTheLauncherEndsEverything) {
  Process bystander({"sleep", "60"});
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3"} + rank({"--steps", "100000", "--helper"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 3)) << run.err();
  EXPECT_GE(run.living_offspring().size(), 7u) << "the other half, three ranks, three helpers";
  run.signal(SIGKILL);
  EXPECT_TRUE(all_gone(run));
  EXPECT_EQ(::kill(bystander.pid(), 0), 0) << "foreign processes are untouched";
}

TEST_F(RunTest, KillingTheLaunchersOtherHalfEndsEverything) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2"} + rank({"--steps", "100000", "--helper"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 2)) << run.err();
  // The half that the job's file names holds coordinator and agent.
  const std::string file = folder_ + "/bellows/" + job_name() + ".json";
  const pid_t half = nlohmann::json::parse(contents(file)).at("pid");
  ASSERT_NE(half, run.pid());
  ::kill(half, SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, HelpersOfAFinishedRankAreEndedToo) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2"} + rank({"--steps", "3", "--helper"}),
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, OneInterruptStopsInOrder) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3"} + rank({"--steps", "100000"}), environment());
  ASSERT_TRUE(traced("generation 1", 3)) << run.err();
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(count(trace(), "stopping at step"), 3) << "every rank stops at a commit";
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, TwoInterruptsEndAHangingJobAtOnce) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2"} +
                  rank({"--steps", "100000", "--helper", "--at", "2:1:hang"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 2)) << run.err();
  ASSERT_TRUE(eventually([&] { return fs::exists(trace_ + ".fault"); }));
  run.signal(SIGINT);
  pause_ms(300);
  EXPECT_EQ(run.wait(0), -1) << "the first one asks and waits";
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT);
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AnInterruptBeforeTheFirstStepEndsTheJob) {
  Process run({"bellows", "run", "-n", "2", "--", "sleep", "600"}, environment());
  ASSERT_TRUE(eventually([&] { return run.living_offspring().size() >= 3; }));
  pause_ms(200);
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(20), 128 + SIGINT) << run.err();
  EXPECT_TRUE(all_gone(run));
}

// ---- a world that breathes

TEST_F(RunTest, GrowsAndShrinksOnDemand) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2", "--min", "1", "--max", "4", "--policy", "manual",
                                       "--events", folder_ + "/events"} +
                  rank({"--steps", "100000"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 2)) << run.err();
  std::string said;
  EXPECT_EQ(ctl({"scale", "4"}, &said), 0) << said;
  EXPECT_EQ(status()["world_size"], 4);
  EXPECT_EQ(ctl({"scale", "1"}, &said), 0) << said;
  EXPECT_EQ(status()["world_size"], 1);
  EXPECT_TRUE(traced("released in generation", 3));
  EXPECT_EQ(ctl({"scale", "5"}, &said), 2);
  EXPECT_THAT(said, HasSubstr("--max 4"));
  EXPECT_EQ(ctl({"scale", "many"}, &said), 2);
  EXPECT_THAT(said, HasSubstr("'many'"));
  EXPECT_EQ(ctl({"status"}, &said), 0);
  EXPECT_THAT(said, HasSubstr("1 of 1 wanted (min 1, max 4)"));
  EXPECT_EQ(ctl({"events"}, &said), 0);
  EXPECT_THAT(said, HasSubstr("2 -> 4 ranks"));
  EXPECT_EQ(ctl({"stop"}, &said), 0);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(status(), nlohmann::json());
  int worlds = 0;
  std::ifstream events(folder_ + "/events");
  for (std::string line; std::getline(events, line);) worlds += nlohmann::json::parse(line).at("event") == "world";
  EXPECT_EQ(worlds, 2);
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AKilledRankIsReplacedAndTheStepsGoOn) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3", "--min", "1"} +
                  rank({"--steps", "150", "--at", "20:1:kill"}),
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_TRUE(traced("generation 2 rank 1 of 2"));
  EXPECT_TRUE(traced("generation 3 rank 2 of 3"));
  EXPECT_EQ(count(trace(), "finished at step 150"), 3);
  EXPECT_THAT(run.err(), HasSubstr("killed by signal 9"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, AStoppedRankIsLostWithinTheHeartbeatLimitAndEnded) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "3", "--min", "1", "--heartbeat-limit", "1"} +
                  rank({"--steps", "40", "--at", "20:1:stop"}),
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_THAT(run.err(), HasSubstr("was not heard of"));
  EXPECT_TRUE(all_gone(run)) << "the stopped process as well";
}

TEST_F(RunTest, AnExhaustedBudgetIsAClearExit) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2", "--min", "1", "--failure-budget", "1"} +
                  rank({"--steps", "100000"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 2)) << run.err();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(eventually([&] { return status()["world_size"] == 2 && status()["settled"] == true; })) << run.err();
    const auto now = status();
    for (const auto& member : now["members"]) {
      if (member["rank"] == 1) ::kill(member["pid"], SIGKILL);
    }
    ASSERT_TRUE(round == 1 || eventually([&] { return status()["generation"] > now["generation"]; }));
  }
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  EXPECT_THAT(run.err(), HasSubstr("failure budget of 1 is exhausted"));
  EXPECT_TRUE(all_gone(run));
}

TEST_F(RunTest, ThePolicyReleasesRanksAndSaysWhy) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "4", "--min", "2", "--policy", "mfu-threshold",
                                       "--mfu-threshold", "0.5", "--windows", "3"} +
                  rank({"--steps", "100", "--mfu", "0.1"}),
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_THAT(run.err(), HasSubstr("decision: 4 -> 3 ranks: MFU 0.100, 0.100, 0.100 in 3 windows, below 0.500"));
  EXPECT_THAT(run.err(), HasSubstr("decision: 3 -> 2 ranks"));
  EXPECT_THAT(run.err(), Not(HasSubstr("2 -> 1")));
}

// ---- ports and names

TEST_F(RunTest, TwoJobsAtOnceFindTheirWayAndAnOperatorMustChoose) {
  const auto command =
      std::vector<std::string>{"bellows", "run", "-n", "2", "--min", "1", "--max", "3"} + rank({"--steps", "100000"});
  Process first(command, environment()), second(command, environment());
  ASSERT_TRUE(traced("generation 1", 4)) << first.err() << second.err();
  std::string said;
  EXPECT_EQ(ctl({"status"}, &said), 2);
  EXPECT_EQ(count(said, "--job test_rank-"), 2) << said;
  const std::string one = job_name();
  EXPECT_EQ(ctl({"scale", "3", "--job", one}, &said), 0) << said;
  EXPECT_EQ(ctl({"stop", "--job", one}, &said), 0) << said;
  ASSERT_TRUE(eventually([&] { return ctl({"status"}) == 0; })) << "one is left, nothing to choose";
  EXPECT_EQ(ctl({"stop"}), 0);
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
}

TEST_F(RunTest, FilesOfDeadJobsAreIgnoredAndRemoved) {
  fs::create_directory(folder_ + "/bellows");
  fs::permissions(folder_ + "/bellows", fs::perms::owner_all);
  const std::string dead = folder_ + "/bellows/dead.json", torn = folder_ + "/bellows/torn.json";
  std::ofstream(dead) << R"({"job":"dead","address":"127.0.0.1:1","token":"x","pid":1,"born":7,"command":"c"})";
  std::ofstream(torn) << R"({"job":"to)";
  Process run(std::vector<std::string>{"bellows", "run", "-n", "1"} + rank({"--steps", "100000"}), environment());
  ASSERT_TRUE(traced("generation 1")) << run.err();
  EXPECT_EQ(ctl({"status"}), 0);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(torn));
  EXPECT_EQ(ctl({"stop"}), 0);
  EXPECT_EQ(run.wait(), 0);
}

TEST_F(RunTest, TheJobFileIsForItsOwnerOnly) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "1"} + rank({"--steps", "100000"}), environment());
  ASSERT_TRUE(traced("generation 1")) << run.err();
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/bellows/" + job_name() + ".json").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(ctl({"stop"}), 0);
  EXPECT_EQ(run.wait(), 0);
}

TEST_F(RunTest, AMissingRuntimeDirectoryIsNoObstacle) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "1"} + rank({"--steps", "3"}),
              {{"XDG_RUNTIME_DIR", folder_ + "/not/there"}});
  EXPECT_EQ(run.wait(), 0) << run.err();
}

TEST_F(RunTest, ABusyPortIsNamed) {
  Process first(std::vector<std::string>{"bellows", "run", "-n", "1"} + rank({"--steps", "100000"}), environment());
  ASSERT_TRUE(traced("generation 1")) << first.err();
  const std::string address =
      nlohmann::json::parse(contents(folder_ + "/bellows/" + job_name() + ".json")).at("address");
  const std::string port = address.substr(address.rfind(':') + 1);
  Process second(std::vector<std::string>{"bellows", "run", "-n", "1", "--port", port} + rank(), environment());
  EXPECT_EQ(second.wait(), 2);
  EXPECT_THAT(second.err(), HasSubstr(port));
  EXPECT_EQ(ctl({"stop"}), 0);
  EXPECT_EQ(first.wait(), 0);
}

TEST_F(RunTest, OperatorsWithoutTheTokenCanDoNothing) {
  Process run(std::vector<std::string>{"bellows", "run", "-n", "2", "--min", "1"} + rank({"--steps", "100000"}),
              environment());
  ASSERT_TRUE(traced("generation 1", 2)) << run.err();
  const std::string address =
      nlohmann::json::parse(contents(folder_ + "/bellows/" + job_name() + ".json")).at("address");
  std::string said;
  EXPECT_EQ(ctl({"stop", "--coordinator", address, "--token", "guess"}, &said), 2);
  EXPECT_THAT(said, HasSubstr("wrong token"));
  EXPECT_EQ(ctl({"stop", "--coordinator", address}, &said), 2);
  EXPECT_THAT(said, HasSubstr("--token"));
  EXPECT_EQ(status()["stopping"], false);
  EXPECT_THAT(run.err(), HasSubstr("refused Stop"));
  EXPECT_EQ(ctl({"stop"}), 0);
  EXPECT_EQ(run.wait(), 0);
}

// ---- settings

TEST_F(RunTest, UnknownFlagsNameTheNearest) {
  Process run({"bellows", "run", "-n", "2", "--mfu-treshold", "0.3", "--", "true"}, environment());
  EXPECT_EQ(run.wait(), 2);
  EXPECT_THAT(run.err(), HasSubstr("--mfu-threshold"));
  Process command({"bellows", "rum"}, environment());
  EXPECT_EQ(command.wait(), 2);
  EXPECT_THAT(command.err(), HasSubstr("did you mean run?"));
}

TEST_F(RunTest, SizesThatCannotBeAreRefused) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"-n", "4", "--max", "3", "--min", "4"},
                                                {"-n", "1", "--min", "2"},
                                                {"-n", "0"},
                                                {"-n", "2", "--mfu-threshold", "1.5"},
                                                {"-n", "2", "--max", "4", "--ladder", "8"}}) {
    Process run(std::vector<std::string>{"bellows", "run"} + flags + std::vector<std::string>{"--", "true"},
                environment());
    EXPECT_EQ(run.wait(), 2) << testing::PrintToString(flags);
  }
}

TEST_F(RunTest, SettingsReachTheRanksByFileEnvironmentAndSet) {
  std::ofstream(folder_ + "/job.toml") << "mfu-threshold = 0.25\nlanes = 8\nseed = 5\nsteps = 9\n";
  auto variables = environment();
  variables["BELLOWS_SEED"] = "6";
  variables["BELLOWS_MFU_THRESHOLD"] = "0.3";
  Process run(
      {"bellows", "run", "-n", "1", "--window", "2.5", "--config", folder_ + "/job.toml", "--set", "steps=10", "--",
       "/bin/sh", "-c",
       "echo $BELLOWS_LANES $BELLOWS_SEED $BELLOWS_STEPS $BELLOWS_WINDOW [$BELLOWS_MFU_THRESHOLD] [$BELLOWS_CONFIG]"},
      variables);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(run.out(), "8 6 10 2.5 [] []\n")
      << "the environment beats the file, --set beats both, and what is the launcher's stays there";
}

TEST_F(RunTest, OutputOfEveryRankIsKeptAndCapped) {
  Process run({"bellows", "run", "-n", "2", "--log-dir", folder_ + "/logs", "--log-limit", "0.01", "--", "/bin/sh",
               "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i of rank $BELLOWS_MEMBER; i=$((i+1)); done"},
              environment());
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(count(run.out(), "line 2999 of"), 1) << "the front process is forwarded whole";
  for (const std::string member : {"m1", "m2"}) {
    const std::string log = contents(folder_ + "/logs/" + member + ".log");
    EXPECT_THAT(log, HasSubstr("line 10 of rank " + member));
    EXPECT_THAT(log, HasSubstr("limit"));
    EXPECT_LT(log.size(), 12'000u);
  }
}

}  // namespace
}  // namespace bellows::testing_tools
