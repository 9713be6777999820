#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "bellows/base/memory.h"

namespace bellows {

/// Memory for messages and partial sums that is never given back to the system: its first touch costs more than many
/// copies. Blocks are powers of two. From one thread at a time.
class ScratchPool {
 public:
  /// `on_new` is told of each block before it is first used.
  explicit ScratchPool(std::function<void(const SharedMemory&)> on_new) : on_new_(std::move(on_new)) {}

  /// At least `bytes`; `*is_new` is set if they had to be made.
  std::byte* take(std::size_t bytes, bool* is_new);
  void give(std::byte* block);

 private:
  const std::function<void(const SharedMemory&)> on_new_;
  std::vector<SharedMemory> blocks_;
  std::multimap<std::size_t, std::size_t> free_;   // size -> index
  std::map<const std::byte*, std::size_t> taken_;  // -> index
};

}  // namespace bellows
