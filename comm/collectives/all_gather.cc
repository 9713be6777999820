#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "collectives/arguments.h"
#include "collectives/windows.h"
#include "copy.h"

namespace bellows {
namespace {

// Every rank copies the intervals of each peer as soon as that peer has arrived. Cost: (P-1)/P of the bytes, one hop.
class AllGather {
 public:
  AllGather(Group& group, const MappedWindow& window, AllGatherArgs args)
      : group_(group),
        window_(window),
        args_(std::move(args)),
        element_(size_of(args_.dtype)),
        destination_(args_.destination ? static_cast<std::byte*>(args_.destination) : window.own + args_.offset) {
    check_all_gather(args_, group.world().rank, window.bytes);
    for (const AllGatherArgs::Owned& owned : args_.owned) total_ += owned.interval.size();
    streaming_ = bytes() >= kStreamingCopyBytes;
  }

  /// Small intervals travel with the announcement: a rank is done as soon as it has everybody's.
  void try_eager(Call& call) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(group_.world().world_size));
    for (const AllGatherArgs::Owned& owned : args_.owned)
      if ((sizes[static_cast<std::size_t>(owned.rank)] += owned.interval.size() * element_) > group_.eager_bytes())
        return;
    const int me = group_.world().rank;
    for (const AllGatherArgs::Owned& owned : args_.owned)
      if (owned.rank == me)
        payload_.insert(payload_.end(), window_.own + source_offset(args_, owned),
                        window_.own + source_offset(args_, owned) + owned.interval.size() * element_);
    call.payload = payload_;
    call.eager = true;
    call_ = &call;
  }

  void copy_brought(int rank) {
    const std::span<const std::byte> payload = group_.payload(rank, *call_);
    std::size_t at = 0;
    for (const AllGatherArgs::Owned& owned : args_.owned) {
      if (owned.rank != rank) continue;
      const std::size_t bytes = owned.interval.size() * element_;
      copy_bytes(destination_ + (owned.interval.begin - args_.origin) * element_, payload.data() + at, bytes, false);
      at += bytes;
    }
    group_.count_bytes_from_peers(at);
  }

  void copy_from(int rank) {
    if (call_ && rank != group_.world().rank) return copy_brought(rank);
    std::uint64_t copied = 0;
    for (const AllGatherArgs::Owned& owned : args_.owned) {
      if (owned.rank != rank) continue;
      std::byte* const to = destination_ + (owned.interval.begin - args_.origin) * element_;
      const std::byte* const from = window_.base[rank] + source_offset(args_, owned);
      const std::size_t bytes = owned.interval.size() * element_;
      if (to == from) continue;
      for (std::size_t at = 0; at < bytes; at += kStretch) {
        group_.between_stretches();
        copy_bytes(to + at, from + at, std::min(kStretch, bytes - at), streaming_);
      }
      copied += bytes;
    }
    if (rank != group_.world().rank) group_.count_bytes_from_peers(copied);
  }

  /// What `rank`, this one, owns stands where it is to go.
  bool in_place(int rank) const {
    return std::all_of(args_.owned.begin(), args_.owned.end(), [&](const AllGatherArgs::Owned& owned) {
      return owned.rank != rank || window_.own + source_offset(args_, owned) ==
                                       destination_ + (owned.interval.begin - args_.origin) * element_;
    });
  }

  std::uint64_t signature() const { return signature_of(args_).value(); }
  std::uint64_t bytes() const { return total_ * element_; }
  int priority() const { return args_.priority; }
  const char* what() const { return args_.what; }

 private:
  static constexpr std::size_t kStretch = std::size_t{256} << 10;  // bytes that are copied in about 10 microseconds

  Group& group_;
  const MappedWindow& window_;
  const AllGatherArgs args_;
  const std::size_t element_;
  std::byte* const destination_;
  std::size_t total_ = 0;
  bool streaming_ = false;
  std::vector<std::byte> payload_;
  Call* call_ = nullptr;  // if it brings the intervals; it owns this object
};

}  // namespace

std::shared_ptr<Call> make_all_gather(Group& group, const MappedWindow& window, AllGatherArgs args) {
  const auto work = std::make_shared<AllGather>(group, window, std::move(args));
  auto call = std::make_shared<Call>();
  call->kind = CallKind::kAllGather;
  call->what = work->what();
  call->signature = work->signature();
  call->bytes = work->bytes();
  call->priority = work->priority();
  work->try_eager(*call);
  call->reads_windows = !call->eager;
  if (!work->in_place(group.world().rank)) call->own_part = [work, me = group.world().rank] { work->copy_from(me); };
  call->on_arrival = [work](int rank) { work->copy_from(rank); };
  return call;
}

}  // namespace bellows
