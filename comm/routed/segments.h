#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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

/// The elements of every owner, cut alike by every rank. Segment s of all owners together is a wave.
class OwnerSegments {
 public:
  /// `owned[r]`: intervals of rank r, none of them empty; `element`: bytes of one.
  OwnerSegments(const std::vector<std::vector<Interval>>& owned, std::size_t element);
  const std::vector<Slice>& operator[](int owner) const { return slices_[owner]; }
  /// Segments of the owner that has most.
  std::size_t waves() const { return waves_; }

 private:
  std::vector<std::vector<Slice>> slices_;
  std::size_t waves_ = 0;
};

/// Which owners' segments travel together from one rank to another: those that become ready at the same level of their
/// trees of ranks. One message for each level that has any.
class PairMessages {
 public:
  /// The level at which an owner's part is ready to go from `from` to `to`; nothing if it does not go that way.
  using Level = std::function<std::optional<int>(int owner, int from, int to)>;
  PairMessages(const OwnerSegments& segments, int world_size, Level level)
      : segments_(segments), world_size_(world_size), level_(std::move(level)) {}

  struct Message {
    std::uint16_t key = 0;  ///< counts the messages of the pair, alike on both sides
    std::vector<int> owners;
  };
  std::vector<Message> of(int from, int to, std::size_t segment);

 private:
  const OwnerSegments& segments_;
  const int world_size_;
  const Level level_;
  std::map<std::pair<int, int>, std::map<int, std::vector<int>>> owners_;  // of a pair, by level
};

}  // namespace bellows
