#include "gather.h"

#include <algorithm>

#include "bellows/base/error.h"

namespace bellows {

Gather::Gather(ModelState& state, int prefetch_units, Waiter& waiter)
    : state_(state), prefetch_units_(prefetch_units), waiter_(waiter) {}

void Gather::attach(Communicator& comm, const ShardLayout& layout) {
  comm_ = &comm;
  local_ = comm.world().world_size == 1 || !state_.stage().shards_optimizer;
  const auto& units = state_.parameters().units();
  whole_.assign(units.size(), Work{});
  slots_.clear();
  for (auto& schedule : schedules_) schedule = Schedule{};
  running_ = nullptr;
  // Collective, so also where nothing is gathered afterwards: whole parameters may have to be completed once.
  window_ = comm.expose(state_.parameter_memory(), 0, state_.parameter_memory().size());

  const ChunkTable& table = state_.table();
  const Places& places = state_.places();
  const std::size_t word = size_of(places.word());
  std::vector<std::size_t> compact(layout.world_size(), 0);   // bytes of each rank's shard so far
  owned_.assign(units.size(), {});
  for (int u = 0; u < table.units(); ++u) {
    const Interval chunks = table.of_unit(u);
    for (std::size_t c = chunks.begin; c < chunks.end; ++c) {
      const int owner = layout.owner(c);
      auto& owned = owned_[u];
      const Interval bytes = places.of_chunk(c);
      const std::size_t source = places.compact(compact[owner], c);
      if (!owned.empty() && owned.back().rank == owner && owned.back().interval.end == bytes.begin / word)
        owned.back().interval.end = bytes.end / word;
      else
        owned.push_back({owner, {bytes.begin / word, bytes.end / word},
                         state_.stage().shards_parameters ? source : AllGatherArgs::npos});
      compact[owner] = source + bytes.size();
    }
  }
  if (state_.stage().shards_parameters && !local_) {
    slot_size_ = (places.largest_unit_bytes() + 63) / 64 * 64;
    const std::size_t count = 2 + static_cast<std::size_t>(prefetch_units_);   // two in use at once, and those ahead
    if (slots_memory_.size() != count * slot_size_) slots_memory_ = HostMemory(count * slot_size_);
    slots_.resize(count);
  } else {
    slots_memory_ = HostMemory();
  }
}

void Gather::detach() {
  comm_ = nullptr;
  window_ = Window{};
  whole_.clear();
  slots_.clear();
}

AllGatherArgs Gather::args_for(int unit) const {
  const Places& places = state_.places();
  const std::size_t begin = places.of_unit(unit).begin;
  AllGatherArgs args;
  args.window = window_;
  args.offset = state_.stage().shards_parameters ? 0 : begin;
  args.origin = begin / size_of(places.word());
  args.owned = owned_[unit];
  args.dtype = places.word();
  args.priority = state_.stage().shards_parameters ? 1 : 0;  // compute waits for it, behind gradients already queued
  args.what = "all_gather of parameters";
  return args;
}

Gather::Slot* Gather::find(int unit) {
  for (Slot& slot : slots_)
    if (slot.unit == unit) return &slot;
  return nullptr;
}

// Every rank runs the same sequence of uses, so every rank picks alike and issues the same gathers in the same order.
Gather::Slot& Gather::fetch(int unit) {
  if (Slot* present = find(unit)) return *present;
  Slot* victim = nullptr;
  for (Slot& slot : slots_)
    if (slot.users == 0 && (!victim || slot.last_use < victim->last_use)) victim = &slot;
  if (!victim)
    throw UserError("more than " + std::to_string(slots_.size()) +
                    " units are in use at once; close a unit's scope before opening the next, or raise prefetch_units");
  if (victim->work.valid()) waiter_.wait(victim->work);
  victim->unit = unit;
  victim->last_use = ++clock_;
  AllGatherArgs args = args_for(unit);
  args.destination = slots_memory_.data() + static_cast<std::size_t>(victim - slots_.data()) * slot_size_;
  victim->work = comm_->all_gather(std::move(args));
  return *victim;
}

const void* Gather::acquire(int unit, bool evaluating) {
  if (!state_.stage().shards_parameters || local_) {
    if (!local_ && whole_[unit].valid()) {
      waiter_.wait(whole_[unit]);
      whole_[unit] = Work{};
    }
    return state_.parameter_memory().data() + state_.places().of_unit(unit).begin;
  }
  running_ = &schedules_[evaluating ? 1 : 0];
  Slot& slot = fetch(unit);
  ++slot.users;
  slot.last_use = ++clock_;
  if (!running_->known) {
    running_->order.push_back(unit);
  } else {
    const auto& order = running_->order;
    for (std::size_t ahead = 1; ahead <= static_cast<std::size_t>(prefetch_units_); ++ahead)
      if (running_->at + ahead < order.size()) fetch(order[running_->at + ahead]);
  }
  ++running_->at;
  waiter_.wait(slot.work);
  return slots_memory_.data() + static_cast<std::size_t>(&slot - slots_.data()) * slot_size_;
}

void Gather::release(int unit) {
  if (Slot* slot = find(unit)) --slot->users;
}

void Gather::start_micro_batch() {
  if (running_ && !running_->order.empty()) running_->known = true;
  for (auto& schedule : schedules_) schedule.at = 0;
}

void Gather::before_update() {
  for (Slot& slot : slots_) {
    if (slot.work.valid()) waiter_.wait(slot.work);
    slot = Slot{};
  }
  for (Work& work : whole_) {
    if (work.valid()) waiter_.wait(work);
    work = Work{};
  }
}

void Gather::after_update() {
  if (local_ || state_.stage().shards_parameters) return;
  for (std::size_t unit = 0; unit < whole_.size(); ++unit)
    if (!owned_[unit].empty()) whole_[unit] = comm_->all_gather(args_for(static_cast<int>(unit)));
}

void Gather::settle() {
  if (state_.stage().shards_parameters) return;
  for (Work& work : whole_) {
    if (work.valid()) waiter_.wait(work);
    work = Work{};
  }
  state_.set_parameters_current(true);
}

}  // namespace bellows
