#include "gpu/gpu_plans.h"

#include <algorithm>
#include <stdexcept>

#include "collectives/arguments.h"
#include "routed/segments.h"

namespace bellows {
namespace {

GpuMemory in_window(int rank, std::size_t offset) { return {GpuMemory::kWindow, rank, offset, nullptr}; }
GpuMemory in_scratch(std::size_t offset) { return {GpuMemory::kScratch, 0, offset, nullptr}; }

/// A partial sum on its way to an owner.
struct Brought {
  LaneSpan lanes;
  int rank = 0;
  int piece = -1;                     ///< the only piece in it; -1: a sum that its rank makes first, or a carry
  const LocalPiece* carry = nullptr;  ///< then it is this rank's own
};

class ReduceScatterPlan {
 public:
  ReduceScatterPlan(const GpuPlace& place, const ReduceScatterArgs& args, GpuAccess access, std::size_t wave_bytes,
                    GpuReduceScatter& plan)
      : args_(args),
        checked_(check_reduce_scatter(args_, place.rank, place.window_bytes)),
        pieces_(args_.pieces),
        owned_(checked_.owned),
        by_messages_(access == GpuAccess::kMessages),
        n_(place.world_size()),
        me_(place.rank),
        element_(size_of(args.dtype)),
        plan_(plan) {
    plan_.dtype = args.dtype;
    plan_.signature = signature_of(args_).add(by_messages_).value();
    gather_spans();
    cut(wave_bytes);
    for (std::size_t s = 0; s < waves_; ++s) add_wave(s);
    note_even_chunks();
  }

 private:
  /// What each rank brings to an owner that is another: its pieces, added as far as they go if that saves messages.
  std::vector<Brought> brought_by(int rank, DeviceFold* program) const {
    std::vector<LaneSpan> spans;
    std::vector<int> pieces;
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      if (pieces_[p].rank != rank) continue;
      spans.push_back(pieces_[p].lanes);
      pieces.push_back(static_cast<int>(p));
    }
    const FoldProgram fold = make_fold(spans, false);
    std::vector<Brought> brought;
    if (by_messages_ && rank != me_ && !fold.steps.empty()) {
      for (const LaneSpan& span : fold.spans) brought.push_back({span, rank});
    } else {
      for (std::size_t i = 0; i < spans.size(); ++i) brought.push_back({spans[i], rank, pieces[i]});
    }
    if (program) *program = for_device(fold);
    return brought;
  }

  void gather_spans() {
    brought_.resize(n_);
    std::vector<Brought> all;
    for (const LocalPiece& carry : args_.carry) all.push_back({carry.lanes, me_, -1, &carry});
    for (int r = 0; r < n_; ++r) {
      brought_[r] = brought_by(r, r == me_ ? &plan_.outgoing : nullptr);
      all.insert(all.end(), brought_[r].begin(), brought_[r].end());
    }
    const auto first_piece = all.begin() + static_cast<std::ptrdiff_t>(args_.carry.size());
    std::sort(first_piece, all.end(), [](const Brought& a, const Brought& b) { return a.lanes.first < b.lanes.first; });
    std::vector<LaneSpan> spans;
    for (const Brought& one : all) spans.push_back(one.lanes);
    const FoldProgram whole = make_fold(spans, args_.complete);
    plan_.incoming = for_device(whole);
    incoming_ = std::move(all);
  }

  void cut(std::size_t wave_bytes) {
    // Sums that stand in scratch at once, of one segment each. The same on every rank, so from what all know: pieces
    // bound what is left of them.
    const std::size_t streams = std::max<std::size_t>(1, 2 * pieces_.size());
    const std::size_t elements =
        by_messages_ ? std::max<std::size_t>(1024, wave_bytes / (streams * element_)) : ~std::size_t{0};
    for (const auto& intervals : owned_) {
      segments_.push_back(cut_segments(intervals, elements));
      waves_ = std::max(waves_, segments_.back().size());
    }
  }

  std::size_t place_of(const LanePiece& piece, std::size_t element) const {
    return piece.offset + (element - args_.origin) * element_;
  }
  GpuMemory local(const LocalPiece& piece, const Slice::Part& part) const {
    const std::size_t element = piece.in_place ? part.interval.begin - args_.origin : part.compact;
    GpuMemory memory;
    memory.address = static_cast<std::byte*>(piece.data) + element * element_;
    return memory;
  }

  /// Scratch that stands to multiples of 16 bytes as `like` does, so that folds move whole packs.
  std::size_t take(std::size_t bytes, std::size_t like) {
    const std::size_t at = (scratch_ + 15) / 16 * 16 + like % 16;
    scratch_ = at + bytes;
    return at;
  }

  void add_wave(std::size_t s) {
    GpuReduceScatter::Wave& wave = plan_.waves.emplace_back();
    scratch_ = 0;
    for (int i = 1; by_messages_ && i < n_; ++i) {
      const int owner = (me_ + i) % n_;
      if (s < segments_[owner].size()) send_to(owner, segments_[owner][s], wave);
    }
    if (s < segments_[me_].size()) fold_own(segments_[me_][s], wave);
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, scratch_);
  }

  /// Part by part, and in each the sums in lane order: the owner expects them so.
  void send_to(int owner, const Slice& segment, GpuReduceScatter::Wave& wave) {
    for (const Slice::Part& part : segment.parts) {
      const std::size_t bytes = part.interval.size() * element_;
      if (plan_.outgoing.ops.empty()) {
        for (const Brought& one : brought_[me_])
          wave.sends.push_back({owner, in_window(me_, place_of(pieces_[one.piece], part.interval.begin)), bytes});
        continue;
      }
      GpuReduceScatter::Fold fold{&plan_.outgoing, {}, {}, part.interval.size()};
      std::size_t like = 0;
      for (const Brought& one : brought_[me_]) {
        fold.sources.push_back(in_window(me_, place_of(pieces_[one.piece], part.interval.begin)));
        like = fold.sources.back().offset;
      }
      for (int r = 0; r < plan_.outgoing.results; ++r) {
        fold.results.push_back(in_scratch(take(bytes, like)));
        wave.sends.push_back({owner, fold.results.back(), bytes});
      }
      wave.before.push_back(std::move(fold));
    }
  }

  void fold_own(const Slice& segment, GpuReduceScatter::Wave& wave) {
    for (const Slice::Part& part : segment.parts) {
      const std::size_t bytes = part.interval.size() * element_;
      GpuReduceScatter::Fold fold{&plan_.incoming, {}, {}, part.interval.size()};
      for (const Brought& one : incoming_) {
        if (one.carry) {
          fold.sources.push_back(local(*one.carry, part));
        } else if (one.rank == me_ || !by_messages_) {
          fold.sources.push_back(in_window(one.rank, place_of(pieces_[one.piece], part.interval.begin)));
        } else {
          const std::size_t like = (part.interval.begin - args_.origin) * element_;
          fold.sources.push_back(in_scratch(take(bytes, like)));
          wave.receives.push_back({one.rank, fold.sources.back(), bytes});
        }
      }
      for (const LocalPiece& result : args_.results) fold.results.push_back(local(result, part));
      if (!fold.sources.empty()) wave.after.push_back(std::move(fold));
    }
  }

  void note_even_chunks() {
    const std::size_t share = owned_[0].empty() ? 0 : owned_[0].front().size();
    bool even = args_.carry.empty() && args_.complete && args_.results.size() == 1 && share > 0 &&
                static_cast<int>(pieces_.size()) == n_;
    for (int r = 0; even && r < n_; ++r) {
      even = owned_[r].size() == 1 && owned_[r].front().size() == share &&
             owned_[r].front().begin == owned_[0].front().begin + static_cast<std::size_t>(r) * share;
      even = even && std::count_if(pieces_.begin(), pieces_.end(), [&](const auto& p) { return p.rank == r; }) == 1;
    }
    if (!even) return;
    plan_.even = true;
    plan_.even_count = share;
    for (const LanePiece& piece : pieces_)
      if (piece.rank == me_) plan_.even_offset = place_of(piece, owned_[0].front().begin);
    plan_.even_result = local(args_.results[0], segments_[me_].front().parts.front()).address;
  }

  ReduceScatterArgs args_;  // pieces in lane order
  const CheckedReduction checked_;
  const std::vector<LanePiece>& pieces_;
  const std::vector<std::vector<Interval>>& owned_;  // by rank
  const bool by_messages_;
  const int n_, me_;
  const std::size_t element_;
  GpuReduceScatter& plan_;
  std::vector<std::vector<Brought>> brought_;  // by rank
  std::vector<Brought> incoming_;
  std::vector<std::vector<Slice>> segments_;  // by owner
  std::size_t waves_ = 0, scratch_ = 0;
};

}  // namespace

void plan_gpu_reduce_scatter(const GpuPlace& place, const ReduceScatterArgs& args, GpuAccess access,
                             std::size_t wave_bytes, GpuReduceScatter* plan) {
  ReduceScatterPlan(place, args, access, wave_bytes, *plan);
}

GpuAllGather plan_gpu_all_gather(const GpuPlace& place, std::byte* own_window, const AllGatherArgs& args) {
  const std::size_t element = size_of(args.dtype);
  std::byte* const destination =
      args.destination ? static_cast<std::byte*>(args.destination) : (own_window ? own_window + args.offset : nullptr);
  GpuAllGather plan;
  check_all_gather(args, place.rank, place.window_bytes);
  for (const AllGatherArgs::Owned& owned : args.owned) {
    if (owned.interval.size() == 0) continue;
    GpuAllGather::Part part;
    part.rank = owned.rank;
    part.source = source_offset(args, owned);
    part.bytes = owned.interval.size() * element;
    part.destination = destination + (owned.interval.begin - args.origin) * element;
    plan.parts.push_back(part);
  }
  plan.signature = signature_of(args).value();
  plan.even = static_cast<int>(plan.parts.size()) == place.world_size();
  for (int r = 0; plan.even && r < place.world_size(); ++r)
    plan.even =
        plan.parts[r].rank == r && plan.parts[r].bytes == plan.parts[0].bytes &&
        plan.parts[r].destination == plan.parts[0].destination + static_cast<std::size_t>(r) * plan.parts[0].bytes;
  return plan;
}

}  // namespace bellows
