// Ranks, agents and coordinators that are lost: who goes on, and when the job ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "elastic/coordinator_fixture.h"

namespace bellows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(CoordinatorTest, AKilledRankIsGoneAtOnceAndIsReplaced) {
  begin(job(4, 1, 4));
  pass();
  const auto before = ids(core_->membership().members);
  die(before[2], 0, SIGKILL_);
  EXPECT_EQ(core_->signals_for(before[0]).dead_generation, 1u) << "the others are told to abort at once";
  EXPECT_THAT(core_->signals_for(before[0]).dead_why, HasSubstr("rank 2"));
  EXPECT_TRUE(core_->signals_for(before[2]).fenced);
  clock_.advance(0.03);
  core_->tick(clock_.now());
  EXPECT_EQ(generation(), 2u);
  EXPECT_FALSE(core_->membership().planned);
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(before[0], before[1], before[3]));
  pass(1);
  EXPECT_EQ(generation(), 3u);
  EXPECT_EQ(size(), 4);
  EXPECT_TRUE(core_->membership().planned);
  EXPECT_EQ(core_->status(clock_.now()).failures, 1);
}

TEST_F(CoordinatorTest, TwoLossesAtOnceMakeOneChange) {
  begin(job(4, 1, 4));
  pass();
  const auto before = ids(core_->membership().members);
  die(before[1], 0, SIGKILL_);
  die(before[3], 7, 0);
  clock_.advance(0.03);
  core_->tick(clock_.now());
  EXPECT_EQ(generation(), 2u);
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(before[0], before[2]));
  EXPECT_THAT(core_->membership().reason, HasSubstr("rank 1"));
  EXPECT_THAT(core_->membership().reason, HasSubstr("rank 3"));
}

TEST_F(CoordinatorTest, ASilentRankIsLostAfterTheHeartbeatLimitAndKilled) {
  JobConfig config = job(3, 1, 3);
  config.heartbeat_limit_s = 5;
  begin(config);
  pass();
  const std::string frozen = member(1);
  frozen_.insert(frozen);
  pass(4.5);
  EXPECT_EQ(generation(), 1u);
  pass(1);
  EXPECT_GE(generation(), 2u);
  EXPECT_THAT(events_of("lost"), HasSubstr("not heard of"));
  EXPECT_FALSE(alive_.contains(frozen)) << "its agent was told to kill it";
  EXPECT_TRUE(core_->signals_for(frozen).fenced);
}

TEST_F(CoordinatorTest, ARankThatItsPeersReportIsLostMuchSooner) {
  begin(job(3, 1, 3));
  pass();
  const std::string frozen = member(1);
  frozen_.insert(frozen);
  core_->on_failure(member(0), 1, {1}, "rank 1 did not answer", clock_.now());
  EXPECT_EQ(core_->signals_for(member(2)).dead_generation, 1u);
  pass(1.2);
  EXPECT_EQ(generation(), 1u);
  pass(0.8);
  EXPECT_GE(generation(), 2u);
  EXPECT_FALSE(core_->membership().world_of(frozen));
}

TEST_F(CoordinatorTest, AFailedCollectiveWithoutALossGivesTheSameMembersANewGeneration) {
  begin(job(3, 1, 3));
  pass();
  const auto before = ids(core_->membership().members);
  core_->on_failure(member(0), 1, {2}, "timed out", clock_.now());
  pass(0.4);
  EXPECT_EQ(generation(), 2u);
  EXPECT_EQ(ids(core_->membership().members), before);
  EXPECT_FALSE(core_->membership().planned);
  EXPECT_EQ(core_->status(clock_.now()).failures, 1) << "it counts, or it could go on for ever";
}

TEST_F(CoordinatorTest, ARankThatBeatsButNeverComesBackIsLostInTheEnd) {
  JobConfig config = job(3, 1, 3);
  config.regroup_timeout_s = 20;
  begin(config);
  pass();
  const std::string hung = member(2);
  hung_.insert(hung);
  core_->on_failure(member(0), 1, {2}, "timed out", clock_.now());
  pass(19);
  EXPECT_EQ(generation(), 1u);
  pass(2);
  EXPECT_GE(generation(), 2u);
  EXPECT_FALSE(core_->membership().world_of(hung));
  EXPECT_THAT(events_of("lost"), HasSubstr("did not leave the dead generation"));
}

TEST_F(CoordinatorTest, ReportsOfOldGenerationsAreOldNews) {
  begin(job(3, 1, 3));
  pass();
  die(member(2), 0, SIGKILL_);
  pass(1);
  const auto now_at = generation();
  ASSERT_GT(now_at, 1u);
  core_->on_failure(member(0), 1, {1}, "late", clock_.now());
  pass(3);
  EXPECT_EQ(generation(), now_at);
  core_->on_failure("stranger", now_at, {0}, "forged", clock_.now());
  EXPECT_EQ(core_->signals_for(member(0)).dead_generation, 0u);
}

TEST_F(CoordinatorTest, ALossDuringAGrowMakesTheNextGenerationFromThoseLeft) {
  begin(job(2, 1, 4));
  pass();
  const auto old = ids(core_->membership().members);
  commits_ = false;
  core_->on_scale(4, clock_.now());
  pass();
  ASSERT_EQ(generation(), 2u);
  const std::string joiner = member(3);
  die(joiner, 0, SIGKILL_);
  pass();
  EXPECT_EQ(generation(), 3u);
  EXPECT_EQ(size(), 3);
  commits_ = true;
  pass(2);
  EXPECT_EQ(size(), 4) << "the wish stays";
  EXPECT_EQ(member(0), old[0]);
}

TEST_F(CoordinatorTest, AJoinersDeathDoesNotAbortTheGenerationItWasNeverIn) {
  begin(job(2, 1, 4));
  pass();
  commits_ = false;
  const std::string old = member(0);
  core_->on_scale(3, clock_.now());
  start_ordered();
  ASSERT_EQ(generation(), 2u);
  // The old ranks still hold generation 1 when the new one dies.
  die(member(2), 0, SIGKILL_);
  EXPECT_EQ(core_->signals_for(old).dead_generation, 0u);
  // But the death of an old one ends both.
  const std::string other = member(1);
  die(other, 0, SIGKILL_);
  EXPECT_EQ(core_->signals_for(old).dead_generation, 1u);
}

TEST_F(CoordinatorTest, ThoseWhoWereLeavingStillHoldTheirPartIfTheChangeFails) {
  begin(job(4, 1, 4));
  pass();
  const auto before = ids(core_->membership().members);
  commits_ = false;
  core_->on_scale(2, clock_.now());
  ASSERT_EQ(generation(), 2u);
  die(before[1], 0, SIGKILL_);
  clock_.advance(0.03);
  core_->tick(clock_.now());
  EXPECT_EQ(generation(), 3u);
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(before[0]));
  EXPECT_THAT(ids(core_->membership().leaving), ElementsAre(before[2], before[3]));
}

TEST_F(CoordinatorTest, ALeavingRankThatDiesBeforeTheHandOverIsALoss) {
  begin(job(3, 1, 3));
  pass();
  const auto before = ids(core_->membership().members);
  commits_ = false;
  core_->on_scale(2, clock_.now());
  die(before[2], 0, SIGKILL_);
  clock_.advance(0.03);
  core_->tick(clock_.now());
  EXPECT_EQ(generation(), 3u);
  EXPECT_FALSE(core_->membership().planned);
  EXPECT_THAT(core_->membership().leaving, IsEmpty());
}

TEST_F(CoordinatorTest, ALeavingRankThatDiesAfterTheHandOverIsNoLoss) {
  begin(job(3, 1, 3));
  pass();
  const auto before = ids(core_->membership().members);
  core_->on_scale(2, clock_.now());
  core_->on_await(before[0], 1, clock_.now());
  StepReport step;
  step.generation = 2;
  core_->on_heartbeat({before[0], step, {}, {}}, clock_.now());
  die(before[2], 0, SIGKILL_);
  pass(1);
  EXPECT_EQ(generation(), 2u);
}

TEST_F(CoordinatorTest, WithElasticityOffTheFirstFailureEndsTheJobWithItsCode) {
  begin(job(4, 4, 4, /*budget=*/0));
  pass();
  const std::string victim = member(2);
  core_->on_failure(member(0), 1, {2}, "rank 2 is gone", clock_.now());
  EXPECT_FALSE(core_->outcome()) << "who failed and how is not known yet";
  die(victim, 0, SIGKILL_);
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 128 + 9);
  EXPECT_THAT(core_->outcome()->text, HasSubstr("rank 2"));
  EXPECT_EQ(core_->outcome()->last_lines, "last words\n");
  EXPECT_TRUE(core_->orders_for("agent").over);
  EXPECT_TRUE(core_->orders_for("agent").failed);
  EXPECT_TRUE(core_->signals_for(member(0)).over);
}

TEST_F(CoordinatorTest, WhatAPersonMustMendEndsTheJobInsteadOfBeingRepeated) {
  begin(job(2, 1, 4));
  const auto orders = core_->orders_for("agent").start;
  core_->on_exit({orders[0], 2, 0, "error: no such file\n"}, clock_.now());
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 2);
  EXPECT_EQ(core_->outcome()->last_lines, "error: no such file\n");
}

TEST_F(CoordinatorTest, AJoinerThatRefusesToStartDoesNotEndAJobThatTrains) {
  begin(job(2, 1, 4));
  pass();
  mute_starts_ = true;
  core_->on_scale(4, clock_.now());
  pass();
  for (const std::string& id : core_->orders_for("agent").start)
    core_->on_exit({id, 2, 0, "error: no such file\n"}, clock_.now());
  pass(1);
  EXPECT_FALSE(core_->outcome());
  EXPECT_EQ(size(), 2);
  EXPECT_TRUE(core_->status(clock_.now()).settled);
  EXPECT_THAT(core_->status(clock_.now()).note, HasSubstr("no such file"));
}

TEST_F(CoordinatorTest, LostRanksAreFencedForEver) {
  begin(job(3, 1, 3));
  pass();
  const std::string lost = member(1);
  const auto generation_then = generation();
  frozen_.insert(lost);
  pass(6);
  ASSERT_FALSE(core_->membership().world_of(lost));
  EXPECT_TRUE(core_->on_heartbeat({lost, {}, {}, {}}, clock_.now()).fenced);
  EXPECT_FALSE(core_->on_await(lost, generation_then, clock_.now()));
  EXPECT_TRUE(core_->on_join(hello(lost, "host", "f", 16, core_->membership()), clock_.now()).fenced);
  EXPECT_NE(core_->on_exchange({lost, generation(), "main", 0, 3, "x"}, clock_.now()).aborted, "");
  const auto stays = generation();
  core_->on_failure(lost, stays, {0}, "revenge", clock_.now());
  EXPECT_EQ(core_->signals_for(member(0)).dead_generation, 0u);
}

TEST_F(CoordinatorTest, ACrashAfterTheTrainingIsStillAFailure) {
  begin(job(2, 1, 2));
  pass();
  core_->on_leave(member(0), true, clock_.now());
  die(member(1), 7, 0);
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 7);
}

TEST_F(CoordinatorTest, ARankLostWhileStoppingIsNotReplaced) {
  begin(job(3, 2, 3));
  pass();
  const auto before = ids(core_->membership().members);
  core_->on_stop("enough", clock_.now());
  die(before[1], 0, SIGKILL_);
  die(before[2], 0, SIGKILL_);
  pass(1);
  EXPECT_THAT(ids(core_->membership().members), ElementsAre(before[0])) << "one is enough to stop in order";
  EXPECT_THAT(core_->orders_for("agent").start, IsEmpty());
}

TEST_F(CoordinatorTest, AgentsThatVanishTakeTheirRanksWithThem) {
  begin(job(2, 1, 3));
  pass();
  const auto before = ids(core_->membership().members);
  slots_ = 0;  // no poll any more
  core_->on_agent_gone("agent", clock_.now());
  alive_.erase(before[1]);
  clock_.advance(0.1);
  core_->on_heartbeat({before[0], {}, {}, {}}, clock_.now());  // proves to be alive
  pass(2);
  EXPECT_FALSE(core_->membership().world_of(before[1]));
  EXPECT_TRUE(core_->membership().world_of(before[0]));
}

TEST_F(CoordinatorTest, ASilentAgentIsGoneAndItsUnfinishedStartsCostNothing) {
  begin(job(1, 1, 1, /*budget=*/0));
  ASSERT_EQ(core_->orders_for("agent").start.size(), 1u);
  for (int i = 0; i < 60; ++i) {
    clock_.advance(0.1);
    core_->tick(clock_.now());
  }
  EXPECT_FALSE(core_->status(clock_.now()).agents.at(0).alive);
  EXPECT_FALSE(core_->outcome());
  pass();  // it is back and starts another one; the late one is fenced
  EXPECT_EQ(size(), 1);
  EXPECT_EQ(core_->status(clock_.now()).failures, 0);
}

TEST_F(CoordinatorTest, ANewCoordinatorLearnsTheWorldFromItsRanks) {
  begin(job(3, 1, 4));
  pass();
  const Membership held = core_->membership();
  JobConfig config = job(2, 1, 4);  // started anew, with whatever -n
  config.id_prefix = "x";
  CoordinatorCore next(config, clock_.now(), 0);
  next.on_agent({"agent", "host", 4, ids(held.members)}, clock_.now());
  EXPECT_TRUE(next.signals_for(held.members[0].id).unknown);
  for (const MemberInfo& m : held.members) {
    const JoinAnswer answer = next.on_join(hello(m.id, m.host, "f", 16, held), clock_.now());
    EXPECT_EQ(answer.refused, "");
  }
  EXPECT_EQ(next.membership().generation, held.generation);
  EXPECT_EQ(ids(next.membership().members), ids(held.members));
  EXPECT_EQ(next.status(clock_.now()).wanted, 3);
  EXPECT_THAT(next.orders_for("agent").kill, IsEmpty());
  // It steers at once.
  EXPECT_EQ(next.on_scale(2, clock_.now()), "");
  EXPECT_EQ(next.membership().generation, held.generation + 1);
}

TEST_F(CoordinatorTest, ANewCoordinatorLosesThoseWhoDoNotComeBack) {
  begin(job(3, 1, 4));
  pass();
  const Membership held = core_->membership();
  CoordinatorCore next(job(3, 1, 4), clock_.now(), 0);
  for (int i = 0; i < 2; ++i) {
    const MemberInfo& m = held.members[static_cast<std::size_t>(i)];
    next.on_join(hello(m.id, m.host, "f", 16, held), clock_.now());
  }
  for (int i = 0; i < 60; ++i) {
    clock_.advance(0.1);
    for (int r = 0; r < 2; ++r)
      next.on_heartbeat({held.members[static_cast<std::size_t>(r)].id, {}, {}, {}}, clock_.now());
    next.tick(clock_.now());
  }
  EXPECT_EQ(next.membership().generation, held.generation + 1);
  EXPECT_EQ(next.membership().world_size(), 2);
}

TEST_F(CoordinatorTest, AHeldUpCoordinatorDoesNotBlameItsRanks) {
  begin(job(3, 1, 3));
  pass();
  clock_.advance(60);  // this process was stopped: nothing could be heard
  core_->tick(clock_.now());
  pass(1);
  EXPECT_EQ(generation(), 1u);
}

TEST_F(CoordinatorTest, ProgramsThatNeverJoinEndTheJobWithTheirCode) {
  begin(job(2, 1, 2));
  const auto orders = core_->orders_for("agent").start;
  core_->on_exit({orders[0], 0, 0, ""}, clock_.now());
  EXPECT_FALSE(core_->outcome());
  core_->on_exit({orders[1], 0, 0, ""}, clock_.now());
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 0);
  begin(job(2, 1, 2));
  core_->on_exit({core_->orders_for("agent").start[0], 5, 0, ""}, clock_.now());
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 5);
}

}  // namespace
}  // namespace bellows
