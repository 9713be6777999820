#include "coordinator_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace bellows {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JobConfig job(int ranks, int min_ranks, int max_ranks, int budget = 10) {
  JobConfig config;
  config.name = "test";
  config.ranks = ranks;
  config.min_ranks = min_ranks;
  config.max_ranks = max_ranks;
  config.policy.name = "manual";
  config.failure_budget = budget;
  return config;
}

std::vector<std::string> ids(const std::vector<MemberInfo>& members) {
  std::vector<std::string> result;
  for (const MemberInfo& member : members) result.push_back(member.id);
  return result;
}

JoinMessage hello(const std::string& id, const std::string& host = "host", const std::string& fingerprint = "f",
                  int lanes = 16, std::optional<Membership> holds = {}) {
  JoinMessage message;
  message.id = id;
  message.host = host;
  message.pid = 1;
  message.info.fingerprint = fingerprint;
  message.info.lanes = lanes;
  message.holds = std::move(holds);
  return message;
}

/// A coordinator, one agent with well-behaved processes, and a clock set by hand. Every `pass` lets time go by in
/// heartbeat steps in which all living ranks beat, ask for their membership if they have none, and commit a step.
class CoordinatorTest : public testing::Test {
 protected:
  void begin(const JobConfig& config, int slots = 16) {
    core_.emplace(config, clock_.now(), 1'000'000);
    slots_ = slots;
    if (slots > 0) core_->on_agent({"agent", "host", slots, {}}, clock_.now());
  }

  /// What ordered processes do: they start and join.
  void start_ordered() {
    const AgentOrders orders = core_->orders_for("agent");
    for (const std::string& id : orders.start) {
      if (!started_.insert(id).second) continue;
      if (mute_starts_) continue;
      const JoinAnswer answer = core_->on_join(hello(id, "host", fingerprint_, lanes_), clock_.now());
      if (answer.refused.empty()) {
        alive_[id] = 0;
      } else {
        last_refusal_ = answer.refused;
        core_->on_exit({id, 2, 0, "error: " + answer.refused + "\n"}, clock_.now());
      }
    }
    for (const std::string& id : orders.kill) die(id, 0, SIGKILL_);
  }

  void pass(double secs = 0.2) {
    for (double done = 0; done < secs - 1e-9; done += 0.1) {
      clock_.advance(0.1);
      if (slots_ > 0) core_->on_agent({"agent", "host", slots_, {}}, clock_.now());
      start_ordered();
      for (auto& [id, generation] : alive_) {
        if (frozen_.contains(id)) continue;
        const Signals signals = core_->signals_for(id);
        const bool looks =
            generation == 0 || signals.newest_generation > generation || signals.dead_generation == generation;
        if (looks && !hung_.contains(id)) {
          if (const auto membership = core_->on_await(id, generation, clock_.now())) {
            generation = membership->generation;
            if (!membership->world_of(id)) released_.push_back(id);
          }
        }
        HeartbeatMessage beat{id, {}, {}, {}};
        if (generation > 0 && commits_) {
          StepReport step;
          step.generation = generation;
          step.step = ++step_;
          beat.step = step;
        }
        core_->on_heartbeat(beat, clock_.now());
      }
      for (const std::string& id : released_) {
        core_->on_leave(id, false, clock_.now());
        core_->on_exit({id, 0, 0, ""}, clock_.now());
        alive_.erase(id);
      }
      released_.clear();
      core_->tick(clock_.now());
    }
  }

  void die(const std::string& id, int code, int signal) {
    alive_.erase(id);
    core_->on_exit({id, code, signal, "last words\n"}, clock_.now());
  }
  std::string member(int rank) const { return core_->membership().members.at(static_cast<std::size_t>(rank)).id; }
  int size() const { return core_->membership().world_size(); }
  std::uint64_t generation() const { return core_->membership().generation; }
  std::string events_of(const std::string& kind) const {
    std::string text;
    for (const Event& e : core_->events(0)) {
      if (e.kind == kind) text += e.text + "\n";
    }
    return text;
  }
  void report_window(double mfu) {
    MfuWindow w;
    w.generation = generation();
    w.world_size = size();
    w.mfu = mfu;
    w.valid = true;
    core_->on_heartbeat({member(0), {}, {w}, {}}, clock_.now());
  }

  static constexpr int SIGKILL_ = 9;
  ManualClock clock_;
  std::optional<CoordinatorCore> core_;
  std::map<std::string, std::uint64_t> alive_;  // and the generation each holds
  std::set<std::string> started_, frozen_, hung_;
  std::vector<std::string> released_;
  std::string fingerprint_ = "f", last_refusal_;
  int lanes_ = 16, slots_ = 16;
  std::int64_t step_ = 0;
  bool mute_starts_ = false, commits_ = true;
};

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

TEST_F(CoordinatorTest, ACrashAfterTheTrainingIsStillAFailure) {
  begin(job(2, 1, 2));
  pass();
  core_->on_leave(member(0), true, clock_.now());
  die(member(1), 7, 0);
  ASSERT_TRUE(core_->outcome());
  EXPECT_EQ(core_->outcome()->exit_code, 7);
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

/// Any order of deaths, joins, scales and silence: memberships never disagree, generations only grow, and a job whose
/// ranks are fed always comes back to its wished size.
TEST(CoordinatorProperty, RandomHistoriesKeepTheInvariants) {
  for (unsigned seed = 0; seed < 80; ++seed) {
    std::uint64_t state = seed * 7919 + 1;
    auto random = [&state](int n) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<int>((state >> 33) % static_cast<std::uint64_t>(n));
    };
    ManualClock clock;
    CoordinatorCore core(job(3, 1, 6, /*budget=*/1000), clock.now(), 0);
    std::map<std::string, std::uint64_t> alive;
    std::set<std::string> started, silent;
    std::map<std::uint64_t, std::vector<MemberInfo>> published;
    std::uint64_t last = 0;
    bool calm = false;
    for (int round = 0; round < 600; ++round) {
      calm = round > 400;  // then nothing more goes wrong, and everything must settle
      clock.advance(0.1);
      core.on_agent({"a", "h", 8, {}}, clock.now());
      const AgentOrders orders = core.orders_for("a");
      for (const std::string& id : orders.start) {
        if (!started.insert(id).second) continue;
        if (!calm && last > 0 && random(6) == 0) {
          core.on_exit({id, 1, 0, ""}, clock.now());
        } else {
          core.on_join(hello(id, "h", "f", 8), clock.now());
          alive[id] = 0;
        }
      }
      for (const std::string& id : orders.kill) {
        alive.erase(id);
        core.on_exit({id, 0, 9, ""}, clock.now());
      }
      std::vector<std::string> gone;
      for (auto& [id, generation] : alive) {
        if (silent.contains(id)) continue;
        if (!calm && random(80) == 0) {
          silent.insert(id);
          continue;
        }
        if (!calm && random(60) == 0) {
          core.on_exit({id, 0, 9, ""}, clock.now());
          gone.push_back(id);
          continue;
        }
        if (!calm && generation > 0 && random(100) == 0) core.on_failure(id, generation, {random(6)}, "x", clock.now());
        const Signals signals = core.signals_for(id);
        if (signals.over || signals.fenced) {
          core.on_exit({id, 0, 0, ""}, clock.now());
          gone.push_back(id);
          continue;
        }
        if (generation == 0 || signals.newest_generation > generation || signals.dead_generation == generation) {
          if (const auto m = core.on_await(id, generation, clock.now())) {
            ASSERT_GT(m->generation, generation);
            const auto [it, fresh] = published.emplace(m->generation, m->members);
            ASSERT_EQ(it->second, m->members) << "two memberships of one generation";
            generation = m->generation;
            if (!m->world_of(id)) {
              core.on_leave(id, false, clock.now());
              core.on_exit({id, 0, 0, ""}, clock.now());
              gone.push_back(id);
              continue;
            }
          }
        }
        HeartbeatMessage beat{id, {}, {}, {}};
        if (generation > 0 && random(3) > 0) {
          beat.step.emplace();
          beat.step->generation = generation;
        }
        core.on_heartbeat(beat, clock.now());
      }
      for (const std::string& id : gone) alive.erase(id);
      if (!calm && random(40) == 0) core.on_scale(1 + random(6), clock.now());
      if (round == 401) core.on_scale(4, clock.now());
      core.tick(clock.now());
      ASSERT_GE(core.membership().generation, last);
      last = core.membership().generation;
      ASSERT_FALSE(core.outcome()) << core.outcome()->text;
    }
    EXPECT_EQ(core.membership().world_size(), 4) << "seed " << seed;
    EXPECT_TRUE(core.status(clock.now()).settled) << "seed " << seed;
  }
}

}  // namespace
}  // namespace bellows
