#include <gtest/gtest.h>

#include <numeric>

#include "bellows/runtime/shard_layout.h"

namespace bellows {
namespace {

ParameterSet model(std::size_t block, int blocks) {
  ParameterSet set;
  for (int i = 0; i < blocks; ++i)
    set.add(set.add_unit("u" + std::to_string(i)), "p" + std::to_string(i), {static_cast<std::int64_t>(block)});
  set.add(set.add_unit("tiny"), "tiny", {3});
  return set;
}

double moved_share(const ChunkTable& table, const ShardLayout& from, const ShardLayout& to,
                   const std::vector<int>& new_rank) {
  double moved = 0, total = 0;
  for (std::size_t c = 0; c < table.size(); ++c) {
    total += static_cast<double>(table[c].size());
    if (new_rank[from.owner(c)] != to.owner(c)) moved += static_cast<double>(table[c].size());
  }
  return moved / total;
}

TEST(ChunkTable, CoversEveryUnitWithoutCrossingIt) {
  const ParameterSet set = model(10'000, 3);
  const ChunkTable table(set, 1024);
  std::size_t at = 0;
  for (std::size_t c = 0; c < table.size(); ++c) {
    EXPECT_EQ(table[c].begin, at);
    at = table[c].end;
  }
  EXPECT_EQ(at, set.total());
  EXPECT_EQ(table.of_unit(0).size(), 10u);
  EXPECT_EQ(table[9].size(), 10'000u - 9 * 1024);
}

TEST(ShardLayout, IsBalancedInTotalForEveryWorld) {
  const ParameterSet set = model(300'000, 12);
  const ChunkTable table(set);
  for (int world = 1; world <= 64; ++world) {
    const ShardLayout layout(table, world);
    std::size_t least = ~std::size_t{0}, most = 0;
    for (int r = 0; r < world; ++r) {
      least = std::min(least, layout.elements(table, r));
      most = std::max(most, layout.elements(table, r));
    }
    EXPECT_LE(most - least, 5 * table.chunk_elements()) << world;
  }
}

TEST(ShardLayout, GrowingFromEightToNineMovesANinthOfTheState) {
  const ParameterSet set = model(1'500'000, 12);
  const ChunkTable table(set);
  std::vector<int> same(8);
  std::iota(same.begin(), same.end(), 0);
  const ShardLayout eight(table, 8);
  const ShardLayout nine = eight.for_world(table, same, 9);
  EXPECT_LE(moved_share(table, eight, nine, same), 1.05 / 9);
}

TEST(ShardLayout, AnyChangeMovesAtMostFivePercentMoreThanItMust) {
  const ParameterSet set = model(1'500'000, 12);
  const ChunkTable table(set);
  std::vector<int> worlds = {2, 4, 3, 1, 8, 5, 7, 2, 6};
  ShardLayout layout(table, worlds[0]);
  for (std::size_t i = 1; i < worlds.size(); ++i) {
    const int from = worlds[i - 1], to = worlds[i];
    std::vector<int> new_rank(from);
    for (int r = 0; r < from; ++r) new_rank[r] = r < to ? r : -1;
    const ShardLayout next = layout.for_world(table, new_rank, to);
    const double least = from < to ? double(to - from) / to : double(from - to) / from;
    EXPECT_LE(moved_share(table, layout, next, new_rank), 1.05 * least) << from << " -> " << to;
    layout = next;
  }
}

TEST(ShardLayout, ARankLostInTheMiddleMovesOnlyItsOwnChunks) {
  const ParameterSet set = model(1'500'000, 12);
  const ChunkTable table(set);
  const ShardLayout four(table, 4);
  const ShardLayout three = four.for_world(table, {0, 1, -1, 2}, 3);
  const std::vector<int> new_rank = {0, 1, -1, 2};
  EXPECT_LE(moved_share(table, four, three, new_rank), 1.05 / 4);
}

TEST(ShardLayout, SurvivesEncoding) {
  const ParameterSet set = model(50'000, 3);
  const ChunkTable table(set);
  const ShardLayout layout = ShardLayout(table, 5).for_world(table, {0, 2, 1, -1, 3}, 4);
  EXPECT_EQ(ShardLayout::decode(layout.encode()), layout);
}

TEST(ShardLayout, HandlesMoreRanksThanChunks) {
  ParameterSet set;
  set.add(set.add_unit("u"), "p", {5});
  const ChunkTable table(set);
  const ShardLayout layout(table, 4);
  EXPECT_EQ(layout.chunks(), 1u);
  EXPECT_EQ(layout.elements(table, layout.owner(0)), 5u);
}

TEST(ReshardPlan, MovesNothingToWhoHasItAlready) {
  const ReshardPlan plan = reshard_plan({{0, 1, 2, 3}, {0, 1, 2, 3}}, {{0, 1}, {2, 3}});
  EXPECT_TRUE(plan.moves.empty());
  EXPECT_TRUE(plan.uncovered.empty());
}

TEST(ReshardPlan, SpreadsTheSendingOverAllHolders) {
  const ReshardPlan plan = reshard_plan({{0, 1, 2, 3}, {0, 1, 2, 3}, {}}, {{}, {}, {0, 1, 2, 3}});
  ASSERT_EQ(plan.moves.size(), 4u);
  EXPECT_EQ(std::count_if(plan.moves.begin(), plan.moves.end(), [](const Move& m) { return m.from == 0; }), 2);
}

TEST(ReshardPlan, NamesWhatNobodyHolds) {
  const ReshardPlan plan = reshard_plan({{0}, {}}, {{0}, {1, 2}});
  EXPECT_EQ(plan.uncovered, (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace bellows
