// Worlds that form, grow and shrink as asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "elastic/coordinator_fixture.h"

namespace bellows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CoordinatorTest, FormsTheFirstWorldWhenAllHaveJoined) {
  begin(job(3, 3, 3));
  EXPECT_EQ(core_->orders_for("agent").start.size(), 3u);
  EXPECT_EQ(generation(), 0u);
  pass();
  EXPECT_EQ(generation(), 1u);
  EXPECT_EQ(size(), 3);
  EXPECT_THAT(core_->membership().leaving, IsEmpty());
  EXPECT_TRUE(core_->membership().planned);
  EXPECT_TRUE(core_->status(clock_.now()).settled);
}

TEST_F(CoordinatorTest, SaysHowManyCameWhenTheStartDeadlinePasses) {
  JobConfig config = job(3, 3, 3);
  config.start_timeout_s = 30;
  begin(config, /*slots=*/2);
  pass(29);
  EXPECT_FALSE(core_->outcome());
  pass(2);
  ASSERT_TRUE(core_->outcome());
  EXPECT_NE(core_->outcome()->exit_code, 0);
  EXPECT_THAT(core_->outcome()->text, HasSubstr("only 2 of 3"));
}

TEST_F(CoordinatorTest, GrowsOnlyWhenAllNewRanksHaveJoinedAndKeepsTheOrder) {
  begin(job(2, 1, 4));
  pass();
  const auto before = ids(core_->membership().members);
  EXPECT_EQ(core_->on_scale(4, clock_.now()), "");
  EXPECT_EQ(core_->orders_for("agent").start.size(), 2u);
  EXPECT_EQ(generation(), 1u);
  pass();
  EXPECT_EQ(generation(), 2u);
  const auto after = ids(core_->membership().members);
  ASSERT_EQ(after.size(), 4u);
  EXPECT_EQ(std::vector<std::string>(after.begin(), after.begin() + 2), before);
  EXPECT_TRUE(core_->membership().planned);
}

TEST_F(CoordinatorTest, ShrinksFromTheHighestRanksAndLetsThemHandOver) {
  begin(job(4, 1, 4));
  pass();
  const auto before = ids(core_->membership().members);
  commits_ = false;
  core_->on_scale(2, clock_.now());
  EXPECT_EQ(generation(), 2u);
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(before[0], before[1]));
  EXPECT_THAT(ids(core_->membership().leaving), ElementsAre(before[2], before[3]));
  const auto leaving = core_->on_await(before[3], 1, clock_.now());
  ASSERT_TRUE(leaving);
  EXPECT_FALSE(leaving->world_of(before[3]));
  EXPECT_EQ(leaving->transition_world_of(before[3])->rank, 3);
  // Gone in peace: nobody is lost, nobody is started instead.
  commits_ = true;
  pass();
  EXPECT_TRUE(core_->signals_for(before[3]).over);
  EXPECT_EQ(core_->status(clock_.now()).failures, 0);
  EXPECT_THAT(core_->orders_for("agent").start, IsEmpty());
  EXPECT_EQ(size(), 2);
}

TEST_F(CoordinatorTest, MakesOneChangeAtATime) {
  begin(job(2, 1, 8));
  pass();
  commits_ = false;
  core_->on_scale(4, clock_.now());
  pass();
  ASSERT_EQ(generation(), 2u);
  core_->on_scale(3, clock_.now());
  pass(1);
  EXPECT_EQ(generation(), 2u) << "the next change waits until a step of this generation is committed";
  EXPECT_FALSE(core_->status(clock_.now()).settled);
  commits_ = true;
  pass();
  EXPECT_EQ(generation(), 3u);
  EXPECT_EQ(size(), 3);
}

TEST_F(CoordinatorTest, RefusesSizesOutsideTheLimitsAndTheLanes) {
  lanes_ = 6;
  begin(job(4, 2, 8));
  pass();
  EXPECT_THAT(core_->on_scale(9, clock_.now()), HasSubstr("--max 8"));
  EXPECT_THAT(core_->on_scale(1, clock_.now()), HasSubstr("--min 2"));
  EXPECT_THAT(core_->on_scale(7, clock_.now()), HasSubstr("more ranks than lanes"));
  EXPECT_EQ(core_->on_scale(6, clock_.now()), "");
  CoordinatorCore fixed(job(2, 2, 2, 0), 0, 0);
  EXPECT_THAT(fixed.on_scale(3, 0), HasSubstr("fixed size"));
}

TEST_F(CoordinatorTest, MembersDisagreeNever) {
  // Three drop to one with at least two needed; then one comes: one plan per generation, and all see the same.
  begin(job(3, 2, 3));
  pass();
  const auto before = ids(core_->membership().members);
  mute_starts_ = true;
  die(before[1], 0, SIGKILL_);
  die(before[2], 0, SIGKILL_);
  pass(2);
  EXPECT_EQ(generation(), 1u) << "too few: nobody trains on";
  EXPECT_FALSE(core_->on_await(before[0], 1, clock_.now()));
  EXPECT_EQ(core_->status(clock_.now()).phase, "recovering");
  const JoinAnswer one = core_->on_join(hello("", "elsewhere"), clock_.now());
  ASSERT_EQ(one.refused, "");
  clock_.advance(0.1);
  core_->tick(clock_.now());
  EXPECT_EQ(generation(), 2u);
  const auto a = core_->on_await(before[0], 1, clock_.now());
  const auto b = core_->on_await(one.id, 0, clock_.now());
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->members, b->members);
  EXPECT_EQ(a->generation, b->generation);
  EXPECT_THAT(ids(a->members), ElementsAre(before[0], one.id));
}

TEST_F(CoordinatorTest, MembersComeAndGoTenTimesOver) {
  begin(job(4, 2, 4, /*budget=*/10));
  pass();
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(size(), 4) << "round " << round;
    const auto before = generation();
    die(member(round % 4), 0, SIGKILL_);
    pass(round % 2 ? 20 : 0.5);
    EXPECT_GT(generation(), before);
    EXPECT_FALSE(core_->outcome());
    pass(12);
  }
  EXPECT_EQ(core_->status(clock_.now()).failures, 10);
  core_->on_scale(2, clock_.now());
  pass(1);
  core_->on_scale(4, clock_.now());
  pass(1);
  EXPECT_EQ(core_->status(clock_.now()).failures, 10) << "planned changes are not failures";
  die(member(0), 7, 0);
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 7);
  EXPECT_THAT(core_->outcome()->text, HasSubstr("budget of 10 is exhausted"));
}

TEST_F(CoordinatorTest, GivesUpGrowingAfterAFewFailedStarts) {
  begin(job(2, 1, 3));
  pass();
  mute_starts_ = true;
  core_->on_scale(3, clock_.now());
  for (int i = 0; i < 40; ++i) {
    for (const std::string& id : core_->orders_for("agent").start) core_->on_exit({id, 1, 0, ""}, clock_.now());
    pass(0.5);
  }
  EXPECT_FALSE(core_->outcome());
  EXPECT_THAT(core_->status(clock_.now()).note, HasSubstr("gave up"));
  EXPECT_EQ(size(), 2);
  mute_starts_ = false;
  EXPECT_EQ(core_->on_scale(3, clock_.now()), "") << "an operator may try again";
  pass(3);
  EXPECT_EQ(size(), 3);
}

TEST_F(CoordinatorTest, GoesOnWithThoseThatCameWhenTheGrowDeadlinePasses) {
  JobConfig config = job(2, 1, 4);
  config.grow_timeout_s = 10;
  begin(config);
  pass();
  mute_starts_ = true;
  core_->on_scale(4, clock_.now());
  pass();
  const auto orders = core_->orders_for("agent").start;
  ASSERT_EQ(orders.size(), 2u);
  core_->on_join(hello(orders[0]), clock_.now());
  alive_[orders[0]] = 0;
  pass(9);
  EXPECT_EQ(size(), 2);
  pass(2);
  EXPECT_EQ(size(), 3);
  EXPECT_THAT(events_of("limit"), HasSubstr("only 1 came"));
}

TEST_F(CoordinatorTest, AWishBeyondTheSlotsIsToldAndStays) {
  begin(job(2, 1, 8), /*slots=*/3);
  pass();
  core_->on_scale(6, clock_.now());
  pass(1);
  EXPECT_EQ(size(), 3);
  const JobStatus status = core_->status(clock_.now());
  EXPECT_TRUE(status.settled);
  EXPECT_EQ(status.wanted, 6);
  EXPECT_THAT(status.note, HasSubstr("no agent has a free slot"));
  slots_ = 8;
  pass(1);
  EXPECT_EQ(size(), 6);
}

TEST_F(CoordinatorTest, RefusesAStrangerAndMoreRanksThanLanes) {
  begin(job(2, 1, 4));
  pass();
  const JoinAnswer stranger = core_->on_join(hello("", "h", "another model"), clock_.now());
  EXPECT_THAT(stranger.refused, HasSubstr("another model"));
  EXPECT_FALSE(core_->outcome());
  lanes_ = 3;
  CoordinatorTest::begin(job(4, 4, 4, 0));
  alive_.clear();
  started_.clear();
  start_ordered();
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 2);
  EXPECT_THAT(core_->outcome()->last_lines,
              HasSubstr("more ranks than lanes: 4 ranks are asked for, but there are only 3"));
}

TEST_F(CoordinatorTest, ExchangeNeedsEveryRankAndEndsWithItsGeneration) {
  begin(job(2, 1, 3));
  pass();
  const std::string a = member(0), b = member(1);
  EXPECT_THAT(core_->on_exchange({a, 1, "main", 0, 2, "from a"}, clock_.now()).missing, ElementsAre(1));
  EXPECT_THAT(core_->on_exchange({a, 1, "main", 0, 2, "from a"}, clock_.now()).missing, ElementsAre(1))
      << "a repetition";
  EXPECT_THAT(core_->on_exchange({b, 1, "main", 1, 2, "from b"}, clock_.now()).blobs, ElementsAre("from a", "from b"));
  EXPECT_THAT(core_->on_exchange({a, 1, "main", 0, 2, "from a"}, clock_.now()).blobs, ElementsAre("from a", "from b"));
  EXPECT_NE(core_->on_exchange({a, 1, "main", 5, 2, ""}, clock_.now()).aborted, "");
  EXPECT_NE(core_->on_exchange({a, 1, "main", 0, 1'000'000, ""}, clock_.now()).aborted, "");
  // While a planned change is not established the old generation may still be on its way to its commit.
  core_->on_scale(3, clock_.now());
  start_ordered();
  ASSERT_EQ(generation(), 2u);
  EXPECT_EQ(core_->on_exchange({a, 1, "late", 0, 2, "x"}, clock_.now()).aborted, "");
  pass();
  EXPECT_NE(core_->on_exchange({a, 1, "late", 0, 2, "x"}, clock_.now()).aborted, "");
  // A dead generation's exchange fails at once.
  die(member(2), 0, SIGKILL_);
  EXPECT_THAT(core_->on_exchange({a, 2, "main", 0, 3, "x"}, clock_.now()).aborted, HasSubstr("rank 2"));
}

TEST_F(CoordinatorTest, FinishesWhenAllHaveLeft) {
  begin(job(2, 1, 2));
  pass();
  core_->on_leave(member(0), true, clock_.now());
  EXPECT_FALSE(core_->outcome());
  core_->on_scale(1, clock_.now());
  pass();
  EXPECT_EQ(generation(), 1u) << "no change any more once somebody has finished";
  core_->on_leave(member(1), true, clock_.now());
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 0);
  EXPECT_FALSE(core_->orders_for("agent").failed);
}

TEST_F(CoordinatorTest, StopsInOrder) {
  begin(job(3, 1, 3));
  pass();
  core_->on_stop("enough", clock_.now());
  EXPECT_TRUE(core_->signals_for(member(1)).stop);
  EXPECT_NE(core_->on_scale(2, clock_.now()), "");
  for (int rank = 0; rank < 3; ++rank) core_->on_leave(member(rank), true, clock_.now());
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 0);
  EXPECT_THAT(core_->outcome()->text, HasSubstr("enough"));
}

TEST_F(CoordinatorTest, ScalingBackCancelsWhatHasNotStarted) {
  begin(job(1, 1, 4));
  pass();
  mute_starts_ = true;
  core_->on_scale(4, clock_.now());
  ASSERT_EQ(core_->orders_for("agent").start.size(), 3u);
  core_->on_scale(1, clock_.now());
  const AgentOrders orders = core_->orders_for("agent");
  EXPECT_THAT(orders.start, IsEmpty());
  EXPECT_EQ(orders.kill.size(), 3u);
  pass(1);
  EXPECT_EQ(generation(), 1u);
  EXPECT_EQ(core_->status(clock_.now()).failures, 0);
}

TEST_F(CoordinatorTest, DrainingAHostReleasesItsRanksAndKeepsOthersAway) {
  begin(job(2, 1, 4), /*slots=*/2);
  pass();
  const auto at_home = ids(core_->membership().members);
  EXPECT_THAT(core_->on_drain("nowhere", clock_.now()), HasSubstr("no host \"nowhere\""));
  EXPECT_THAT(core_->on_drain("host", clock_.now()), HasSubstr("would leave 0"));
  core_->on_scale(3, clock_.now());
  const JoinAnswer far = core_->on_join(hello("", "farm"), clock_.now());
  ASSERT_EQ(far.refused, "");
  alive_[far.id] = 0;
  pass();
  ASSERT_EQ(size(), 3);
  EXPECT_EQ(core_->on_drain("host", clock_.now()), "");
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(far.id));
  EXPECT_THAT(ids(core_->membership().leaving), ElementsAre(at_home[0], at_home[1]));
  pass(2);
  EXPECT_EQ(size(), 1) << "nothing is started on a host that is drained";
  EXPECT_EQ(core_->status(clock_.now()).failures, 0);
}

TEST_F(CoordinatorTest, PolicyDecidesOnWindowsOfTheCurrentGenerationOnly) {
  JobConfig config = job(4, 1, 4);
  config.policy.name = "mfu-threshold";
  config.policy.threshold = 0.4;
  config.policy.windows = 3;
  begin(config);
  pass();
  report_window(0.2);
  report_window(0.2);
  MfuWindow stale;
  stale.generation = 99;
  stale.mfu = 0.2;
  stale.valid = true;
  core_->on_heartbeat({member(0), {}, {stale}, {}}, clock_.now());
  MfuWindow forged;
  forged.generation = generation();
  forged.mfu = 0.2;
  forged.valid = true;
  core_->on_heartbeat({member(1), {}, {forged}, {}}, clock_.now());  // only rank 0 speaks for the world
  EXPECT_EQ(generation(), 1u);
  report_window(0.2);
  EXPECT_EQ(generation(), 2u);
  EXPECT_EQ(size(), 3);
  EXPECT_THAT(core_->membership().reason, HasSubstr("below 0.400"));
  pass();
  report_window(0.2);
  report_window(0.2);
  report_window(0.2);
  EXPECT_EQ(generation(), 2u) << "the first window after a change is blank";
  report_window(0.2);
  EXPECT_EQ(generation(), 3u);
  EXPECT_THAT(events_of("decision"), HasSubstr("window 1 of 3"));
}

}  // namespace
}  // namespace bellows
