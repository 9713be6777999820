#pragma once
#include <functional>
#include <span>
#include <vector>

#include "bellows/base/memory.h"
#include "bellows/base/thread_pool.h"
#include "bellows/comm/communicator.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/shard_layout.h"
#include "model_state.h"
#include "waiter.h"

namespace bellows {

/// What a rank computes in a step, in order: position `round` of `lanes`; ranks without a lane in the last round idle.
struct LanePlan {
  LaneAssignment lanes;    ///< by rank
  int rounds = 0;          ///< of this generation: the most lanes that a rank has
  bool in_rounds = false;  ///< gradients are summed over ranks after every round (sharded gradients)
};

/// The gradients of one generation. Two ways to fold the same lane tree:
///
/// - local (stages 0-1, and any world of one): a rank has contiguous lanes and folds the complete subtrees that it owns
///   on a stack of whole-model buffers (log2(lanes)+1 of them at most); after its last lane each bucket goes to its
///   owners, who add the pieces of all ranks in place, in buffer 0.
/// - in rounds (stages 2-3): lane t*n+r is rank r's in round t; a bucket's gradient lives in a slot only until its
///   owners have added it to their accumulators, which are as long as the shard.
///
/// Buckets are runs of consecutive units up to `bucket_bytes`; a larger unit travels in several pieces. Neither choice
/// changes a sum: the tree is per element.
class Gradients {
 public:
  struct Options {
    bool sharded = false;
    bool replicate_sums = false;  ///< stage 0: every rank needs the whole sum
    int micro_batches_per_lane = 1;
    std::size_t bucket_bytes = std::size_t{25} << 20;
  };
  Gradients(const ParameterSet& parameters, const ChunkTable& table, const Options& options, ThreadPool& pool,
            Waiter& waiter);

  /// Memory and windows for this generation. Collective.
  void attach(Communicator& comm, const ShardLayout& layout, int lanes);
  void detach();

  const LanePlan& plan() const { return plan_; }
  /// Called before each reduction is issued (fault injection, traces).
  void on_reduce(std::function<void()> probe) { probe_ = std::move(probe); }

  void start_step();
  /// The lane at position `round` of this rank begins (or passes idly: it holds nothing, but its peers reduce).
  void start_lane(int round);
  /// Where this lane's gradient of `unit` is to be written.
  float* open(int unit);
  /// The lane's gradient of `unit` is complete: fold it, and start its bucket's reduction when nothing is missing.
  void complete(int unit, bool idle);
  /// All sums are where they belong. Throws CommError.
  void finish();

  /// Sum over all lanes of a chunk that this rank owns (any chunk, if sums are replicated). After finish().
  std::span<const float> sum(int chunk) const;

  struct Bytes {
    std::size_t buffers = 0, slots = 0, accumulators = 0;
  };
  Bytes bytes() const;

 private:
  struct Bucket {
    int first_unit = 0, last_unit = 0;  // inclusive
    Interval range;
    bool held = false;               // a unit of it is used again later in backward: keeps a slot of its own
    std::size_t fixed_slot = kNone;  // byte offset in slots_, if it has its own
    // state of the lane under way
    std::size_t slot = kNone;
    int ring = -1;
    int units_left = 0;
    std::vector<Work> fixed_work;  // under way on its own slot
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  void reduce(Bucket& bucket);
  void wait_for_ring(int ring);
  std::vector<OwnedInterval> owned_in(Interval range) const;

  const ParameterSet& parameters_;
  const ChunkTable& table_;
  const Options options_;
  ThreadPool& pool_;
  Waiter& waiter_;
  std::function<void()> probe_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;  // by unit

  // one generation
  Communicator* comm_ = nullptr;
  ShardLayout layout_;
  LanePlan plan_;
  CompactShard own_;
  bool alone_ = false;
  Window window_;
  SharedMemory memory_;  // buffers (local) or slots (in rounds)
  HostMemory accumulators_;
  std::size_t ring_bytes_ = 0;
  std::vector<std::size_t> ring_offset_;
  std::vector<std::vector<Work>> ring_work_;
  std::vector<std::vector<LaneSpan>> carries_;  // in rounds: what stands in the accumulators before round t

  // one step
  int round_ = 0;
  int next_ring_ = 0;
  std::vector<int> stack_;  // local: lanes in each buffer of the stack, before this lane
  std::size_t top_ = 0;     // buffer that this lane writes
  std::size_t folds_ = 0;   // folds after this lane
  struct Pending {
    Work work;
    Interval range;
  };
  std::vector<Pending> pending_;
};

}  // namespace bellows
