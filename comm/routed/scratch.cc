#include "routed/scratch.h"

namespace bellows {
namespace {
constexpr std::size_t kLeast = 64 << 10;
}

std::byte* ScratchPool::take(std::size_t bytes, bool* is_new) {
  std::size_t size = kLeast;
  while (size < bytes) size *= 2;
  const auto it = free_.lower_bound(size);
  std::size_t index = blocks_.size();
  *is_new = it == free_.end() || it->first > 4 * size;  // a far larger one is kept for what needs it
  if (*is_new) {
    on_new_(blocks_.emplace_back(size));
  } else {
    index = it->second;
    free_.erase(it);
  }
  taken_[blocks_[index].data()] = index;
  return blocks_[index].data();
}

void ScratchPool::give(std::byte* block) {
  const auto it = taken_.find(block);
  free_.emplace(blocks_[it->second].size(), it->second);
  taken_.erase(it);
}

}  // namespace bellows
