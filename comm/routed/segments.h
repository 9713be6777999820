#pragma once
#include <cstddef>
#include <vector>

#include "bellows/comm/communicator.h"

namespace bellows {

/// Up to so many elements of one owner, in order: what travels as one message.
struct Slice {
  struct Part {
    Interval interval;            ///< of the index space
    std::size_t in_segment = 0;   ///< elements of the segment before it
    std::size_t compact = 0;      ///< elements of the owner before it
    std::size_t list_index = 0;   ///< which of the owner's intervals it is of
    std::size_t in_interval = 0;  ///< elements of that interval before it
  };
  std::vector<Part> parts;
  std::size_t count = 0;
};

std::vector<Slice> cut_segments(const std::vector<Interval>& intervals, std::size_t elements);

}  // namespace bellows
