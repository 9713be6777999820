#include "bellows/base/fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bellows/base/clock.h"

namespace bellows {
namespace {

FaultPlan plan(const std::string& text) { return FaultPlan::parse(text).value_or_throw(); }
std::string error_of(const std::string& text) {
  const auto result = FaultPlan::parse(text);
  return result ? "no error" : result.error();
}

TEST(FaultPlan, TheEmptyTextIsAPlanWithoutFaults) {
  FaultPlan none = plan("");
  EXPECT_TRUE(none.empty());
  none.fire(0, 1, "forward");
}

TEST(FaultPlan, FiresOnlyWhereRankStepPhaseAndGenerationMatch) {
  FaultPlan p = plan("throw:rank=2,step=5,phase=backward,generation=3");
  p.fire(1, 5, "backward", 3);
  p.fire(2, 4, "backward", 3);
  p.fire(2, 5, "forward", 3);
  p.fire(2, 5, "backward", 2);
  p.fire(2, 5, "backward");
  EXPECT_THROW(p.fire(2, 5, "backward", 3), InjectedFault);
}

TEST(FaultPlan, FiresOnceUnlessEveryTimeIsAskedFor) {
  FaultPlan once = plan("throw:rank=0");
  EXPECT_THROW(once.fire(0, 1, "forward"), InjectedFault);
  once.fire(0, 1, "backward");
  FaultPlan always = plan("throw:rank=0,every=1");
  for (int step = 1; step < 4; ++step) EXPECT_THROW(always.fire(0, step, "data"), InjectedFault);
}

TEST(FaultPlan, SeveralFaultsFireEachOnItsOwn) {
  FaultPlan p = plan("throw:step=1;throw:step=2");
  EXPECT_THROW(p.fire(0, 2, "commit"), InjectedFault);
  EXPECT_THROW(p.fire(0, 1, "commit"), InjectedFault);
  p.fire(0, 2, "commit");
}

TEST(FaultPlan, SleepTakesAtLeastItsTime) {
  FaultPlan p = plan("sleep=0.03:phase=gather");
  const Nanos begin = now_ns();
  p.fire(0, 1, "gather");
  EXPECT_GE(seconds(now_ns() - begin), 0.03);
}

TEST(FaultPlan, AThrownFaultSaysWhere) {
  FaultPlan p = plan("throw:rank=1");
  try {
    p.fire(1, 8, "reduce");
    FAIL();
  } catch (const InjectedFault& fault) {
    EXPECT_STREQ(fault.what(), "fault 'throw:rank=1' thrown on rank 1, step 8, reduce");
  }
}

TEST(FaultPlanDeathTest, KillIsSigkillAndExitIsThatCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(plan("kill:rank=2,step=5").fire(2, 5, "forward"), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(plan("exit=7:rank=1,step=3").fire(1, 3, "commit"), testing::ExitedWithCode(7), "");
}

TEST(FaultPlan, StopHaltsTheProcessUntilItIsContinued) {
  const pid_t child = fork();
  if (child == 0) {
    plan("stop").fire(0, 1, "forward");
    _exit(5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 5);
}

TEST(FaultPlan, AMistakeIsNamedWithTheNearestKnownWord) {
  EXPECT_EQ(error_of("kil:rank=2"), "fault 'kil:rank=2': unknown action 'kil'; the nearest known one is 'kill'");
  EXPECT_EQ(error_of("kill:rnak=2"), "fault 'kill:rnak=2': unknown key 'rnak'; the nearest known one is 'rank'");
  EXPECT_EQ(error_of("kill:phase=backwards"),
            "fault 'kill:phase=backwards': unknown phase 'backwards'; the nearest known one is 'backward'");
  EXPECT_EQ(error_of("kill:rank=two"), "fault 'kill:rank=two': rank = 'two' is not a whole number of at least 0");
  EXPECT_EQ(error_of("kill:step="), "fault 'kill:step=': step = '' is not a whole number of at least 0");
  EXPECT_EQ(error_of("exit"), "fault 'exit': exit needs a code from 0 to 255, as in exit=7");
  EXPECT_EQ(error_of("exit=256"), "fault 'exit=256': exit needs a code from 0 to 255, as in exit=7");
  EXPECT_EQ(error_of("sleep=nan"), "fault 'sleep=nan': sleep needs seconds from 0 to 86400, as in sleep=0.5");
  EXPECT_EQ(error_of("kill=9"), "fault 'kill=9': 'kill' takes no value");
  EXPECT_EQ(error_of("kill;"), "fault '': unknown action ''; the nearest known one is 'kill'");
  EXPECT_EQ(error_of("kill:"), "fault 'kill:': unknown key ''; the nearest known one is 'rank'");
}

}  // namespace
}  // namespace bellows
