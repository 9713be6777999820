#include "bellows/elastic/policy.h"

#include <gtest/gtest.h>

#include <limits>

namespace bellows {
namespace {

PolicyConfig config(const std::string& name, int min_ranks, int max_ranks, double threshold = 0.40) {
  PolicyConfig c;
  c.name = name;
  c.min_ranks = min_ranks;
  c.max_ranks = max_ranks;
  c.threshold = threshold;
  return c;
}

MfuWindow window(std::optional<double> mfu, int world_size, std::uint64_t generation = 1, bool valid = true) {
  MfuWindow w;
  w.mfu = mfu;
  w.world_size = world_size;
  w.generation = generation;
  w.valid = valid;
  if (!valid) w.why_invalid = "holds a change of the world";
  return w;
}

/// A job whose MFU is a function of its size and of time: applies every decision, as the coordinator does.
class Job {
 public:
  Job(PolicyConfig policy, int size) : policy_(std::move(policy)) { state_.world_size = size; }

  Decision feed(std::optional<double> mfu, bool valid = true) {
    clock_.advance(300);
    state_.windows.push_back(window(mfu, state_.world_size, generation_, valid));
    const Decision decision = decide(state_, clock_.now(), policy_);
    if (decision.target) {
      EXPECT_NE(*decision.target, state_.world_size) << decision.reason;
      state_.world_size = *decision.target;
      state_.windows.clear();
      ++generation_;
      ++actions_;
    }
    return decision;
  }
  int size() const { return state_.world_size; }
  int actions() const { return actions_; }

 private:
  PolicyConfig policy_;
  PolicyState state_;
  ManualClock clock_;
  std::uint64_t generation_ = 1;
  int actions_ = 0;
};

TEST(MfuThreshold, NoisySignalAroundTheThresholdDoesNothing) {
  Job job(config("mfu-threshold", 1, 16), 8);
  for (int i = 0; i < 50; ++i) job.feed(i % 2 ? 0.41 : 0.39);
  EXPECT_EQ(job.actions(), 0);
  EXPECT_EQ(job.size(), 8);
}

TEST(MfuThreshold, ThreeLowWindowsReleaseExactlyOnce) {
  Job job(config("mfu-threshold", 1, 16), 10);
  EXPECT_FALSE(job.feed(0.2).target);
  EXPECT_FALSE(job.feed(0.2).target);
  const Decision third = job.feed(0.2);
  ASSERT_TRUE(third.target);
  EXPECT_EQ(*third.target, 8);  // a fifth of ten
  EXPECT_NE(third.reason.find("below 0.400"), std::string::npos) << third.reason;
  EXPECT_EQ(job.actions(), 1);
}

TEST(MfuThreshold, EveryChangeIsFollowedByOneBlankWindowAndAFreshCount) {
  Job job(config("mfu-threshold", 1, 16), 10);
  for (int i = 0; i < 3; ++i) job.feed(0.2);
  ASSERT_EQ(job.size(), 8);
  const Decision blank = job.feed(0.2);
  EXPECT_FALSE(blank.counted);
  EXPECT_NE(blank.reason.find("blank"), std::string::npos) << blank.reason;
  job.feed(0.2);
  job.feed(0.2);
  EXPECT_EQ(job.actions(), 1);
  job.feed(0.2);
  EXPECT_EQ(job.actions(), 2);
  EXPECT_EQ(job.size(), 7);
}

TEST(MfuThreshold, NeverGoesBeyondTheAllowedSizes) {
  Job low(config("mfu-threshold", 3, 5), 4);
  for (int i = 0; i < 100; ++i) low.feed(0.1);
  EXPECT_EQ(low.size(), 3);
  EXPECT_EQ(low.actions(), 1);
  Job high(config("mfu-threshold", 3, 5), 4);
  for (int i = 0; i < 100; ++i) high.feed(0.9);
  EXPECT_EQ(high.size(), 5);
  EXPECT_EQ(high.actions(), 1);
}

TEST(MfuThreshold, InvalidWindowsNeitherCountNorReset) {
  Job job(config("mfu-threshold", 1, 16), 10);
  job.feed(0.2);
  job.feed(0.9, false);
  job.feed(0.2);
  const Decision invalid = job.feed(0.2, false);
  EXPECT_FALSE(invalid.target);
  EXPECT_FALSE(invalid.counted);
  EXPECT_NE(invalid.reason.find("holds a change"), std::string::npos);
  EXPECT_TRUE(job.feed(0.2).target);
}

TEST(MfuThreshold, OneWindowOnTheOtherSideResets) {
  Job job(config("mfu-threshold", 1, 16), 10);
  for (const double mfu : {0.2, 0.2, 0.5, 0.2, 0.2}) EXPECT_FALSE(job.feed(mfu).target);
  EXPECT_TRUE(job.feed(0.2).target);
}

TEST(MfuThreshold, AFullWindowAtTheThresholdCountsAsHigh) {
  Job job(config("mfu-threshold", 1, 16), 10);
  for (int i = 0; i < 3; ++i) job.feed(0.40);
  EXPECT_EQ(job.size(), 12);
}

TEST(MfuThreshold, SmallWorldsStillMoveByOneRank) {
  Job job(config("mfu-threshold", 1, 4), 3);
  for (int i = 0; i < 3; ++i) job.feed(0.1);
  EXPECT_EQ(job.size(), 2);
}

TEST(MfuThreshold, LiteralFormDecidesEveryWindowAndMayReleaseNobody) {
  PolicyConfig literal = config("mfu-threshold", 1, 16);
  literal.literal = true;
  Job large(literal, 10);
  EXPECT_TRUE(large.feed(0.1).target);
  EXPECT_EQ(large.size(), 8);
  Job small(literal, 4);
  for (int i = 0; i < 10; ++i) small.feed(0.1);
  EXPECT_EQ(small.size(), 4);  // floor(0.2 * 4) = 0
}

struct BadMfu {
  const char* name;
  std::optional<double> mfu;
  const char* expected;
};
class BadMfuTest : public testing::TestWithParam<std::tuple<BadMfu, const char*>> {};
TEST_P(BadMfuTest, NeverDrivesScalingAndIsWarnedOf) {
  const auto& [bad, policy] = GetParam();
  Job job(config(policy, 1, 16), 8);
  for (int i = 0; i < 10; ++i) {
    const Decision d = job.feed(bad.mfu);
    EXPECT_FALSE(d.target);
    EXPECT_FALSE(d.counted);
    EXPECT_NE(d.reason.find("warning"), std::string::npos) << d.reason;
    EXPECT_NE(d.reason.find(bad.expected), std::string::npos) << d.reason;
  }
  // It does not reset either: two good low windows around one bad one still need a third.
  job.feed(0.1);
  job.feed(bad.mfu);
  job.feed(0.1);
  EXPECT_TRUE(job.feed(0.1).target);
}
INSTANTIATE_TEST_SUITE_P(
    Policies, BadMfuTest,
    testing::Combine(testing::Values(BadMfu{"unavailable", std::nullopt, "unavailable"},
                                     BadMfu{"above", 1.2, "outside"}, BadMfu{"below", -0.1, "outside"},
                                     BadMfu{"nan", std::numeric_limits<double>::quiet_NaN(), "outside"}),
                     testing::Values("mfu-threshold", "mfu-guard")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) +
             (std::string(std::get<1>(info.param)) == "mfu-guard" ? "_guard" : "_threshold");
    });

TEST(CauseGates, DataWaitHoldsAChangeBackAndRaisesAFinding) {
  const PolicyConfig policy = config("mfu-threshold", 1, 16);
  PolicyState state{8, {}};
  for (int i = 0; i < 3; ++i) {
    MfuWindow w = window(0.1, 8);
    w.data_wait_over_compute = 0.5;
    state.windows.push_back(w);
  }
  const Decision d = decide(state, 0, policy);
  EXPECT_FALSE(d.target);
  EXPECT_NE(d.finding.find("data"), std::string::npos);
  for (MfuWindow& w : state.windows) w.data_wait_over_compute = 0.30;  // at the limit is not above it
  EXPECT_TRUE(decide(state, 0, policy).target);
}

TEST(CauseGates, AStragglerIsNamedWithItsPhase) {
  const PolicyConfig policy = config("mfu-guard", 1, 8);
  PolicyState state{8, {}};
  for (int i = 0; i < 3; ++i) {
    MfuWindow w = window(0.1, 8);
    w.straggler_share = 0.2;
    w.slowest_rank = 2;
    w.slowest_phase = "data";
    state.windows.push_back(w);
  }
  const Decision d = decide(state, 0, policy);
  EXPECT_FALSE(d.target);
  EXPECT_NE(d.finding.find("rank 2"), std::string::npos) << d.finding;
  EXPECT_NE(d.finding.find("in data"), std::string::npos) << d.finding;
}

TEST(CauseGates, OneDisturbedWindowAmongThreeDoesNotGate) {
  PolicyState state{8, {window(0.1, 8), window(0.1, 8), window(0.1, 8)}};
  state.windows[1].straggler_share = 0.9;
  EXPECT_TRUE(decide(state, 0, config("mfu-threshold", 1, 16)).target);
}

TEST(MfuGuard, LadderIsPowersOfTwoBetweenTheLimits) {
  EXPECT_EQ(guard_ladder(config("mfu-guard", 1, 4)), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(guard_ladder(config("mfu-guard", 3, 12)), (std::vector<int>{3, 4, 8, 12}));
  PolicyConfig given = config("mfu-guard", 2, 6);
  given.ladder = {6, 1, 3, 3, 9};
  EXPECT_EQ(guard_ladder(given), (std::vector<int>{3, 6}));
}

TEST(MfuGuard, ShrinksOnlyBelowAndGrowsOnlyIfTheWorstCasePasses) {
  Job job(config("mfu-guard", 1, 8, 0.30), 4);
  for (int i = 0; i < 10; ++i) job.feed(0.45);  // 0.45 * 4 / 8 = 0.225: growing might fall below
  EXPECT_EQ(job.size(), 4);
  for (int i = 0; i < 3; ++i) job.feed(0.60);  // 0.60 * 4 / 8 = 0.30: at the threshold passes
  EXPECT_EQ(job.size(), 8);
  for (int i = 0; i < 4; ++i) job.feed(0.29);
  EXPECT_EQ(job.size(), 4);
}

TEST(MfuGuard, NeverReversesWhereThroughputDoesNotFall) {
  // Throughput over size in arbitrary units, non-decreasing: saturating at every possible size and height.
  for (int knee = 1; knee <= 16; ++knee) {
    for (int start = 1; start <= 16; ++start) {
      for (double height = 0.05; height < 1.0; height += 0.05) {
        Job job(config("mfu-guard", 1, 16, 0.30), start);
        int direction = 0;
        for (int i = 0; i < 60; ++i) {
          const int before = job.size();
          job.feed(height * std::min(before, knee) / before);
          const int moved = job.size() - before;
          if (moved == 0) continue;
          EXPECT_GE(direction * moved, 0) << "knee " << knee << " start " << start << " height " << height;
          direction = moved > 0 ? 1 : -1;
        }
      }
    }
  }
}

TEST(MfuGuard, ASizeOffTheLadderMovesToTheNextRung) {
  Job down(config("mfu-guard", 1, 8), 3);
  for (int i = 0; i < 3; ++i) down.feed(0.1);
  EXPECT_EQ(down.size(), 2);
  Job up(config("mfu-guard", 1, 8), 3);
  for (int i = 0; i < 3; ++i) up.feed(0.9);
  EXPECT_EQ(up.size(), 4);
}

TEST(Manual, NeverActs) {
  Job job(config("manual", 1, 8), 4);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(job.feed(i < 5 ? 0.01 : 0.99).target);
}

TEST(Decide, WithoutWindowsKeepsAndSaysSo) {
  const Decision d = decide({4, {}}, 0, config("mfu-threshold", 1, 8));
  EXPECT_FALSE(d.target);
  EXPECT_FALSE(d.reason.empty());
}

}  // namespace
}  // namespace bellows
