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

OwnerSegments::OwnerSegments(const std::vector<std::vector<Interval>>& owned, std::size_t element) {
  std::size_t largest = 0;
  for (const auto& intervals : owned) {
    std::size_t share = 0;
    for (const Interval& interval : intervals) share += interval.size() * element;
    largest = std::max(largest, share);
  }
  const std::size_t bytes = segment_bytes(largest, static_cast<int>(owned.size()));
  for (const auto& intervals : owned) {
    slices_.push_back(cut_segments(intervals, std::max<std::size_t>(1, bytes / element)));
    waves_ = std::max(waves_, slices_.back().size());
  }
}

std::vector<PairMessages::Message> PairMessages::of(int from, int to, std::size_t segment) {
  const auto [it, fresh] = owners_.try_emplace({from, to});
  if (fresh)
    for (int owner = 0; owner < world_size_; ++owner)
      if (const auto level = segments_[owner].empty() ? std::nullopt : level_(owner, from, to))
        it->second[*level].push_back(owner);
  std::vector<Message> messages;
  std::size_t index = 0;
  for (const auto& [level, owners] : it->second) {
    Message message;
    message.key = static_cast<std::uint16_t>(segment * it->second.size() + index++);
    for (const int owner : owners)
      if (segment < segments_[owner].size()) message.owners.push_back(owner);
    if (!message.owners.empty()) messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace bellows
