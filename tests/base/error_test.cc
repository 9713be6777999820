#include "bellows/base/error.h"

#include <gtest/gtest.h>

#include "bellows/base/clock.h"

namespace bellows {
namespace {

TEST(Result, HoldsAValueOrTheReasonWhyThereIsNone) {
  const Result<int> good(7);
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 7);
  const auto bad = Result<int>::failure("no such file 'x'");
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error(), "no such file 'x'");
}

TEST(Result, AReasonBecomesAUserErrorWhereNobodyBranchesOnIt) {
  EXPECT_EQ(Result<int>(7).value_or_throw(), 7);
  try {
    Result<int>::failure("why").value_or_throw();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "why");
  }
}

TEST(CommError, CarriesOperationRanksAndGeneration) {
  const CommError error(CommError::Kind::kPeerLost, "all_reduce", {2, 3}, 9, "ranks 2 and 3 are gone");
  EXPECT_EQ(error.operation(), "all_reduce");
  EXPECT_EQ(error.ranks(), (std::vector<int>{2, 3}));
  EXPECT_EQ(error.generation(), 9u);
  EXPECT_STREQ(error.what(), "ranks 2 and 3 are gone");
}

TEST(CheckDeathTest, PrintsConditionBothValuesAndPlace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int three = 3;
  EXPECT_DEATH(BELLOWS_CHECK_EQ(three, 4), "error_test.cc.*three == 4.*3 vs 4");
}

TEST(Deadline, PassesWithTime) {
  EXPECT_TRUE(Deadline::after(-1).passed());
  EXPECT_FALSE(Deadline::after(1000).passed());
  EXPECT_GT(Deadline::after(1000).remaining(), from_seconds(900));
  ManualClock clock;
  clock.advance(1.5);
  EXPECT_EQ(clock.now(), from_seconds(1.5));
}

}  // namespace
}  // namespace bellows
