// The peak that a rank is held against, where the launcher has bound it.
#include "peak.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>

namespace bellows {
namespace {

TEST(RankPeak, ARankThatIsBoundToItsOwnCoreHasAllOfIt) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const double core = rank_peak(World{0, 1, 0, 1, 1}, DType::kF32, 1).value();
  const World pair{0, 2, 0, 2, 1};
  EXPECT_DOUBLE_EQ(rank_peak(pair, DType::kF32, 1).value(), core / 2) << "two ranks on the one core that there is";
  ::setenv("BELLOWS_SPAWN_CORES", "2", 1);
  EXPECT_DOUBLE_EQ(rank_peak(pair, DType::kF32, 1).value(), core);
  EXPECT_DOUBLE_EQ(rank_peak(pair, DType::kF32, 4).value(), core) << "more threads do not add up to more cores";
  EXPECT_DOUBLE_EQ(rank_peak(World{0, 4, 0, 4, 1}, DType::kF32, 1).value(), core / 2);
  ::unsetenv("BELLOWS_SPAWN_CORES");
  sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace bellows
