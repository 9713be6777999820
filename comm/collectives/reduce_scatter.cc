#include <algorithm>
#include <optional>
#include <stdexcept>

#include "collectives/arguments.h"
#include "collectives/eager.h"
#include "collectives/fold_stretch.h"
#include "collectives/windows.h"
#include "fold.h"

namespace bellows {
namespace {

// Every rank reads, for the elements that it owns, its carries and everybody's pieces once, and writes the sums once.
// Cost: (P-1)/P of the bytes cross between ranks, in one hop, with no buffer in between.
class ReduceScatter {
 public:
  ReduceScatter(Group& group, const MappedWindow& window, ReduceScatterArgs args)
      : group_(group),
        window_(window),
        args_(std::move(args)),
        element_(size_of(args_.dtype)),
        checked_(check_reduce_scatter(args_, group.world().rank, window.bytes)),
        mine_(checked_.owned[group.world().rank]),
        program_(checked_.program) {
    for (const Interval& interval : mine_) owned_ += interval.size();
    eager_.emplace(args_.pieces, args_.owned, element_, group.world().world_size, group.eager_bytes(), true);
  }

  /// Makes `call` bring this rank's pieces along if they are small.
  void try_eager(Call& call) {
    if (!eager_->fits()) return;
    payload_ = eager_->pack(group_.world().rank, args_.pieces, args_.owned, args_.origin, window_.own);
    call.payload = payload_;
    call.eager = true;
    call_ = &call;
  }

  void add_up() {
    if (args_.results.empty()) return;
    if (call_) return add_up_brought();
    std::size_t compact = 0;
    for (const Interval& interval : mine_) {
      for (std::size_t begin = interval.begin; begin < interval.end; begin += kStretchBytes / element_) {
        group_.between_stretches();
        add_stretch(begin, std::min(kStretchBytes / element_, interval.end - begin), compact + begin - interval.begin);
      }
      compact += interval.size();
    }
    std::uint64_t from_peers = 0;
    for (const LanePiece& piece : args_.pieces)
      if (piece.rank != group_.world().rank) from_peers += compact * element_;
    group_.count_bytes_from_peers(from_peers);
  }

  std::uint64_t signature() const { return signature_of(args_).value(); }
  std::uint64_t bytes() const { return owned_ * element_; }
  int priority() const { return args_.priority; }
  const char* what() const { return args_.what; }

 private:
  std::byte* local(const LocalPiece& piece, std::size_t element, std::size_t compact) const {
    return static_cast<std::byte*>(piece.data) + (piece.in_place ? element - args_.origin : compact) * element_;
  }

  void add_up_brought() {
    std::size_t compact = 0;
    std::uint64_t from_peers = 0;
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> results;
    for (std::size_t i = 0; i < args_.owned.size(); ++i) {
      const auto& [owner, interval] = args_.owned[i];
      if (owner != group_.world().rank) continue;
      sources.clear();
      results.clear();
      for (const LocalPiece& carry : args_.carry) sources.push_back(local(carry, interval.begin, compact));
      for (std::size_t p = 0; p < args_.pieces.size(); ++p) {
        const LanePiece& piece = args_.pieces[p];
        if (piece.rank == owner) {
          sources.push_back(window_.own + piece.offset + (interval.begin - args_.origin) * element_);
        } else {
          sources.push_back(group_.payload(piece.rank, *call_).data() + eager_->offset(p, i));
          from_peers += interval.size() * element_;
        }
      }
      for (const LocalPiece& result : args_.results) results.push_back(local(result, interval.begin, compact));
      run_fold(program_, args_.dtype, sources.data(), results.data(), interval.size());
      compact += interval.size();
    }
    group_.count_bytes_from_peers(from_peers);
  }

  void add_stretch(std::size_t element, std::size_t count, std::size_t compact) {
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> results;
    for (const LocalPiece& carry : args_.carry) sources.push_back(local(carry, element, compact));
    for (const LanePiece& piece : args_.pieces)
      sources.push_back(window_.base[piece.rank] + piece.offset + (element - args_.origin) * element_);
    for (const LocalPiece& result : args_.results) results.push_back(local(result, element, compact));
    // Past the caches where the sum is larger than they are, and where peers are to read it next (it lies in a window):
    // a line that another core holds modified is the slowest of all to read. Never onto a place that was read just now.
    const bool streaming = bytes() >= (args_.results[0].in_place ? kStreamingWindowBytes : kStreamingBytes) &&
                           std::find(sources.begin(), sources.end(), results[0]) == sources.end();
    run_fold(program_, args_.dtype, sources.data(), results.data(), count, {streaming, bytes() >= kStreamingBytes, {}});
  }

  Group& group_;
  const MappedWindow& window_;
  ReduceScatterArgs args_;
  const std::size_t element_;
  const CheckedReduction checked_;
  const std::vector<Interval>& mine_;
  const FoldProgram& program_;
  std::size_t owned_ = 0;
  std::optional<EagerPieces> eager_;
  std::vector<std::byte> payload_;
  Call* call_ = nullptr;  // if it brings the pieces; it owns this object
};

}  // namespace

std::vector<LaneSpan> result_spans(const std::vector<LaneSpan>& carry, std::vector<LaneSpan> pieces, bool complete) {
  std::sort(pieces.begin(), pieces.end(), [](LaneSpan a, LaneSpan b) { return a.first < b.first; });
  std::vector<LaneSpan> spans(carry);
  spans.insert(spans.end(), pieces.begin(), pieces.end());
  return make_fold(spans, complete).spans;
}

std::shared_ptr<Call> make_reduce_scatter(Group& group, const MappedWindow& window, ReduceScatterArgs args) {
  const auto work = std::make_shared<ReduceScatter>(group, window, std::move(args));
  auto call = std::make_shared<Call>();
  call->kind = CallKind::kReduceScatter;
  call->what = work->what();
  call->signature = work->signature();
  call->bytes = work->bytes();
  call->priority = work->priority();
  work->try_eager(*call);
  call->reads_windows = !call->eager;
  call->on_all_arrived = [work] { work->add_up(); };
  return call;
}

}  // namespace bellows
