#pragma once
#include <cstddef>
#include <vector>

#include "bellows/comm/communicator.h"
#include "control.h"

namespace bellows {

/// Small sums travel with the announcement: a rank brings its pieces in the payload, and is done as soon as it has
/// everybody's, since nobody reads its window. Payload of rank r = for each of its pieces, for each owned interval that
/// is wanted of it: the elements.
class EagerPieces {
 public:
  /// `limit`: what a rank may bring. `wanted_by_owner`: an interval is brought to its owner only, so ranks leave out
  /// their own.
  EagerPieces(const std::vector<LanePiece>& pieces, const std::vector<OwnedInterval>& owned, std::size_t element,
              int world_size, std::size_t limit, bool wanted_by_owner);

  /// All payloads are small enough, alike on every rank.
  bool fits() const { return fits_; }
  /// Where interval `interval` of piece `piece` stands in the payload of the rank that brings it.
  std::size_t offset(std::size_t piece, std::size_t interval) const { return offsets_[piece * intervals_ + interval]; }
  /// What `rank`, whose window starts at `window`, brings.
  std::vector<std::byte> pack(int rank, const std::vector<LanePiece>& pieces, const std::vector<OwnedInterval>& owned,
                              std::size_t origin, const std::byte* window) const;

 private:
  bool brings(const LanePiece& piece, const OwnedInterval& owned) const {
    return !wanted_by_owner_ || piece.rank != owned.rank;
  }

  const std::size_t element_, intervals_;
  const bool wanted_by_owner_;
  bool fits_ = false;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> sizes_;  // by rank
};

}  // namespace bellows
