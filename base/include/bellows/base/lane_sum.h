#pragma once
#include "bellows/base/dtype.h"

namespace bellows {

/// The sum over lanes in the order of the lane tree, for one element: values are pushed in lane order on a stack,
/// finished neighbours of equal size are added at once, and what is left at the end is added from the right. A balanced
/// binary tree where `lanes` is a power of two; a function of `lanes` alone everywhere. `load(lane)` gives one lane's
/// value. lanes from 1 to 2^31 - 1; the same source for CPU and CUDA.
template <class T, class Load>
BELLOWS_HD inline T lane_tree_sum(int lanes, const Load& load) {
  T stack[32];  // one entry per level of the tree
  int depth = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    T value = load(lane);
    for (int finished = lane; finished & 1; finished >>= 1) value = stack[--depth] + value;
    stack[depth++] = value;
  }
  T sum = stack[--depth];
  while (depth > 0) sum = stack[--depth] + sum;
  return sum;
}

}  // namespace bellows
