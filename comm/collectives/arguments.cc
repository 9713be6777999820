#include "collectives/arguments.h"

#include <algorithm>
#include <stdexcept>

namespace bellows {
namespace {

[[noreturn]] void fail(const char* what, const std::string& why) {
  throw std::invalid_argument(std::string(what) + ": " + why);
}

void check_rank(const char* what, const char* thing, int rank, std::size_t world_size) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= world_size)
    fail(what,
         std::string(thing) + " of rank " + std::to_string(rank) + " in a world of " + std::to_string(world_size));
}

/// Elements up to `end` need so many bytes of something of a rank's.
void check_room(const char* what, const char* thing, int rank, std::size_t end, std::size_t needed, std::size_t bytes) {
  if (needed > bytes)
    fail(what, "elements up to " + std::to_string(end) + " need " + std::to_string(needed) + " bytes of the " + thing +
                   " of rank " + std::to_string(rank) + ", which has " + std::to_string(bytes));
}

void check_addable(const char* what, DType dtype) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
    fail(what, "cannot add elements of type " + std::string(name_of(dtype)));
}

/// Sorts the pieces and checks where they stand; returns their spans.
std::vector<LaneSpan> check_pieces(const char* what, std::vector<LanePiece>& pieces, std::size_t origin,
                                   std::size_t end, DType dtype, const std::vector<std::size_t>& window_bytes) {
  std::sort(pieces.begin(), pieces.end(),
            [](const LanePiece& a, const LanePiece& b) { return a.lanes.first < b.lanes.first; });
  std::vector<LaneSpan> spans;
  for (const LanePiece& piece : pieces) {
    check_rank(what, "piece", piece.rank, window_bytes.size());
    if (end > origin)
      check_room(what, "window", piece.rank, end, piece.offset + (end - origin) * size_of(dtype),
                 window_bytes[piece.rank]);
    spans.push_back(piece.lanes);
  }
  return spans;
}

}  // namespace

Signature& Signature::add_pieces(const std::vector<LanePiece>& pieces, const std::vector<OwnedInterval>& owned) {
  for (const LanePiece& piece : pieces) add(piece.rank, piece.lanes.first, piece.lanes.count, piece.offset);
  for (const OwnedInterval& one : owned) add(one.rank, one.interval.begin, one.interval.end);
  return *this;
}

Signature signature_of(const ReduceScatterArgs& args) {
  return Signature()
      .add(args.window.id, args.origin, args.complete, args.dtype, args.priority)
      .add_pieces(args.pieces, args.owned);
}

Signature signature_of(const AllGatherArgs& args) {
  Signature signature;
  signature.add(args.window.id, args.offset, args.origin, args.dtype, args.priority);
  for (const AllGatherArgs::Owned& owned : args.owned)
    signature.add(owned.rank, owned.interval.begin, owned.interval.end, owned.source_offset);
  return signature;
}

void check_interval(const char* what, const Interval& interval, std::size_t not_before) {
  if (interval.begin < not_before || interval.end < interval.begin)
    fail(what, "interval [" + std::to_string(interval.begin) + ", " + std::to_string(interval.end) +
                   ") is empty, out of order or before element " + std::to_string(not_before));
}

CheckedReduction check_reduce_scatter(ReduceScatterArgs& args, int rank, const std::vector<std::size_t>& window_bytes) {
  check_addable(args.what, args.dtype);
  CheckedReduction found;
  found.owned.resize(window_bytes.size());
  std::size_t end = args.origin;
  for (const OwnedInterval& owned : args.owned) {
    check_rank(args.what, "interval", owned.rank, window_bytes.size());
    auto& intervals = found.owned[owned.rank];
    check_interval(args.what, owned.interval, intervals.empty() ? args.origin : intervals.back().end);
    if (owned.interval.size() > 0) intervals.push_back(owned.interval);
    end = std::max(end, owned.interval.end);
  }
  std::vector<LaneSpan> spans;
  for (const LocalPiece& carry : args.carry) spans.push_back(carry.lanes);
  const std::vector<LaneSpan> brought =
      check_pieces(args.what, args.pieces, args.origin, end, args.dtype, window_bytes);
  spans.insert(spans.end(), brought.begin(), brought.end());
  found.program = make_fold(spans, args.complete);
  if (args.results.size() != found.program.spans.size())
    fail(args.what, std::to_string(args.results.size()) + " results given, " +
                        std::to_string(found.program.spans.size()) + " subtrees are left");
  for (std::size_t r = 0; r < args.results.size(); ++r)
    if (args.results[r].lanes != found.program.spans[r])
      fail(args.what, "result " + std::to_string(r) + " is of lanes [" + std::to_string(found.program.spans[r].first) +
                          ", " + std::to_string(found.program.spans[r].end()) + "), not of those given");
  for (const auto* pieces : {&args.carry, &args.results})
    for (const LocalPiece& piece : *pieces)
      if (!found.owned[rank].empty() && piece.data == nullptr) fail(args.what, "a carry or result has no memory");
  return found;
}

CheckedReduction check_all_reduce(AllReduceArgs& args, const std::vector<std::size_t>& window_bytes,
                                  const std::vector<std::size_t>& destination_bytes) {
  check_addable(args.what, args.dtype);
  CheckedReduction found;
  found.owned.resize(window_bytes.size());
  std::size_t end = args.origin;
  for (const OwnedInterval& owned : args.owned) {
    check_rank(args.what, "interval", owned.rank, window_bytes.size());
    check_interval(args.what, owned.interval, end);
    if (owned.interval.size() > 0) found.owned[owned.rank].push_back(owned.interval);
    end = owned.interval.end;
  }
  found.program =
      make_fold(check_pieces(args.what, args.pieces, args.origin, end, args.dtype, window_bytes), /*complete=*/true);
  for (std::size_t r = 0; end > args.origin && r < destination_bytes.size(); ++r)
    check_room(args.what, "destination", static_cast<int>(r), end,
               args.offset + (end - args.origin) * size_of(args.dtype), destination_bytes[r]);
  return found;
}

std::size_t source_offset(const AllGatherArgs& args, const AllGatherArgs::Owned& owned) {
  return owned.source_offset != AllGatherArgs::npos
             ? owned.source_offset
             : args.offset + (owned.interval.begin - args.origin) * size_of(args.dtype);
}

void check_all_gather(const AllGatherArgs& args, int rank, const std::vector<std::size_t>& window_bytes) {
  std::size_t end = args.origin;
  for (const AllGatherArgs::Owned& owned : args.owned) {
    check_interval(args.what, owned.interval, end);
    end = owned.interval.end;
    check_rank(args.what, "interval", owned.rank, window_bytes.size());
    if (owned.interval.size() > 0)
      check_room(args.what, "window", owned.rank, end,
                 source_offset(args, owned) + owned.interval.size() * size_of(args.dtype), window_bytes[owned.rank]);
  }
  const std::size_t needed = args.offset + (end - args.origin) * size_of(args.dtype);
  if (end > args.origin && !args.destination && needed > window_bytes[rank])
    fail(args.what, "elements up to " + std::to_string(end) + " do not fit into this rank's own window of " +
                        std::to_string(window_bytes[rank]) + " bytes");
}

}  // namespace bellows
