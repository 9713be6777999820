#include "reshard.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "bellows/base/error.h"

namespace bellows {
namespace {

constexpr std::size_t kRoundBytes = std::size_t{64} << 20;   // packed at once: bounds the memory a change needs

std::vector<int> all_chunks(const ChunkTable& table) {
  std::vector<int> all(table.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> shard_chunks(const ModelState& state, const ShardLayout& layout, int rank) {
  return state.stage().shards_optimizer ? layout.owned(rank) : all_chunks(state.table());
}

std::vector<int> held_by(const ModelState& state, const ModelState::Store& store, const Holding& holding) {
  if (!holding.usable) return {};
  if (store.whole && holding.parameters_current) return all_chunks(state.table());
  return shard_chunks(state, holding.layout, holding.old_rank);
}

std::vector<int> needed_by(const ModelState& state, const ModelState::Store& store, const ShardLayout& to, int rank) {
  if (rank >= to.world_size()) return {};
  return store.whole ? all_chunks(state.table()) : shard_chunks(state, to, rank);
}

// What must move whatever the layout: every new member ends with an even share (or with all of it, where it is whole or
// replicated), and keeps at most the smaller of that and what it had.
double least_bytes(const ModelState& state, const ModelState::Store& store, const std::vector<std::vector<int>>& holds,
                   int members) {
  const bool everything = store.whole || !state.stage().shards_optimizer;
  const double total = static_cast<double>(store.whole ? state.places().total_bytes()
                                                       : state.parameters().total() * sizeof(float));
  const double share = everything ? total : total / members;
  double moved = share * members;
  for (int rank = 0; rank < members; ++rank) {
    double held = 0;
    for (const int c : holds[rank]) held += static_cast<double>(state.bytes_of(store, c));
    moved -= std::min(share, held);
  }
  return moved;
}

}  // namespace

StateTransfer plan_transfer(const ModelState& state, const std::vector<Holding>& holdings, const ShardLayout& to) {
  StateTransfer transfer;
  for (const auto& store : state.stores()) {
    std::vector<std::vector<int>> holds, needs;
    for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
      holds.push_back(held_by(state, store, holdings[rank]));
      needs.push_back(needed_by(state, store, to, static_cast<int>(rank)));
    }
    ReshardPlan plan = reshard_plan(holds, needs);
    for (const Move& move : plan.moves) transfer.bytes_moved += state.bytes_of(store, move.chunk);
    transfer.bytes_minimum += static_cast<std::uint64_t>(least_bytes(state, store, holds, to.world_size()));
    if (!plan.uncovered.empty()) {
      transfer.covered = false;
      transfer.missing += (transfer.missing.empty() ? "" : ", ") + store.name + " (" +
                          std::to_string(plan.uncovered.size()) + " of " + std::to_string(state.table().size()) +
                          " chunks)";
    }
    transfer.plans.push_back(std::move(plan));
  }
  return transfer;
}

/// Has the keys to ModelState's memory. Builds the new shards beside the old ones and swaps them in at the end, so that
/// a change that fails half-way leaves the old state untouched.
class StateMover {
 public:
  StateMover(ModelState& state, const ShardLayout& to, Communicator& comm)
      : state_(state), comm_(comm), me_(comm.world().rank), member_(me_ < to.world_size()),
        new_shard_(state.table_, member_ ? shard_chunks(state, to, me_) : std::vector<int>{}),
        arrays_(state.arrays_.size()) {}

  void move_store(const ModelState::Store& store, const ReshardPlan& plan, const std::vector<int>& kept) {
    if (store.whole) {
      // In place: a rank with current parameters receives nothing, any other overwrites what it could not use.
      if (!state_.allocated_ && member_) params_ = SharedMemory(state_.places_.total_bytes());
      std::byte* const whole = params_.size() ? params_.data() : state_.params_.data();
      const auto place = [&](int c) { return whole + state_.places_.of_chunk(c).begin; };
      exchange(plan, store, place, place);
      return;
    }
    constexpr std::size_t size = sizeof(float);
    const int kind = kind_of(store);
    const bool shared = kind == 0 && !state_.separate_masters_;   // stage 3 in float32: peers gather from it
    if (shared)
      params_ = SharedMemory(new_shard_.size() * size);
    else
      arrays_[kind] = HostMemory(new_shard_.size() * size);
    std::byte* const next = shared ? params_.data() : arrays_[kind].data();
    std::byte* const before = shared ? state_.params_.data() : state_.arrays_[kind].data();
    const auto from = [&](int c) { return before + state_.shard_.offset(c) * size; };
    const auto to = [&](int c) { return next + new_shard_.offset(c) * size; };
    for (const int c : kept)
      if (new_shard_.holds(c)) std::memcpy(to(c), from(c), state_.table_[c].size() * size);
    exchange(plan, store, from, to);
  }

  void finish(ThreadPool& pool) {
    comm_.barrier("reshard");   // nobody lets go of the old state before everybody has the new one
    state_.arrays_ = std::move(arrays_);
    state_.shard_ = std::move(new_shard_);
    state_.allocated_ = member_;
    if (state_.stage_.shards_parameters && state_.separate_masters_) params_ = SharedMemory(state_.place_compute());
    if (params_.size() || !member_ || state_.stage_.shards_parameters) state_.params_ = std::move(params_);
    if (!member_) return;
    if (state_.stage_.shards_parameters) state_.refresh_compute(pool);
    state_.parameters_current_ = true;
  }

 private:
  int kind_of(const ModelState::Store& store) const {
    for (int kind = 0; kind < state_.kinds(); ++kind)
      if (state_.kind_names_[kind] == store.name) return kind;
    BELLOWS_CHECK(false);
    return -1;
  }

  // Packs what this rank sends, exchanges, unpacks. Rounds are cut by chunk number, which everybody knows.
  template <class From, class To>
  void exchange(const ReshardPlan& plan, const ModelState::Store& store, const From& from, const To& to) {
    std::size_t total = 0;
    for (const Move& move : plan.moves) total += state_.bytes_of(store, move.chunk);
    if (total == 0) return;
    const std::size_t rounds = (total + kRoundBytes - 1) / kRoundBytes;
    const int ranks = comm_.world().world_size;
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto in_round = [&](const Move& m) { return m.chunk * rounds / state_.table_.size() == round; };
      std::vector<std::vector<std::byte>> outgoing(ranks), incoming(ranks);
      for (const Move& move : plan.moves) {
        if (!in_round(move)) continue;
        const std::size_t bytes = state_.bytes_of(store, move.chunk);
        if (move.from == me_) outgoing[move.to].insert(outgoing[move.to].end(), from(move.chunk), from(move.chunk) + bytes);
        if (move.to == me_) incoming[move.from].resize(incoming[move.from].size() + bytes);
      }
      comm_.all_to_all_v({outgoing.begin(), outgoing.end()}, {incoming.begin(), incoming.end()}, "reshard");
      std::vector<std::size_t> at(ranks, 0);
      for (const Move& move : plan.moves) {
        if (!in_round(move) || move.to != me_) continue;
        const std::size_t bytes = state_.bytes_of(store, move.chunk);
        std::memcpy(to(move.chunk), incoming[move.from].data() + at[move.from], bytes);
        at[move.from] += bytes;
      }
    }
  }

  ModelState& state_;
  Communicator& comm_;
  const int me_;
  const bool member_;
  CompactShard new_shard_;
  SharedMemory params_;
  std::vector<HostMemory> arrays_;
};

void carry_out(ModelState& state, const StateTransfer& transfer, const std::vector<Holding>& holdings,
               const ShardLayout& to, Communicator& transition, ThreadPool& pool) {
  BELLOWS_CHECK(transfer.covered);
  const Holding& mine = holdings[transition.world().rank];
  StateMover mover(state, to, transition);
  const auto stores = state.stores();
  for (std::size_t i = 0; i < stores.size(); ++i)
    mover.move_store(stores[i], transfer.plans[i], held_by(state, stores[i], mine));
  mover.finish(pool);
}

}  // namespace bellows
