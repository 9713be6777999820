#pragma once
#include <vector>

#include "fold.h"

namespace bellows {

/// A FoldProgram (fold.h) as a device carries it out, every thread for its own elements: outcomes that wait for their
/// neighbour stand in few numbered slots, and everything else goes from memory to memory.
struct DeviceFold {
  /// value = left + right. An operand >= 0 is a source, one < 0 the slot ~operand. The outcome goes to `slot` or, if it
  /// is not added to anything any more, to `result`; the other one is -1.
  struct Op {
    int left = 0;
    int right = 0;
    int slot = -1;
    int result = -1;
  };
  /// A source that nothing is added to. Done after all ops.
  struct Copy {
    int source = 0;
    int result = 0;
  };
  int sources = 0;
  int results = 0;
  int slots = 0;
  std::vector<Op> ops;
  std::vector<Copy> copies;
  bool balanced = false;  ///< as FoldProgram::balanced
};

/// As many outcomes may wait at once; the lane tree of 2^31 neighbouring lanes needs fewer.
inline constexpr int kMaxFoldSlots = 64;

/// Throws std::invalid_argument if more than kMaxFoldSlots sums would have to wait, which takes that many gaps.
DeviceFold for_device(const FoldProgram& program);

}  // namespace bellows
