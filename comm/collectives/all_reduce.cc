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

// Every rank reads, for the elements that it owns, everybody's pieces once, and writes the sums into every rank's
// memory in the same pass. Cost: as many bytes written as a reduce-scatter and a gather write, but nothing is read
// twice, and ranks wait for each other once less.
class AllReduce {
 public:
  AllReduce(Group& group, const MappedWindow& window, const MappedWindow& destination, AllReduceArgs args)
      : group_(group),
        window_(window),
        destination_(destination),
        args_(std::move(args)),
        element_(size_of(args_.dtype)),
        checked_(check_all_reduce(args_, window.bytes, destination.bytes)),
        mine_(checked_.owned[group.world().rank]),
        program_(checked_.program) {
    if (args_.sums != destination_.own + args_.offset)
      throw std::invalid_argument(std::string(args_.what) + ": `sums` is not where `destination` and `offset` point");
    for (const OwnedInterval& owned : args_.owned) total_ += owned.interval.size();
    for (const Interval& interval : mine_) mine_bytes_ += interval.size() * element_;
    eager_.emplace(args_.pieces, args_.owned, element_, group.world().world_size, group.eager_bytes(), false);
  }

  /// Makes `call` bring this rank's pieces along if they are small: then everybody adds everything up.
  void try_eager(Call& call) {
    if (!eager_->fits()) return;
    payload_ = eager_->pack(group_.world().rank, args_.pieces, args_.owned, args_.origin, window_.own);
    call.payload = payload_;
    call.eager = true;
    call_ = &call;
  }

  void add_up() {
    if (args_.pieces.empty()) return;
    if (call_) return add_up_brought();
    const int me = group_.world().rank;
    FoldStretch fold(program_, args_.dtype);
    for (const LanePiece& piece : args_.pieces) fold.sources.push_back(window_.base[piece.rank] + piece.offset);
    fold.results = {destination_.own + args_.offset};
    for (int r = 0; r < group_.world().world_size; ++r)
      if (r != me) fold.copies.push_back(destination_.base[r] + args_.offset);
    // Peers read the sums next, and a line that another core holds modified is the slowest of all to read.
    fold.stores.streaming = mine_bytes_ >= kStreamingWindowBytes;
    fold.stores.ahead = mine_bytes_ >= kStreamingBytes;
    std::uint64_t from_peers = 0;
    for (const Interval& interval : mine_)
      for (std::size_t begin = interval.begin; begin < interval.end; begin += kStretchBytes / element_) {
        group_.between_stretches();
        fold.run(begin - args_.origin, std::min(kStretchBytes / element_, interval.end - begin));
      }
    for (const LanePiece& piece : args_.pieces) from_peers += piece.rank != me ? mine_bytes_ : 0;
    group_.count_bytes_from_peers(from_peers);
  }

  std::uint64_t signature() const {
    Signature signature;
    signature.add(args_.window.id, args_.destination.id, args_.origin, args_.offset, args_.dtype, args_.priority);
    signature.add_pieces(args_.pieces, args_.owned);
    return signature.value();
  }
  std::uint64_t bytes() const { return total_ * element_; }
  const AllReduceArgs& args() const { return args_; }

 private:
  void add_up_brought() {
    std::uint64_t from_peers = 0;
    std::vector<const std::byte*> sources(args_.pieces.size());
    for (std::size_t i = 0; i < args_.owned.size(); ++i) {
      const Interval& interval = args_.owned[i].interval;
      const std::size_t place = (interval.begin - args_.origin) * element_;
      for (std::size_t p = 0; p < args_.pieces.size(); ++p) {
        const LanePiece& piece = args_.pieces[p];
        const bool own = piece.rank == group_.world().rank;
        sources[p] =
            own ? window_.own + piece.offset + place : group_.payload(piece.rank, *call_).data() + eager_->offset(p, i);
        from_peers += own ? 0 : interval.size() * element_;
      }
      std::byte* const result = destination_.own + args_.offset + place;
      run_fold(program_, args_.dtype, sources.data(), &result, interval.size());
    }
    group_.count_bytes_from_peers(from_peers);
  }

  Group& group_;
  const MappedWindow& window_;
  const MappedWindow& destination_;
  AllReduceArgs args_;
  const std::size_t element_;
  const CheckedReduction checked_;
  const std::vector<Interval>& mine_;
  std::size_t total_ = 0;
  std::size_t mine_bytes_ = 0;
  const FoldProgram& program_;
  std::optional<EagerPieces> eager_;
  std::vector<std::byte> payload_;
  Call* call_ = nullptr;  // if it brings the pieces; it owns this object
};

}  // namespace

std::shared_ptr<Call> make_all_reduce(Group& group, const MappedWindow& window, const MappedWindow& destination,
                                      AllReduceArgs args) {
  const auto work = std::make_shared<AllReduce>(group, window, destination, std::move(args));
  auto call = std::make_shared<Call>();
  call->kind = CallKind::kAllReduce;
  call->what = work->args().what;
  call->signature = work->signature();
  call->bytes = work->bytes();
  call->priority = work->args().priority;
  work->try_eager(*call);
  call->reads_windows = call->writes_windows = !call->eager;
  call->on_all_arrived = [work] { work->add_up(); };
  return call;
}

}  // namespace bellows
