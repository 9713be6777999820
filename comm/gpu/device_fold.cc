#include "gpu/device_fold.h"

#include <stdexcept>

namespace bellows {

DeviceFold for_device(const FoldProgram& program) {
  DeviceFold fold;
  fold.sources = program.sources;
  fold.results = static_cast<int>(program.results.size());
  fold.balanced = program.balanced;
  std::vector<int> result_of(static_cast<std::size_t>(program.sources) + program.steps.size(), -1);
  for (int r = 0; r < fold.results; ++r) result_of[program.results[r]] = r;

  std::vector<int> slot_of(program.steps.size(), -1), free;
  // Every value is used once, so its slot is free from there on.
  const auto operand = [&](int value) {
    if (value < program.sources) return value;
    const int slot = slot_of[value - program.sources];
    free.push_back(slot);
    return ~slot;
  };
  for (std::size_t s = 0; s < program.steps.size(); ++s) {
    DeviceFold::Op op;
    op.left = operand(program.steps[s].left);
    op.right = operand(program.steps[s].right);
    op.result = result_of[program.sources + s];
    if (op.result < 0) {
      if (free.empty()) free.push_back(fold.slots++);
      op.slot = slot_of[s] = free.back();
      free.pop_back();
    }
    fold.ops.push_back(op);
  }
  if (fold.slots > kMaxFoldSlots)
    throw std::invalid_argument(std::to_string(fold.slots) +
                                " partial sums of a reduction wait for neighbours; a GPU keeps " +
                                std::to_string(kMaxFoldSlots));
  for (int r = 0; r < fold.results; ++r)
    if (program.results[r] < program.sources) fold.copies.push_back({program.results[r], r});
  return fold;
}

}  // namespace bellows
