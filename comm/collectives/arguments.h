#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bellows/comm/communicator.h"
#include "fold.h"

namespace bellows {

// What must hold of the arguments of a collective, whoever carries it out: shared memory, messages, GPUs. Everything
// that does not is std::invalid_argument, which names the call and the value.

/// A hash of fields that must agree between the ranks.
class Signature {
 public:
  template <class... Fields>
  Signature& add(Fields... fields) {
    (mix(static_cast<std::uint64_t>(fields)), ...);
    return *this;
  }
  Signature& add_pieces(const std::vector<LanePiece>& pieces, const std::vector<OwnedInterval>& owned);
  std::uint64_t value() const { return value_; }

 private:
  void mix(std::uint64_t field) {
    value_ = (value_ ^ field) * 0x9e3779b97f4a7c15u;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value_ = 0x2545f4914f6cdd1du;
};
/// Of what all ranks pass alike.
Signature signature_of(const ReduceScatterArgs& args);
Signature signature_of(const AllGatherArgs& args);

/// What was found while checking.
struct CheckedReduction {
  std::vector<std::vector<Interval>> owned;  ///< by rank, none of them empty
  FoldProgram program;                       ///< over the carries, then the pieces in lane order
};
/// Puts the pieces into lane order. `window_bytes`: of each rank's window.
CheckedReduction check_reduce_scatter(ReduceScatterArgs& args, int rank, const std::vector<std::size_t>& window_bytes);
/// The same; owners may not overlap here. `destination_bytes`: of each rank's destination.
CheckedReduction check_all_reduce(AllReduceArgs& args, const std::vector<std::size_t>& window_bytes,
                                  const std::vector<std::size_t>& destination_bytes);
void check_all_gather(const AllGatherArgs& args, int rank, const std::vector<std::size_t>& window_bytes);

/// Bytes from the start of the owner's window to `owned`.
std::size_t source_offset(const AllGatherArgs& args, const AllGatherArgs::Owned& owned);

/// Throws std::invalid_argument unless ascending, disjoint and not before `not_before`.
void check_interval(const char* what, const Interval& interval, std::size_t not_before);

}  // namespace bellows
