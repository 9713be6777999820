#include "bellows/elastic/membership.h"

#include <gtest/gtest.h>

namespace bellows {
namespace {

Membership example() {
  Membership m;
  m.generation = 7;
  m.members = {{"a", "north", 1}, {"b", "south", 2}, {"c", "north", 3}};
  m.leaving = {{"d", "south", 4}};
  return m;
}

TEST(Membership, RankIsTheIndexAndLocalRankCountsTheSameHost) {
  EXPECT_EQ(example().world_of("c"), (World{2, 3, 1, 2, 7}));
  EXPECT_EQ(example().world_of("b"), (World{1, 3, 0, 1, 7}));
  EXPECT_FALSE(example().world_of("d"));
  EXPECT_FALSE(example().world_of("stranger"));
}

TEST(Membership, TransitionWorldHoldsMembersFirstThenThoseLeaving) {
  EXPECT_EQ(example().transition_world_of("a"), (World{0, 4, 0, 2, 7}));
  EXPECT_EQ(example().transition_world_of("d"), (World{3, 4, 1, 2, 7}));
  EXPECT_FALSE(example().transition_world_of("stranger"));
}

}  // namespace
}  // namespace bellows
