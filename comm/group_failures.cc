#include <algorithm>
#include <cstdio>

#include "futex.h"
#include "group.h"

// How a generation ends: errors told to everybody, peers that die or leave, and leaving oneself.

namespace bellows {
namespace {

constexpr double kDrainSeconds = 5;  // for calls still under way when a communicator is dropped
constexpr double kFenceSeconds = 1;  // for a peer to leave a failed call, which takes a running one microseconds

}  // namespace

void Group::check_error() {
  if (own_->error.state.load(std::memory_order_acquire) != ErrorRecord::kNone) throw_recorded();
}

// A peer that has dropped its communicator without what we wait for will never bring it.
void Group::check_left(const Call* call, const std::vector<int>& missing, Sequence unacknowledged) {
  std::vector<int> gone;
  if (call)
    for (const int r : missing)
      if (peer(r).left.load(std::memory_order_seq_cst) && !peer(r).has_posted(call->sequence)) gone.push_back(r);
  if (unacknowledged != 0)
    for (int r = 0; r < world_.world_size; ++r)
      if (r != world_.rank && peer(r).left.load(std::memory_order_seq_cst) && !peer(r).has_finished(unacknowledged) &&
          std::find(gone.begin(), gone.end(), r) == gone.end())
        gone.push_back(r);
  if (gone.empty()) return;
  std::sort(gone.begin(), gone.end());
  const std::string operation = call ? call->what : current_operation();
  raise(CommError::Kind::kPeerLost, operation, gone,
        operation + ": " + list_ranks(gone) + " left the communicator before taking part");
}

void Group::check_alive(const std::string& operation) {
  last_life_check_ = now_ns();
  std::vector<int> lost;
  for (int r = 0; r < world_.world_size; ++r)
    // Asked in this order: a peer says that it leaves before it ends.
    if (r != world_.rank && !reach_->alive(r) && !peer(r).left.load(std::memory_order_seq_cst)) lost.push_back(r);
  if (lost.empty()) return;
  std::string who;
  for (const int r : lost) who += (who.empty() ? "" : ", ") + reach_->describe(r);
  raise(CommError::Kind::kPeerLost, operation, lost, operation + ": " + list_ranks(lost) + " ended (" + who + ")");
}

std::string Group::current_operation() {
  MutexLock lock(mutex_);
  if (!to_read_.empty()) return to_read_.front()->what;
  if (!to_acknowledge_.empty()) return to_acknowledge_.front()->what;
  return "communicator";
}

void Group::record_error(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                         const std::string& message) {
  const auto record = [&](Control& control) {
    ErrorRecord& error = control.error;
    std::uint32_t none = ErrorRecord::kNone;
    if (error.state.compare_exchange_strong(none, ErrorRecord::kWriting)) {
      error.kind = static_cast<std::uint32_t>(kind);
      for (const int r : ranks) error.ranks[static_cast<std::size_t>(r) / 64] |= std::uint64_t{1} << (r % 64);
      set_text(error.operation, operation);
      set_text(error.message, message + suffix());
      error.state.store(ErrorRecord::kSet, std::memory_order_release);
    }
    ring(control);
  };
  record(*own_);
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) record(peer(r));
}

void Group::throw_recorded() {
  const ErrorRecord& error = own_->error;
  const Nanos patience = now_ns() + 100'000'000;  // a writer may be killed half-way
  while (error.state.load(std::memory_order_acquire) != ErrorRecord::kSet && now_ns() < patience) cpu_relax();
  if (error.state.load(std::memory_order_acquire) != ErrorRecord::kSet)
    throw CommError(CommError::Kind::kPeerLost, "communicator", {}, world_.generation,
                    "a peer failed while reporting a failure" + suffix());
  std::vector<int> ranks;
  for (int r = 0; r < world_.world_size; ++r)
    if (error.ranks[static_cast<std::size_t>(r) / 64] >> (r % 64) & 1) ranks.push_back(r);
  throw CommError(static_cast<CommError::Kind>(error.kind), error.operation, ranks, world_.generation, error.message);
}

void Group::raise(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                  const std::string& message) {
  record_error(kind, operation, ranks, message);
  throw_recorded();
}

void Group::abort(const std::string& why) {
  record_error(CommError::Kind::kAborted, "abort", {}, "aborted by " + list_ranks({world_.rank}) + ": " + why);
}

void Group::report(const CommError& error) {
  std::string message = error.what();
  if (message.ends_with(suffix())) message.resize(message.size() - suffix().size());
  record_error(error.kind(), error.operation(), error.ranks(), message);
}

void Group::fail_all(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = error;
    for (auto* queue : {&to_read_, &to_acknowledge_}) {
      for (auto& call : *queue) {
        call->error = failure_;
        call->finished_at = now_ns();
        call->state.store(Call::kFailed, std::memory_order_release);
      }
      queue->clear();
    }
    asynchronous_open_ = 0;
    urgent_queued_ = urgent_unacknowledged_ = 0;
  }
  changed_.notify_all();
}

void Group::close() {
  if (closed_) return;
  closed_ = true;
  // What is under way is finished if that is a matter of moments: peers may still be reading this rank's memory.
  const bool unwinding = std::uncaught_exceptions() > 0;
  const Nanos patience = now_ns() + from_seconds(kDrainSeconds);
  std::string unfinished;
  while (true) {
    bool open;
    {
      MutexLock lock(mutex_);
      open = !failure_ && (asynchronous_open_ > 0 || !to_read_.empty());
      if (open) unfinished = to_read_.empty() ? to_acknowledge_.front()->what : to_read_.front()->what;
      if (!open) {
        unfinished.clear();
        break;
      }
      if (unwinding || now_ns() > patience) break;
      changed_.wait_for(mutex_, std::chrono::milliseconds(5));
    }
  }
  if (!unfinished.empty())
    record_error(CommError::Kind::kPeerLost, unfinished, {world_.rank},
                 unfinished + ": " + list_ranks({world_.rank}) + " left the communicator in the middle");
  own_->left.store(1, std::memory_order_seq_cst);
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  ring(*own_);
  if (progress_.joinable()) progress_.join();
  if (!unfinished.empty()) {
    try {
      throw_recorded();
    } catch (...) {
      fail_all(std::current_exception());
    }
  }
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) ring(peer(r));
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) await_outside(r);
}

// The memory of this rank lives on or goes: either way no peer may use it any more. One that has been stopped in the
// middle of writing into it would go on with that whenever it is continued, so it is ended.
void Group::await_outside(int rank) {
  const Nanos patience = now_ns() + from_seconds(kFenceSeconds);
  while (peer(rank).inside.load(std::memory_order_seq_cst) && reach_->alive(rank)) {
    if (now_ns() > patience) reach_->fence(rank);
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace bellows
