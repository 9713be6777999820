#include "group.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bellows/base/check.h"
#include "bellows/base/digest.h"
#include "futex.h"

namespace bellows {
namespace {

constexpr Nanos kSpin = 50'000;                  // a futex wake costs up to 60 us on a virtual machine
constexpr std::uint64_t kPromptBytes = 4 << 20;  // calls worth waking the progress thread for at once

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Group::Group(const World& world, std::unique_ptr<Reach> reach, Segment own, double timeout_s, bool may_spin)
    : world_(world),
      reach_(std::move(reach)),
      segment_(std::move(own)),
      own_(reinterpret_cast<Control*>(segment_->data())),
      timeout_(from_seconds(timeout_s)),
      spin_(kSpin),
      yields_(!may_spin) {
  for (int r = 0; r < world_.world_size; ++r) controls_.push_back(r == world_.rank ? own_ : reach_->control(r));
  stats_.wait_by_peer.resize(world_.world_size);
}

// Between two looks at a counter: where ranks outnumber processors, the peer that is to move it may need this one.
void Group::breathe() const {
  if (yields_)
    sched_yield();
  else
    cpu_relax();
}

Group::~Group() { close(); }

std::string Group::suffix() const { return " (generation " + std::to_string(world_.generation) + ")"; }

void Group::announce(Call& call) {
  const Sequence sequence = last_sequence_ + 1;
  wait_acknowledged(sequence - Control::kRing);
  Announcement& entry = own_->announcement(sequence);
  if (!call.payload.empty()) {
    BELLOWS_CHECK_LE(call.payload.size(), Control::kPayloadBytes);
    const std::uint32_t slot = next_payload_++ % Control::kPayloadSlots;
    wait_acknowledged(payload_used_[slot]);
    payload_used_[slot] = sequence;
    std::memcpy(own_->payload(slot), call.payload.data(), call.payload.size());
    entry.payload_slot = slot;
  } else {
    entry.payload_slot = call.staging_half;
  }
  entry.payload_bytes = static_cast<std::uint32_t>(call.payload.size());
  struct {
    std::uint64_t signature, kind;
  } mixed{call.signature ^ xxh64(std::as_bytes(std::span(call.what))), static_cast<std::uint64_t>(call.kind)};
  call.signature = xxh64(std::as_bytes(std::span(&mixed, 1)));
  entry.signature = call.signature;
  entry.bytes = call.bytes;
  entry.total = call.total;
  entry.kind = call.kind;
  entry.more = call.more ? 1 : 0;
  set_text(entry.what, call.what);
  entry.posted_at = now_ns();
  call.sequence = sequence;
  last_sequence_ = sequence;
  entry.posted.store(sequence, std::memory_order_seq_cst);
  for (int r = 0; r < world_.world_size; ++r) {
    if (r == world_.rank) continue;
    const std::uint32_t awaited = peer(r).awaits_post_of.load(std::memory_order_seq_cst);
    if (awaited == static_cast<std::uint32_t>(world_.rank) || awaited == Control::kAnybody) ring(peer(r));
  }
}

std::shared_ptr<Call> Group::submit(std::shared_ptr<Call> call, bool asynchronous) {
  if (call->priority < 0)
    throw std::invalid_argument(call->what + ": priority " + std::to_string(call->priority) + " is below 0");
  try {
    check_error();
  } catch (const CommError&) {
    fail_all(std::current_exception());
  }
  {
    MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  announce(*call);
  call->asynchronous = asynchronous;
  bool driven, attentive;
  {
    MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    ++stats_.calls;
    to_read_.push_back(call);
    if (asynchronous) ++asynchronous_open_;
    if (call->priority > 0) urgent_queued_.fetch_add(1, std::memory_order_seq_cst);
    driven = driving_;
    attentive = attentive_;
  }
  submitted_.store(call->sequence, std::memory_order_seq_cst);
  if (world_.world_size == 1) {
    wait_done(call);
  } else if (asynchronous) {
    if (!progress_.joinable()) {
      // Signals are for the threads of the program, not for this one.
      sigset_t all, before;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      progress_ = std::thread([this] { progress_loop(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    // Mostly the caller waits for a small call at once, and is through with it before another thread is up.
    if (!driven && (call->bytes >= kPromptBytes || call->priority > 0 || !attentive)) work_.notify_one();
  }
  if (driven) ring(*own_);  // the driver may be waiting for acknowledgements only
  return call;
}

void Group::run(const std::shared_ptr<Call>& call) { wait_read(submit(call, false)); }

std::uint32_t Group::take_staging() {
  const std::uint32_t half = next_half_++ % 2;
  wait_acknowledged(half_used_[half]);
  half_used_[half] = last_sequence_ + 1;
  return half;
}

std::span<const std::byte> Group::payload(int rank, const Call& call) {
  const Announcement& entry = announcement(rank, call);
  return {peer(rank).payload(entry.payload_slot % Control::kPayloadSlots),
          std::min<std::size_t>(entry.payload_bytes, Control::kPayloadBytes)};
}

void Group::ring(Control& control) {
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(control.bell);
}

CommStats Group::stats() const {
  MutexLock lock(mutex_);
  CommStats stats = stats_;
  stats.bytes_read_from_peers = bytes_from_peers_;
  return stats;
}

}  // namespace bellows
