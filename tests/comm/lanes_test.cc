#include "bellows/comm/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bellows/comm/communicator.h"

namespace bellows {

static void PrintTo(const LaneSpan& span, std::ostream* out) { *out << '[' << span.first << ',' << span.end() << ')'; }

namespace {

std::vector<int> range(int begin, int end) {
  std::vector<int> lanes(end - begin);
  std::iota(lanes.begin(), lanes.end(), begin);
  return lanes;
}

TEST(Lanes, ContiguousGivesTheFirstRanksOneMore) {
  EXPECT_EQ(contiguous_lanes(8, 3), (LaneAssignment{{0, 1, 2}, {3, 4, 5}, {6, 7}}));
  EXPECT_EQ(contiguous_lanes(4, 4), (LaneAssignment{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(contiguous_lanes(2, 3), (LaneAssignment{{0}, {1}, {}}));
}

TEST(Lanes, StridedCoversWorldSizeLanesPerRound) {
  EXPECT_EQ(strided_lanes(8, 3), (LaneAssignment{{0, 3, 6}, {1, 4, 7}, {2, 5}}));
  EXPECT_EQ(strided_lanes(3, 1), (LaneAssignment{{0, 1, 2}}));
}

TEST(Lanes, EveryLaneStandsOnceInEveryAssignment) {
  for (int lanes = 0; lanes <= 17; ++lanes)
    for (int ranks = 1; ranks <= 9; ++ranks)
      for (const auto& assignment : {contiguous_lanes(lanes, ranks), strided_lanes(lanes, ranks)}) {
        ASSERT_EQ(static_cast<int>(assignment.size()), ranks);
        std::vector<int> all;
        for (const auto& mine : assignment) {
          EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
          all.insert(all.end(), mine.begin(), mine.end());
        }
        std::sort(all.begin(), all.end());
        EXPECT_EQ(all, range(0, lanes));
      }
}

TEST(Lanes, SiblingsAreAlignedNeighboursOfEqualSize) {
  EXPECT_TRUE(lane_siblings({0, 1}, {1, 1}));
  EXPECT_TRUE(lane_siblings({4, 2}, {6, 2}));
  EXPECT_FALSE(lane_siblings({1, 1}, {2, 1}));
  EXPECT_FALSE(lane_siblings({2, 2}, {4, 2}));
  EXPECT_FALSE(lane_siblings({0, 2}, {2, 1}));
  EXPECT_FALSE(lane_siblings({0, 1}, {2, 1}));
  EXPECT_FALSE(lane_siblings({1, 1}, {0, 1}));
}

TEST(Lanes, FoldLeavesTheFewestCompleteSubtrees) {
  EXPECT_EQ(fold_lanes(range(0, 8)), (std::vector<LaneSpan>{{0, 8}}));
  EXPECT_EQ(fold_lanes(range(0, 3)), (std::vector<LaneSpan>{{0, 2}, {2, 1}}));
  EXPECT_EQ(fold_lanes(range(3, 6)), (std::vector<LaneSpan>{{3, 1}, {4, 2}}));
  EXPECT_EQ(fold_lanes(range(1, 8)), (std::vector<LaneSpan>{{1, 1}, {2, 2}, {4, 4}}));
  EXPECT_EQ(fold_lanes({0, 2, 3, 5}), (std::vector<LaneSpan>{{0, 1}, {2, 2}, {5, 1}}));
  EXPECT_TRUE(fold_lanes({}).empty());
}

TEST(Lanes, FoldDepthCountsTheBufferUnderWay) {
  EXPECT_EQ(fold_depth({}), 0);
  EXPECT_EQ(fold_depth({5}), 1);
  EXPECT_EQ(fold_depth(range(0, 2)), 2);
  EXPECT_EQ(fold_depth(range(0, 8)), 4);  // log2(8) + 1
  EXPECT_EQ(fold_depth(range(0, 16)), 5);
  EXPECT_EQ(fold_depth(range(3, 6)), 3);  // 3, 4 and 5
}

TEST(ResultSpans, FoldPiecesOfAnyRanksIntoTheWholeTree) {
  for (int lanes = 1; lanes <= 16; ++lanes)
    for (int ranks = 1; ranks <= lanes; ++ranks) {
      std::vector<LaneSpan> pieces;
      for (const auto& mine : contiguous_lanes(lanes, ranks))
        for (const LaneSpan& span : fold_lanes(mine)) pieces.push_back(span);
      std::reverse(pieces.begin(), pieces.end());  // the order of the list does not matter
      EXPECT_EQ(result_spans({}, pieces, true), (std::vector<LaneSpan>{{0, lanes}}));
    }
}

TEST(ResultSpans, CarryGoesFromRoundToRound) {
  std::vector<LaneSpan> carry = result_spans({}, {{0, 1}, {1, 1}, {2, 1}}, false);
  EXPECT_EQ(carry, (std::vector<LaneSpan>{{0, 2}, {2, 1}}));
  carry = result_spans(carry, {{3, 1}, {4, 1}, {5, 1}}, false);
  EXPECT_EQ(carry, (std::vector<LaneSpan>{{0, 4}, {4, 2}}));
  EXPECT_EQ(result_spans(carry, {{6, 1}}, true), (std::vector<LaneSpan>{{0, 7}}));
  EXPECT_EQ(result_spans(carry, {{6, 1}, {7, 1}}, false), (std::vector<LaneSpan>{{0, 8}}));
}

TEST(ResultSpans, RejectsPiecesThatOverlap) {
  EXPECT_THROW(result_spans({{0, 2}}, {{1, 1}}, false), std::invalid_argument);
  EXPECT_THROW(result_spans({}, {{0, 1}, {0, 1}}, true), std::invalid_argument);
}

TEST(EvenChunk, CutsWithoutGapsAndGivesTheFirstOneMore) {
  for (std::size_t count : {0u, 1u, 7u, 64u, 1000u})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::size_t at = 0;
      for (int r = 0; r < ranks; ++r) {
        const Interval chunk = even_chunk(count, ranks, r);
        EXPECT_EQ(chunk.begin, at);
        EXPECT_LE(chunk.size() - count / ranks, 1u);
        at = chunk.end;
      }
      EXPECT_EQ(at, count);
    }
}

}  // namespace
}  // namespace bellows
