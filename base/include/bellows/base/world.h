#pragma once
#include <cstdint>

namespace bellows {

/// Where this process stands in one generation. A value: made by the membership, never changed.
struct World {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;   ///< rank among the ranks of the same host
  int local_size = 1;   ///< number of ranks on the same host
  std::uint64_t generation = 0;

  bool operator==(const World&) const = default;
};

}  // namespace bellows
