#include "collectives/eager.h"

#include <algorithm>
#include <cstring>

namespace bellows {

EagerPieces::EagerPieces(const std::vector<LanePiece>& pieces, const std::vector<OwnedInterval>& owned,
                         std::size_t element, int world_size, std::size_t limit, bool wanted_by_owner)
    : element_(element), intervals_(owned.size()), wanted_by_owner_(wanted_by_owner) {
  // Quickly past everything large, however many intervals there are.
  std::size_t elements = 0;
  for (const OwnedInterval& one : owned)
    if ((elements += one.interval.size()) * element > 2 * limit * static_cast<std::size_t>(world_size)) return;
  sizes_.resize(static_cast<std::size_t>(world_size));
  offsets_.reserve(pieces.size() * owned.size());
  for (const LanePiece& piece : pieces)
    for (const OwnedInterval& one : owned) {
      std::size_t& size = sizes_[static_cast<std::size_t>(piece.rank)];
      offsets_.push_back(size);
      if (brings(piece, one)) size += one.interval.size() * element;
      if (size > limit) return;
    }
  fits_ = true;
}

std::vector<std::byte> EagerPieces::pack(int rank, const std::vector<LanePiece>& pieces,
                                         const std::vector<OwnedInterval>& owned, std::size_t origin,
                                         const std::byte* window) const {
  std::vector<std::byte> payload(sizes_[static_cast<std::size_t>(rank)]);
  for (std::size_t p = 0; p < pieces.size(); ++p)
    for (std::size_t i = 0; i < owned.size(); ++i)
      if (pieces[p].rank == rank && brings(pieces[p], owned[i]) && owned[i].interval.size() > 0)
        std::memcpy(payload.data() + offset(p, i),
                    window + pieces[p].offset + (owned[i].interval.begin - origin) * element_,
                    owned[i].interval.size() * element_);
  return payload;
}

}  // namespace bellows
