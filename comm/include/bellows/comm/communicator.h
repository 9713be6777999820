#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/base/dtype.h"
#include "bellows/base/error.h"
#include "bellows/base/memory.h"
#include "bellows/base/mutex.h"
#include "bellows/base/world.h"
#include "bellows/comm/bootstrap.h"
#include "bellows/comm/lanes.h"
#include "bellows/comm/work.h"

namespace bellows {

class Buffer;  // base/device.h
class Device;

/// Names a piece of every rank's SharedMemory that the ranks of one communicator may read.
/// Made by Communicator::expose; dies with the communicator, the memory does not.
struct Window {
  int id = -1;
  bool valid() const { return id >= 0; }
};

/// Elements [begin, end) of a flat index space.
struct Interval {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// Elements that a rank owns.
struct OwnedInterval {
  int rank = 0;
  Interval interval;
  bool operator==(const OwnedInterval&) const = default;
};
/// The intervals among `owned` that are `rank`'s, in order.
std::vector<Interval> intervals_of(const std::vector<OwnedInterval>& owned, int rank);

/// One finished partial sum that a rank brings to a reproducible reduction.
struct LanePiece {
  int rank = 0;              ///< who holds it
  LaneSpan lanes;            ///< what it is the sum of
  std::size_t offset = 0;    ///< byte offset in that rank's window of the element `origin` of the index space
};

/// A partial sum in this rank's own memory: one element per element that it owns, in order (compact), or, if `in_place`,
/// `data` is where element `origin` of the index space stands and every element has its canonical place behind it.
/// In place, a result may lie in the very window that peers read: they never read the elements that this rank owns.
struct LocalPiece {
  LaneSpan lanes;
  void* data = nullptr;
  bool in_place = false;
};

/// The reproducible reduce-scatter: every rank brings pieces of the same stretch of a flat index space, and each
/// owner adds, for the intervals that it owns, all pieces in lane-tree order, together with what it already holds from
/// earlier rounds (`carry`). Afterwards `results` hold the finished subtrees; if carry and pieces cover all lanes and
/// `complete` is set, the only result is the whole sum. All ranks pass the same `pieces` and `owned` (pure functions of the
/// membership), so that each knows what to send to whom; `carry` and `results` are this rank's own. Results may alias
/// carries of the same position.
struct ReduceScatterArgs {
  Window window;
  std::vector<LanePiece> pieces;
  std::size_t origin = 0;               ///< element of the index space that each piece's `offset` points at
  std::vector<OwnedInterval> owned;     ///< who gets the sum of which elements; ascending and disjoint for each rank
  std::vector<LocalPiece> carry;        ///< ascending, all before the first of `pieces`
  std::vector<LocalPiece> results;      ///< as many as result_spans(carry, pieces, complete), in that order
  bool complete = false;                ///< no lane follows: fold what is left (also for V not a power of two)
  DType dtype = DType::kF32;            ///< kF32, kBF16 or kF16; sums of 16-bit types are rounded at every tree node
  int priority = 0;                     ///< calls of a higher one overtake those under way; the same on every rank
  const char* what = "reduce_scatter";  ///< names the call in errors, for instance "reduce_scatter block.3"
};
/// The subtrees left after adding `pieces` to `carry` (see ReduceScatterArgs), ascending.
std::vector<LaneSpan> result_spans(const std::vector<LaneSpan>& carry, std::vector<LaneSpan> pieces, bool complete);

/// The in-place all-gather: every rank's window holds the same index space, rank r has written the intervals it owns,
/// and afterwards the window of every rank holds all of them.
struct AllGatherArgs {
  Window window;                       ///< source in every rank
  std::size_t offset = 0;              ///< byte offset of element `origin` in every rank's window
  std::size_t origin = 0;
  /// Ascending, disjoint intervals by owner, the same on every rank; `source_offset` says where the interval starts in
  /// the owner's window if that is not the canonical place (compact shards), else npos.
  struct Owned {
    int rank = 0;
    Interval interval;
    std::size_t source_offset = npos;
  };
  static constexpr std::size_t npos = ~std::size_t{0};
  std::vector<Owned> owned;
  void* destination = nullptr;         ///< where element `origin` goes; null: this rank's own window (in place)
  DType dtype = DType::kF32;
  int priority = 0;                    ///< as in ReduceScatterArgs
  const char* what = "all_gather";
};

/// The reproducible all-reduce: as a complete reduce-scatter without carry, but the sums go to every rank. Each rank adds
/// up what it owns; where it can write into its peers' memory, it does so in the same pass, else a gather follows.
/// `destination` may be `window`, and the place of a sum that of any piece of the same element: only the rank that adds
/// an element up reads its pieces. If the call fails, peers may write there until the communicator is gone.
struct AllReduceArgs {
  Window window;                        ///< as in ReduceScatterArgs, and so on
  std::vector<LanePiece> pieces;        ///< cover all lanes
  std::size_t origin = 0;
  std::vector<OwnedInterval> owned;     ///< who adds up what; ascending, disjoint between all ranks
  Window destination;                   ///< gets the sums of all elements in `owned`, in every rank
  std::size_t offset = 0;               ///< byte offset of element `origin` in every rank's destination
  void* sums = nullptr;                 ///< the same place as an address of this rank
  DType dtype = DType::kF32;
  int priority = 0;
  const char* what = "all_reduce";
};

/// Bytes that travelled and time spent, for accounts and benchmarks.
struct CommStats {
  std::uint64_t calls = 0;
  std::uint64_t bytes_read_from_peers = 0;
  Nanos busy_ns = 0;                   ///< time in which the transport moved or added data
  Nanos peer_wait_ns = 0;              ///< time in which it waited for a peer to arrive
  std::vector<Nanos> wait_by_peer;     ///< the same, by the last peer to arrive: who was late
};

/// Whether sums have the order of the lane tree, or any that the library under a transport likes.
enum class Reduction { kReproducible, kFast };

struct CommOptions {
  std::string transport = "auto";      ///< "auto", or a name that transports() lists
  std::string algorithm = "auto";      ///< "auto", "direct", "ring", "halving", "hierarchical"; never changes a result
  std::string calibration;             ///< file of measured costs for "auto"; empty: default_calibration_path() (costs.h)
  std::string bind;                    ///< address on which peers of other hosts reach this rank; empty: any of its own
  Reduction reduction = Reduction::kReproducible;  ///< kFast: for transport "nccl"
  double timeout_s = 60;               ///< limit of every collective
  double connect_timeout_s = 60;
};

class PartCommunicator;

/// The collectives of one generation: a fixed set of ranks, connected pairwise. Dropped whole when membership changes.
/// Calls come from one thread, in the same order on every rank; `abort` and `stats` from any thread. Collectives on
/// windows move nothing twice; those on plain spans are staged and meant for small or rare data.
/// Every call throws CommError when a peer is lost, the time limit passes or the communicator is aborted; the first
/// such error is latched, told to all peers, and thrown again by every later call.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const World& world() const = 0;
  virtual const char* transport() const = 0;

  /// Collective. Peers may read `bytes` at `offset` of `memory` (sizes may differ by rank; empty is allowed).
  virtual Window expose(const SharedMemory& memory, std::size_t offset, std::size_t bytes) = 0;

  /// Collective. The same for memory of this rank's device, with which the addresses in later calls on the window are
  /// of the device too. What a call reads there must have been written before (its stream synchronised), and results
  /// are there when its Work is done. Throws UserError if the transport moves host memory only.
  virtual Window expose_device(const Buffer& memory, std::size_t offset, std::size_t bytes);
  /// Zeroed memory of `device` of the kind that serves best as a window here.
  virtual Buffer allocate_window(Device& device, std::size_t bytes);

  virtual Work reduce_scatter(ReduceScatterArgs args) = 0;
  virtual Work all_gather(AllGatherArgs args) = 0;
  /// By default a reduce_scatter, awaited, and an all_gather.
  virtual Work all_reduce(AllReduceArgs args);

  /// The sum over ranks in rank order... of `data`, on every rank: for small vectors in which each slot has one writer
  /// and zeros elsewhere (norm partials, loss per lane), or exact integers; so the order cannot matter.
  virtual void all_reduce_sum(std::span<double> data, const char* what = "all_reduce") = 0;
  /// Blob r of the result is what rank r brought.
  virtual std::vector<std::string> all_gather_blobs(const std::string& blob, const char* what = "all_gather") = 0;
  virtual void broadcast(std::span<std::byte> data, int root, const char* what = "broadcast") = 0;
  /// send[r] goes to rank r; receive[r] (of the right size on entry) is filled from rank r.
  virtual void all_to_all_v(const std::vector<std::span<const std::byte>>& send,
                            const std::vector<std::span<std::byte>>& receive, const char* what = "all_to_all_v") = 0;
  virtual void barrier(const char* what = "barrier") = 0;

  /// From any thread: every call under way or to come, here and at all peers, throws CommError(kAborted) within
  /// milliseconds.
  virtual void abort(const std::string& why) = 0;
  /// From any thread: latches `error` as the first one of the generation, if there is none yet, and tells all peers.
  virtual void report(const CommError& error) { abort(error.what()); }
  /// From any thread: the latched error; null while there is none, or where it shows in the next call only.
  virtual std::exception_ptr failure() const { return nullptr; }
  virtual CommStats stats() const = 0;

 protected:
  /// For `abort`: aborts what was split off.
  void abort_parts(const std::string& why);

 private:
  friend class PartCommunicator;
  Mutex parts_mutex_;
  std::vector<PartCommunicator*> parts_ BELLOWS_GUARDED_BY(parts_mutex_);
};

/// Collective: connects the ranks of one generation. Picks the transport from the registry; "auto" takes `inproc` if
/// all ranks are threads of one process, else `shm`. Throws UserError for an unknown transport, naming the known ones.
std::unique_ptr<Communicator> connect(const World& world, Bootstrap& bootstrap, const CommOptions& options = {});

/// Collective over all ranks of `parent`: those that give the same `color` become a communicator of their own, in the
/// order that they have in `parent`; a rank with a color below 0 gets null. For hybrid sharding, for instance.
/// It has its own windows, and its own calls, in the same order on its ranks. A failure of it is one of the generation:
/// it names ranks as `parent` numbers them, and is told to all ranks of `parent` too; aborting `parent` aborts it. Where
/// blocking calls on both are mixed, all ranks must mix them alike. Dropped before `parent`.
std::unique_ptr<Communicator> split(Communicator& parent, int color, const CommOptions& options = {});

/// Names of the transports compiled in, with one line on whether this host can use each.
struct TransportInfo {
  std::string name;
  bool usable = false;
  std::string note;
};
std::vector<TransportInfo> transports();

// Classical forms on plain spans, built on the calls above and used by benchmarks, tests and trainers.
// `lanes` says whose contribution is which leaf; by default rank r is lane r.
// T is float, bf16 or f16 for sums; any of these or std::byte for the others.

/// `data` becomes the lane-tree sum over all ranks. Collective.
template <class T>
void all_reduce(Communicator& comm, std::span<T> data);
/// `output` (a world_size-th of `input`, the rank's chunk; the first ranks one element more if uneven) gets its sum.
template <class T>
void reduce_scatter(Communicator& comm, std::span<const T> input, std::span<T> output);
template <class T>
void all_gather(Communicator& comm, std::span<const T> input, std::span<T> output);

/// Chunk `rank` of `count` elements cut in world_size nearly equal pieces.
Interval even_chunk(std::size_t count, int world_size, int rank);

}  // namespace bellows
