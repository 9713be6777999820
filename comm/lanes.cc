#include "bellows/comm/lanes.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace bellows {
namespace {

void check_counts(int lanes, int world_size) {
  if (lanes < 0 || world_size < 1)
    throw std::invalid_argument("cannot give " + std::to_string(lanes) + " lanes to " + std::to_string(world_size) +
                                " ranks");
}

/// Calls `on_depth` with the height of the stack each time a lane has been pushed and not yet folded.
template <class OnDepth>
std::vector<LaneSpan> push_all(const std::vector<int>& lanes, OnDepth on_depth) {
  std::vector<LaneSpan> stack;
  for (const int lane : lanes) {
    stack.push_back({lane, 1});
    on_depth(static_cast<int>(stack.size()));
    while (stack.size() > 1 && lane_siblings(stack[stack.size() - 2], stack.back())) {
      stack[stack.size() - 2].count *= 2;
      stack.pop_back();
    }
  }
  return stack;
}

}  // namespace

LaneAssignment contiguous_lanes(int lanes, int world_size) {
  check_counts(lanes, world_size);
  LaneAssignment assignment(world_size);
  int next = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    const int share = lanes / world_size + (rank < lanes % world_size ? 1 : 0);
    for (int i = 0; i < share; ++i) assignment[rank].push_back(next++);
  }
  return assignment;
}

LaneAssignment strided_lanes(int lanes, int world_size) {
  check_counts(lanes, world_size);
  LaneAssignment assignment(world_size);
  for (int lane = 0; lane < lanes; ++lane) assignment[lane % world_size].push_back(lane);
  return assignment;
}

bool lane_siblings(LaneSpan left, LaneSpan right) {
  return left.count == right.count && left.end() == right.first && left.first % (2 * left.count) == 0;
}

std::vector<LaneSpan> fold_lanes(const std::vector<int>& lanes) {
  return push_all(lanes, [](int) {});
}

int fold_depth(const std::vector<int>& lanes) {
  int deepest = 0;
  push_all(lanes, [&](int depth) { deepest = std::max(deepest, depth); });
  return deepest;
}

}  // namespace bellows
