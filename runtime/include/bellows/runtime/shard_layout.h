#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bellows/runtime/parameter_set.h"

namespace bellows {

/// The model's index space cut in fixed chunks: no chunk crosses a unit, all have `chunk_elements` but a unit's last.
/// A function of the model alone; the gradient norm is summed along these borders, so they never depend on the world.
class ChunkTable {
 public:
  explicit ChunkTable(const ParameterSet& parameters);
  ChunkTable(const ParameterSet& parameters, std::size_t chunk_elements);

  std::size_t size() const { return chunks_.size(); }
  Interval operator[](std::size_t chunk) const { return chunks_[chunk]; }
  /// The chunk that holds `element`; size() behind the last.
  std::size_t find(std::size_t element) const;
  /// Chunks of one unit: [first, last).
  Interval of_unit(int unit) const { return units_[unit]; }
  int units() const { return static_cast<int>(units_.size()); }
  std::size_t chunk_elements() const { return chunk_elements_; }

 private:
  std::size_t chunk_elements_;
  std::vector<Interval> chunks_;   // in elements
  std::vector<Interval> units_;    // in chunks
};

/// Who owns which chunk. A value. The owner of a chunk sums its gradient in every stage; what else is sharded by it is
/// the stage's matter. Ownership is balanced per unit and in total.
class ShardLayout {
 public:
  ShardLayout() = default;
  /// The layout of a world that starts from nothing: contiguous runs in every unit.
  ShardLayout(const ChunkTable& chunks, int world_size);
  ShardLayout(std::vector<int> owners, int world_size) : owners_(std::move(owners)), world_size_(world_size) {}

  /// The layout for a new world that moves the fewest chunks: `new_rank[r]` is where old rank r is now, or -1 if it is
  /// gone. Survivors keep what their new share allows; the rest goes to those who have too little.
  ShardLayout for_world(const ChunkTable& chunks, const std::vector<int>& new_rank, int world_size) const;

  int owner(std::size_t chunk) const { return owners_[chunk]; }
  int world_size() const { return world_size_; }
  std::size_t chunks() const { return owners_.size(); }
  const std::vector<int>& owners() const { return owners_; }
  /// Chunks of `rank`, ascending; their concatenation is the rank's compact shard.
  std::vector<int> owned(int rank) const;
  std::size_t elements(const ChunkTable& chunks, int rank) const;

  std::string encode() const;
  static ShardLayout decode(const std::string& text);
  bool operator==(const ShardLayout&) const = default;

 private:
  std::vector<int> owners_;
  int world_size_ = 0;
};

/// One chunk on its way. Ranks are those of the transition world.
struct Move {
  int from = 0;
  int to = 0;
  int chunk = 0;
  bool operator==(const Move&) const = default;
};

/// How to get from "who holds what" to "who needs what": `holds[rank]` and `needs[rank]` are chunk sets (ascending) in
/// ranks of the transition world. A rank that already holds what it needs moves nothing; otherwise the source is the
/// holder with the least to send so far.
struct ReshardPlan {
  std::vector<Move> moves;          ///< ordered by (from, to, chunk)
  std::vector<int> uncovered;       ///< chunks that nobody holds
};
ReshardPlan reshard_plan(const std::vector<std::vector<int>>& holds, const std::vector<std::vector<int>>& needs);

}  // namespace bellows
