#include "routed/segments.h"

#include <algorithm>

#include "routed/plans.h"

namespace bellows {

std::size_t segment_bytes(std::size_t largest_share, int world_size) {
  constexpr std::size_t kUsual = std::size_t{1} << 20;    // a few of them in flight fill any link
  constexpr std::size_t kAtOnce = std::size_t{32} << 20;  // what one wave of all ranks may need of scratch
  constexpr std::size_t kLeast = std::size_t{64} << 10;
  // Message keys are 16 bits wide and count segments times the heights of a tree.
  const std::size_t most_segments = std::max<std::size_t>(32, 60'000 / static_cast<std::size_t>(world_size));
  const std::size_t by_scratch = std::max(kLeast, kAtOnce / static_cast<std::size_t>(std::max(1, world_size)));
  return std::max(std::min(kUsual, by_scratch), largest_share / most_segments + 64);
}

std::vector<Slice> cut_segments(const std::vector<Interval>& intervals, std::size_t elements) {
  std::vector<Slice> segments;
  std::size_t compact = 0;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    std::size_t begin = intervals[i].begin;
    while (begin < intervals[i].end) {
      if (segments.empty() || segments.back().count == elements) segments.emplace_back();
      Slice& segment = segments.back();
      const std::size_t count = std::min(intervals[i].end - begin, elements - segment.count);
      segment.parts.push_back({{begin, begin + count}, segment.count, compact, i, begin - intervals[i].begin});
      segment.count += count;
      compact += count;
      begin += count;
    }
  }
  return segments;
}

}  // namespace bellows
