#pragma once
#include <cstdint>
#include <vector>

#include "bellows/base/memory.h"
#include "bellows/comm/communicator.h"
#include "bellows/runtime/parameter_set.h"
#include "bellows/runtime/shard_layout.h"
#include "model_state.h"
#include "waiter.h"

namespace bellows {

/// Makes parameters present where they are used.
///
/// Stages 1-2: after an update every unit is gathered in place, in forward order; the next use of a unit waits for it.
/// Stage 3: a unit is gathered from its owners' shards into one of a few slots before it is used; the units that the
/// trainer will use next are fetched ahead, in the order seen in the first micro-batch of the generation.
class Gather {
 public:
  Gather(ModelState& state, int prefetch_units, Waiter& waiter);

  void attach(Communicator& comm, const ShardLayout& layout);
  void detach();

  /// Parameters of `unit` in compute, laid out as Places says, valid until the matching release. `evaluating` picks the
  /// recorded order.
  const void* acquire(int unit, bool evaluating);
  void release(int unit);
  void start_micro_batch();
  /// Peers may not be reading what an update is about to change: waits until all gathers are over.
  void before_update();
  /// Stage 1-2: starts gathering everything. Stage 3: forgets what was gathered.
  void after_update();
  /// Waits for all gathers under way; whole parameters are current afterwards.
  void settle();

  std::size_t slot_bytes() const { return slots_memory_.size(); }

 private:
  struct Slot {
    int unit = -1;
    int users = 0;
    std::uint64_t last_use = 0;
    Work work;
  };
  AllGatherArgs args_for(int unit) const;
  Slot& fetch(int unit);
  Slot* find(int unit);

  ModelState& state_;
  const int prefetch_units_;
  Waiter& waiter_;

  Communicator* comm_ = nullptr;
  bool local_ = true;                              // everything is at hand: no peers
  Window window_;
  std::vector<std::vector<AllGatherArgs::Owned>> owned_;   // by unit, in words of Places
  std::vector<Work> whole_;                        // stages 1-2, by unit
  HostMemory slots_memory_;
  std::size_t slot_size_ = 0;
  std::vector<Slot> slots_;
  std::uint64_t clock_ = 0;
  struct Schedule {
    std::vector<int> order;
    bool known = false;
    std::size_t at = 0;
  };
  Schedule schedules_[2];                          // training, evaluating
  Schedule* running_ = nullptr;
};

}  // namespace bellows
