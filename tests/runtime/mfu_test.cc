#include <gtest/gtest.h>

#include "bellows/runtime/mfu.h"

namespace bellows {
namespace {

WindowStep step_of(std::int64_t n, double seconds = 1, std::vector<double> compute = {10, 10},
                   std::vector<double> data = {0, 0}) {
  return {n, seconds, 100, false, std::move(compute), std::move(data)};
}

TEST(WindowBuilder, TheFirstWindowOfAGenerationIsBlank) {
  WindowBuilder windows(2);
  EXPECT_FALSE(windows.start_generation(1, 2, 5, 1000));
  EXPECT_FALSE(windows.add(step_of(1)));
  const auto first = windows.add(step_of(2));
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->valid);
  windows.add(step_of(3));
  const auto second = windows.add(step_of(4));
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->valid);
  EXPECT_DOUBLE_EQ(*second->mfu, 5.0 * 200 / (2 * 1000));
  EXPECT_EQ(second->first_step, 3);
  EXPECT_EQ(second->last_step, 4);
}

TEST(WindowBuilder, AChangeCutsTheWindowAndMakesItInvalid) {
  WindowBuilder windows(3);
  windows.start_generation(1, 2, 5, 1000);
  for (int s = 1; s <= 3; ++s) windows.add(step_of(s));
  windows.add(step_of(4));
  const auto cut = windows.start_generation(2, 3, 5, 1000);
  ASSERT_TRUE(cut);
  EXPECT_FALSE(cut->valid);
  EXPECT_EQ(cut->generation, 1u);
}

TEST(WindowBuilder, AStallOfTheRuntimeMakesAWindowInvalid) {
  WindowBuilder windows(2);
  windows.start_generation(1, 2, 5, 1000);
  for (int s = 1; s <= 2; ++s) windows.add(step_of(s));
  WindowStep stalled = step_of(3);
  stalled.stalled = true;
  windows.add(stalled);
  const auto window = windows.add(step_of(4));
  ASSERT_TRUE(window);
  EXPECT_FALSE(window->valid);
  EXPECT_NE(window->why_invalid.find("checkpoint"), std::string::npos);
}

TEST(WindowBuilder, AnUnknownPeakMeansNoMfu) {
  WindowBuilder windows(1);
  windows.start_generation(1, 2, 5, std::nullopt);
  const auto window = windows.add(step_of(1));
  ASSERT_TRUE(window);
  EXPECT_FALSE(window->mfu);
}

TEST(WindowBuilder, NamesTheSlowRankAndItsPhase) {
  WindowBuilder windows(1);
  windows.start_generation(1, 4, 5, 1000);
  const auto compute = windows.add(step_of(1, 1, {10, 10, 15, 10}, {0, 0, 0, 0}));
  EXPECT_EQ(compute->slowest_rank, 2);
  EXPECT_EQ(compute->slowest_phase, "compute");
  EXPECT_NEAR(compute->straggler_share, 0.5, 1e-9);
  const auto data = windows.add(step_of(2, 1, {10, 10, 10, 10}, {0, 0, 5, 0}));
  EXPECT_EQ(data->slowest_rank, 2);
  EXPECT_EQ(data->slowest_phase, "data");
  EXPECT_NEAR(data->data_wait_over_compute, 0.5, 1e-9);
}

}  // namespace
}  // namespace bellows
