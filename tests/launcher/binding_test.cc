// Ranks as real processes on the processors that `bellows run` gives them, within those that it has itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bellows/comm/topology.h"
#include "job_process.h"

namespace bellows::testing_tools {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class BindingTest : public testing::Test {
 protected:
  BindingTest() : folder_(fresh_folder()) {}
  ~BindingTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  /// `bellows run` under the words before it; each rank notes its processors before it becomes a training program.
  std::vector<std::string> run(const std::vector<std::string>& before, const std::vector<std::string>& flags,
                               const std::string& rank_flags = "") const {
    std::vector<std::string> words = before;
    words.insert(words.end(), {std::string(BELLOWS_BIN_DIR) + "/bellows", "run"});
    words.insert(words.end(), flags.begin(), flags.end());
    const std::string script = "echo $$ $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) >> " +
                               folder_ + "/processors; exec " + BELLOWS_BIN_DIR + "/test_rank --steps 5 --trace " +
                               folder_ + "/trace " + rank_flags;
    words.insert(words.end(), {"--", "sh", "-c", script});
    return words;
  }
  std::map<std::string, std::string> environment() const { return {{"XDG_RUNTIME_DIR", folder_}}; }
  struct Note {
    std::string pid, processors;
  };
  /// What the ranks noted, in no order but that of starting.
  std::vector<Note> notes() const {
    std::istringstream in(contents(folder_ + "/processors"));
    std::vector<Note> notes;
    for (Note note; in >> note.pid >> note.processors;) notes.push_back(note);
    return notes;
  }
  std::vector<std::string> processors() const {
    std::vector<std::string> lists;
    for (const Note& note : notes()) lists.push_back(note.processors);
    return lists;
  }
  /// A recorded host whose processors this machine does not have.
  std::string foreign_host() const {
    Topology topology;
    topology.hosts = {HostTopology{"far", "far", "far/pid"}};
    topology.hosts[0].numa_nodes = {{0, 0, 1 << 30, {{60000}, {60001}}}};
    const std::string file = folder_ + "/far.json";
    std::ofstream(file) << to_json(topology);
    return file;
  }

  const std::string folder_;
};

TEST_F(BindingTest, EachRankHasItsCoresFromTheStart) {
  const CpuSet allowed = allowed_processors();
  const BindPlan plan = bind_plan(this_host(), 2, allowed, BindMode::kCore);
  if (!plan.note.empty()) GTEST_SKIP() << "two cores are needed: " << plan.note;
  Process job(run({}, {"-n", "2", "--bind-to", "core", "--bind-strict"}), environment());
  ASSERT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(processors(), testing::UnorderedElementsAre(cpu_list(plan.slots[0]), cpu_list(plan.slots[1])));
  EXPECT_TRUE(intersect(plan.slots[0], plan.slots[1]).empty());
}

TEST_F(BindingTest, AReplacementGetsTheCoresOfTheLostRank) {
  const BindPlan plan = bind_plan(this_host(), 2, allowed_processors(), BindMode::kCore);
  if (!plan.note.empty()) GTEST_SKIP() << "two cores are needed: " << plan.note;
  Process job(run({}, {"-n", "2", "--failure-budget", "2", "--bind-to", "core"}, "--at 3:1:kill"), environment());
  ASSERT_EQ(job.wait(), 0) << job.err();
  const auto all = notes();
  ASSERT_EQ(all.size(), 3u);
  // "m2 generation 1 rank 1 of 2 step 0 pid 1234": the one that is killed
  const std::string trace = contents(folder_ + "/trace"), mark = "generation 1 rank 1 of 2 step 0 pid ";
  const std::size_t at = trace.find(mark);
  ASSERT_NE(at, std::string::npos) << trace;
  const std::string lost = trace.substr(at + mark.size(), trace.find('\n', at) - at - mark.size());
  const std::size_t dead = all[0].pid == lost ? 0 : 1;
  ASSERT_EQ(all[dead].pid, lost);
  EXPECT_NE(all[0].processors, all[1].processors);
  EXPECT_EQ(all[2].processors, all[dead].processors);
}

TEST_F(BindingTest, WithoutAskingRanksOfASmallHostAreNotBound) {
  Process job(run({}, {"-n", "1"}), environment());
  ASSERT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(processors(), testing::ElementsAre(cpu_list(allowed_processors())));
}

TEST_F(BindingTest, MoreRanksThanCoresShareWhatIsAllowed) {
  const std::string one = std::to_string(allowed_processors().front());
  Process job(run({"taskset", "-c", one}, {"-n", "3", "--bind-to", "core"}), environment());
  ASSERT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(processors(), testing::ElementsAre(one, one, one));
  EXPECT_THAT(job.err(), HasSubstr("3 ranks on 1 core"));
}

TEST_F(BindingTest, StrictMakesItFatal) {
  const std::string one = std::to_string(allowed_processors().front());
  Process job(run({"taskset", "-c", one}, {"-n", "3", "--bind-to", "core", "--bind-strict"}), environment());
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("--bind-strict: 3 ranks on 1 core"));
  EXPECT_TRUE(processors().empty()) << "no rank was started";
}

TEST_F(BindingTest, WhereNothingIsLeftRanksRunUnbound) {
  Process job(run({}, {"-n", "2", "--bind-to", "numa", "--topology", foreign_host()}), environment());
  ASSERT_EQ(job.wait(), 0) << job.err();
  const std::string all = cpu_list(allowed_processors());
  EXPECT_THAT(processors(), testing::ElementsAre(all, all));
  EXPECT_THAT(job.err(), HasSubstr("warning: ranks are not bound: of the processors 60000-60001 of far"));
  Process strict(run({}, {"-n", "2", "--bind-to", "numa", "--bind-strict", "--topology", foreign_host()}),
                 environment());
  EXPECT_EQ(strict.wait(), 2);
}

TEST_F(BindingTest, ShowTopologyStartsNothing) {
  const std::string file = std::string(BELLOWS_SOURCE_DIR) + "/tests/comm/topologies/dgx_h100.json";
  Process job(run({}, {"-n", "8", "--bind-to", "core", "--show-topology", "--topology", file}), environment());
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("NUMA node 1"));
  EXPECT_THAT(job.out(), HasSubstr("rank 7    dgx   slot 7  processors 98-111,210-223  GPU 7  mlx5_11\n"));
  EXPECT_TRUE(processors().empty());
  EXPECT_FALSE(fs::exists(folder_ + "/bellows"));
  Process here({"bellows", "run", "-n", "2", "--show-topology"}, environment());
  EXPECT_EQ(here.wait(), 0) << "no program is needed: " << here.err();
  EXPECT_THAT(here.out(), HasSubstr(this_host().name));
}

TEST_F(BindingTest, WhatDoesNotFitOrCannotBeReadIsSaid) {
  Process few({"bellows", "run", "-n", "4", "--max", "4", "--slots", "2", "--show-topology"}, environment());
  EXPECT_EQ(few.wait(), 2);
  EXPECT_THAT(few.err(), HasSubstr("4 ranks do not fit on 1 host of 2 slots"));
  const std::string file = folder_ + "/bad.json";
  std::ofstream(file) << "{\"format\": \"bellows-topology\", \"version\": 1, \"hosts\": [{}]}";
  Process bad(run({}, {"-n", "1", "--topology", file}), environment());
  EXPECT_EQ(bad.wait(), 2);
  EXPECT_THAT(bad.err(), HasSubstr(file + ": hosts[0]: 'name' is missing"));
}

}  // namespace
}  // namespace bellows::testing_tools
