#pragma once
#include <cstdint>
#include <vector>

namespace bellows {

/// Lanes [first, first + count) as one finished partial sum: a complete subtree of the lane tree.
struct LaneSpan {
  int first = 0;
  int count = 0;
  int end() const { return first + count; }
  bool operator==(const LaneSpan&) const = default;
};

/// Who computes which lanes: `lanes[rank]` is ascending, and every lane of [0, V) stands exactly once.
using LaneAssignment = std::vector<std::vector<int>>;

/// Rank r gets a contiguous run; the first V % world_size ranks one lane more. 8 lanes on 3 ranks: 3+3+2.
LaneAssignment contiguous_lanes(int lanes, int world_size);
/// Round t covers lanes t*n ... t*n+n-1, rank r the r-th of them.
LaneAssignment strided_lanes(int lanes, int world_size);

/// The lane tree: leaves are pushed in lane order on a stack, and two finished neighbours of equal size that form an
/// aligned subtree are added at once (left + right); at the end what is left on the stack is added from the right.
/// For V a power of two this is the balanced binary tree; for any V it is a function of V alone, never of who adds.
/// True if `left` and `right` are added to each other in the tree as soon as both are finished.
bool lane_siblings(LaneSpan left, LaneSpan right);

/// The fewest complete subtrees that cover exactly `lanes` (ascending): what a rank is left with after folding.
std::vector<LaneSpan> fold_lanes(const std::vector<int>& lanes);

/// Buffers alive at once while folding `lanes` one after another, the one being computed included.
int fold_depth(const std::vector<int>& lanes);

}  // namespace bellows
