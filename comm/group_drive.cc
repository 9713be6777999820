#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "bellows/base/memory.h"
#include "futex.h"
#include "group.h"

// Carrying calls out: waiting for one, reading, waiting for peers, and letting urgent calls overtake.

namespace bellows {
namespace {

constexpr Nanos kSlice = 20'000'000;  // between two looks at peers' lives
constexpr Nanos kLook = 1'000'000;    // between two looks of a progress thread that was busy just now
constexpr int kLooks = 20;            // before it sleeps until it is woken
constexpr int kQuickLooks = 100;  // at a counter, before the time is taken: small calls take less than some clocks do

std::string format_seconds(Nanos ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds(ns));
  return text;
}

std::string describe_call(CallKind kind, const std::string& what, std::uint64_t bytes) {
  std::string text = name_of(kind);
  if (what != text) text += " '" + what + "'";
  if (bytes > 0) text += " of " + human_bytes(static_cast<double>(bytes));
  return text;
}

}  // namespace

// Marks this rank as one that uses peers' windows. An owner that leaves sets `left` first and then waits for users;
// a user sets `inside` first and then looks at `left`: one of the two sees the other.
class Group::InsideGuard {
 public:
  InsideGuard(Group& group, const Call& call) : own_(group.own()) {
    own_.inside.fetch_add(1, std::memory_order_seq_cst);
    try {
      group.check_error();
      for (int r = 0; r < group.world().world_size; ++r)
        if (r != group.world().rank && group.peer(r).left.load(std::memory_order_seq_cst))
          group.raise(CommError::Kind::kPeerLost, call.what, {r},
                      list_ranks({r}) + " left the communicator during " + call.what);
    } catch (...) {
      own_.inside.fetch_sub(1, std::memory_order_seq_cst);
      throw;
    }
  }
  ~InsideGuard() { own_.inside.fetch_sub(1, std::memory_order_seq_cst); }
  InsideGuard(const InsideGuard&) = delete;

 private:
  Control& own_;
};

// ---- Waiting for a call ----

// Waits for `condition` (asked with the mutex held), carrying calls out itself whenever nobody else does.
template <class Condition>
void Group::drive_until(const Condition& condition) {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (driving_ && !condition()) changed_.wait(mutex_);
      if (condition()) return;
      driving_ = true;
    }
    step(kIdle);
    bool more;
    {
      MutexLock lock(mutex_);
      driving_ = false;
      more = has_work() && condition();
    }
    changed_.notify_all();
    if (more) work_.notify_one();  // what this caller leaves behind
  }
}

void Group::wait_read(const std::shared_ptr<Call>& call) {
  drive_until([&] { return call->state.load(std::memory_order_acquire) != Call::kQueued; });
  if (call->state.load(std::memory_order_acquire) == Call::kFailed) std::rethrow_exception(call->error);
}

void Group::wait_done(const std::shared_ptr<Call>& call) {
  const auto done = [&] { return call->state.load(std::memory_order_acquire) >= Call::kDone; };
  if (call->priority > 0 && call->asynchronous)
    wait_urgent(*call, done);
  else
    drive_until(done);
  if (call->state.load(std::memory_order_acquire) == Call::kFailed) std::rethrow_exception(call->error);
}

// Whoever waits for an urgent call does not begin an ordinary one: in the middle of that it could not go on when its
// own is done. Those are for the progress thread.
template <class Condition>
void Group::wait_urgent(const Call& call, const Condition& condition) {
  while (true) {
    int above = call.priority - 1;
    {
      MutexLock lock(mutex_);
      bool handed_over = false;
      while (!condition()) {
        if (!driving_) {
          const bool ordinary = std::any_of(to_read_.begin(), to_read_.end(),
                                            [&](const auto& other) { return other->priority < call.priority; });
          if (!ordinary) above = kIdle;
          if (!ordinary || next_ready(above)) break;
          if (!std::exchange(handed_over, true)) work_.notify_one();
        }
        changed_.wait(mutex_);
      }
      if (condition()) return;
      driving_ = true;
    }
    step(above);
    {
      MutexLock lock(mutex_);
      driving_ = false;
    }
    changed_.notify_all();
  }
}

void Group::wait_acknowledged(Sequence sequence) {
  // Older ones are by the size of the ring; so the counters may wrap while a slot lies unused.
  if (last_sequence_ - sequence > Control::kRing || reached(acknowledged_through_, sequence)) return;
  // By this rank too: urgent calls may have overtaken it here.
  const auto acknowledged = [&](Sequence s) { return own_->has_finished(s) && first_without_finish(s) < 0; };
  if (!acknowledged(sequence)) {
    bool failed = false;
    drive_until([&]() BELLOWS_REQUIRES(mutex_) {
      failed = failure_ != nullptr;
      return failed || acknowledged(sequence);
    });
    if (failed) {
      MutexLock lock(mutex_);
      std::rethrow_exception(failure_);
    }
  }
  // As far as all calls are, so that peers' counters need not be looked at before every call.
  Sequence through = acknowledged_through_;
  if (last_sequence_ - through > Control::kRing) through = last_sequence_ - Control::kRing;
  while (through != last_sequence_ && acknowledged(through + 1)) ++through;
  acknowledged_through_ = through;
}

void Group::progress_loop() {
  pthread_setname_np(pthread_self(), "bellows-comm");
  int looks = kLooks;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stop_ && (driving_ || !has_work())) {
        attentive_ = looks > 0;
        if (attentive_)
          --looks, work_.wait_for(mutex_, std::chrono::nanoseconds(kLook));
        else
          work_.wait(mutex_);
      }
      if (stop_) return;
      driving_ = true;
    }
    looks = kLooks;
    step(kIdle);
    {
      MutexLock lock(mutex_);
      driving_ = false;
    }
    changed_.notify_all();
  }
}

// ---- One call after another ----

// One call of a higher priority than `above`; if there is none to be had at all, waits for acknowledgements instead.
void Group::step(int above) noexcept {
  serving_ = above;
  try {
    check_error();
    if (const auto call = next_to_read(above))
      read(call);
    else if (above == kIdle)
      await_acknowledgement();
  } catch (const CommError&) {
    fail_all(std::current_exception());
  } catch (const std::exception& error) {
    try {
      const std::string operation = current_operation();
      raise(CommError::Kind::kAborted, operation, {},
            list_ranks({world_.rank}) + " failed in " + operation + ": " + error.what());
    } catch (...) {
      fail_all(std::current_exception());
    }
  }
}

bool Group::all_posted(const Call& call) {
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank && (call.only_from < 0 || call.only_from == r) && !peer(r).has_posted(call.sequence))
      return false;
  return true;
}

// The most urgent call above `priority` that need not wait for anybody; the first of several.
std::shared_ptr<Call> Group::next_ready(int priority) {
  std::shared_ptr<Call> best;
  for (const auto& call : to_read_)
    if (call->priority > (best ? best->priority : priority) && all_posted(*call)) best = call;
  return best;
}

// An urgent call that all ranks have announced, else the least urgent one: while that waits, others may overtake it.
std::shared_ptr<Call> Group::next_to_read(int above) {
  MutexLock lock(mutex_);
  if (to_read_.empty()) return nullptr;
  if (urgent_queued_.load(std::memory_order_seq_cst) > 0)
    if (auto urgent = next_ready(std::max(above, 0))) return urgent;
  if (above != kIdle) return nullptr;
  return *std::min_element(to_read_.begin(), to_read_.end(),
                           [](const auto& a, const auto& b) { return a->priority < b->priority; });
}

void Group::between_stretches() {
  check_error();
  if (urgent_queued_.load(std::memory_order_relaxed) > 0) serve_urgent();
  if (urgent_unacknowledged_.load(std::memory_order_relaxed) > 0) note_acknowledged();
  // Who waited for it may need this very processor to go on.
  if (std::exchange(urgent_closed_, false)) sched_yield();
}

void Group::serve_urgent() {
  while (true) {
    std::shared_ptr<Call> urgent;
    {
      MutexLock lock(mutex_);
      urgent = next_ready(serving_);
    }
    if (!urgent) return;
    const Nanos began = now_ns();
    read(urgent);
    overtaken_ns_ += now_ns() - began;
  }
}

template <class Body>
void Group::busy(const Call& call, const Body& body) {
  if (call.eager) return body();  // taking the time would take longer
  const Nanos began = now_ns(), overtaken = overtaken_ns_;
  if (call.writes_windows || (call.reads_windows && reach_->shares_address_space())) {
    const InsideGuard guard(*this, call);
    body();
  } else {
    body();
  }
  busy_ns_ += now_ns() - began - (overtaken_ns_ - overtaken);
}

// True once `condition` holds; false after a moment in which it did not.
template <class Condition>
bool Group::look(const Condition& condition) const {
  for (int i = 0; i < kQuickLooks; ++i) {
    if (condition()) return true;
    if (yields_) return false;
    cpu_relax();
  }
  return condition();
}

void Group::read(const std::shared_ptr<Call>& held) {
  Call& call = *held;
  const int outer = std::exchange(serving_, call.priority);
  if (call.own_part) busy(call, call.own_part);
  // Starting behind itself, each rank reads from another peer than the others do at that time.
  std::vector<int> missing;
  for (int i = 1; i < world_.world_size; ++i) {
    const int r = (world_.rank + i) % world_.world_size;
    if (call.only_from < 0 || call.only_from == r) missing.push_back(r);
  }
  Nanos deadline = 0, waited = 0, last_posted = 0;
  int last = -1;
  while (!missing.empty()) {
    const std::size_t before = missing.size();
    for (std::size_t i = 0; i < missing.size();) {
      const int r = missing[i];
      if (!peer(r).has_posted(call.sequence)) {
        ++i;
        continue;
      }
      verify(call, r);
      if (const Nanos at = announcement(r, call).posted_at; last < 0 || at > last_posted) last = r, last_posted = at;
      if (call.on_arrival) busy(call, [&] { call.on_arrival(r); });
      missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (missing.empty() || missing.size() < before) continue;
    if (look([&] { return peer(missing.front()).has_posted(call.sequence); })) continue;
    const Nanos began = now_ns(), overtaken = overtaken_ns_;
    if (deadline == 0) deadline = began + (call.timeout > 0 ? call.timeout : timeout_);
    await_arrival(call, missing, deadline);
    waited += now_ns() - began - (overtaken_ns_ - overtaken);
  }
  if (call.on_all_arrived) busy(call, call.on_all_arrived);
  serving_ = outer;

  own_->finished[call.sequence % Control::kRing].store(call.sequence, std::memory_order_seq_cst);
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank &&
        peer(r).awaits_finish_of.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(world_.rank))
      ring(peer(r));
  {
    MutexLock lock(mutex_);
    stats_.busy_ns += std::exchange(busy_ns_, 0);
    const auto at = std::find(to_read_.begin(), to_read_.end(), held);
    if (at == to_read_.end()) return;  // it has failed meanwhile
    to_read_.erase(at);
    if (call.priority > 0) urgent_queued_.fetch_sub(1, std::memory_order_seq_cst);
    if (call.eager) {
      call.finished_at = now_ns();
      call.state.store(Call::kDone, std::memory_order_release);
      if (call.asynchronous) --asynchronous_open_;
      urgent_closed_ = urgent_closed_ || call.priority > 0;
    } else {
      to_acknowledge_.push_back(held);
      if (call.priority > 0) urgent_unacknowledged_.fetch_add(1, std::memory_order_seq_cst);
      call.state.store(Call::kRead, std::memory_order_release);
    }
    if (waited > 0 && last >= 0) {
      stats_.peer_wait_ns += waited;
      stats_.wait_by_peer[last] += waited;
    }
  }
  changed_.notify_all();
  if (!call.eager) note_acknowledged();
}

void Group::verify(const Call& call, int rank) {
  const Announcement& theirs = announcement(rank, call);
  if (theirs.signature == call.signature) return;
  const std::string mine_text = describe_call(call.kind, call.what, call.bytes);
  const std::string their_text =
      describe_call(theirs.kind, std::string(theirs.what, strnlen(theirs.what, sizeof theirs.what)), theirs.bytes);
  const std::string detail = mine_text == their_text ? " with other arguments" : "";
  raise(CommError::Kind::kAborted, call.what, {std::min(rank, world_.rank), std::max(rank, world_.rank)},
        "mismatched collectives: as call " + std::to_string(call.sequence) + " " + list_ranks({world_.rank}) +
            " called " + mine_text + ", " + list_ranks({rank}) + " called " + their_text + detail);
}

// ---- Waiting for peers ----

// Of the calls that wait to be acknowledged, the one whose end matters first, and a peer that it waits for.
Group::Unacknowledged Group::first_unacknowledged() {
  MutexLock lock(mutex_);
  if (to_acknowledge_.empty()) return {};
  const auto& call = urgent_unacknowledged_.load(std::memory_order_seq_cst) == 0
                         ? to_acknowledge_.front()
                         : *std::max_element(to_acknowledge_.begin(), to_acknowledge_.end(),
                                             [](const auto& a, const auto& b) { return a->priority < b->priority; });
  return {call, asynchronous_open_ > 0};
}

// Returns when the first of `missing` has arrived. Meanwhile closes earlier calls and carries out urgent ones.
void Group::await_arrival(const Call& call, const std::vector<int>& missing, Nanos deadline) {
  const int first = missing.front();
  const Nanos began = now_ns();
  while (true) {
    const auto [unacknowledged, asynchronous] = first_unacknowledged();
    const bool open = unacknowledged && asynchronous;
    const Sequence sequence = open ? unacknowledged->sequence : 0;
    const int finisher = open ? first_without_finish(sequence) : -1;
    if (open && finisher < 0) {
      note_acknowledged();
      continue;
    }
    const bool urgent = urgent_queued_.load(std::memory_order_seq_cst) > 0;
    const auto arrived = [&] { return peer(first).has_posted(call.sequence); };
    const auto finished = [&] { return finisher >= 0 && peer(finisher).has_finished(sequence); };
    const auto overtaken = [&] {
      if (urgent_queued_.load(std::memory_order_seq_cst) == 0) return false;
      MutexLock lock(mutex_);
      return next_ready(serving_) != nullptr;
    };
    while (!arrived() && !finished() && !overtaken() && now_ns() - began < spin_) breathe();
    // From here on peers ring. Whoever comes between these stores and the look at the counters has rung already.
    own_->awaits_post_of.store(urgent ? Control::kAnybody : static_cast<std::uint32_t>(first),
                               std::memory_order_seq_cst);
    own_->awaits_finish_of.store(static_cast<std::uint32_t>(finisher), std::memory_order_seq_cst);
    const std::uint32_t bell = own_->bell.load(std::memory_order_seq_cst);
    if (!arrived() && !finished() && !overtaken()) {
      check_error();
      check_left(&call, missing, sequence);
      const Nanos now = now_ns();
      if (now - last_life_check_ >= kSlice) check_alive(call.what);
      if (now >= deadline) {
        std::vector<int> late(missing);
        std::erase_if(late, [&](int r) { return peer(r).has_posted(call.sequence); });
        std::sort(late.begin(), late.end());
        if (!late.empty())
          raise(CommError::Kind::kTimeout, call.what, late,
                call.what + ": " + list_ranks(late) + " did not arrive within " +
                    format_seconds(call.timeout > 0 ? call.timeout : timeout_) + " s");
      }
      futex_wait(own_->bell, bell, std::min(kSlice, deadline - now));
    }
    own_->awaits_post_of.store(Control::kNobody, std::memory_order_seq_cst);
    own_->awaits_finish_of.store(Control::kNobody, std::memory_order_seq_cst);
    check_error();
    if (overtaken()) serve_urgent();
    if (arrived()) return;
    if (finished()) note_acknowledged();
  }
}

// Returns when a call that this rank has read is acknowledged by all, or there is something new to do.
void Group::await_acknowledgement() {
  {
    MutexLock lock(mutex_);
    if (to_acknowledge_.empty() || !to_read_.empty() || stop_) return;
  }
  const std::shared_ptr<Call> call = first_unacknowledged().call;
  if (!call) return;
  const Sequence known = submitted_.load(std::memory_order_seq_cst);
  if (look([&] { return first_without_finish(call->sequence) < 0; }) && note_acknowledged()) return;
  const Nanos began = now_ns(), deadline = began + timeout_;
  while (true) {
    if (note_acknowledged()) return;
    const int finisher = first_without_finish(call->sequence);
    if (finisher < 0) continue;
    const auto over = [&] {
      return peer(finisher).has_finished(call->sequence) || submitted_.load(std::memory_order_seq_cst) != known;
    };
    while (!over() && now_ns() - began < spin_) breathe();
    own_->awaits_finish_of.store(static_cast<std::uint32_t>(finisher), std::memory_order_seq_cst);
    const std::uint32_t bell = own_->bell.load(std::memory_order_seq_cst);
    if (!over()) {
      check_error();
      check_left(nullptr, {}, call->sequence);
      const Nanos now = now_ns();
      if (now - last_life_check_ >= kSlice) check_alive(call->what);
      if (now >= deadline) {
        std::vector<int> late;
        for (int r = 0; r < world_.world_size; ++r)
          if (r != world_.rank && !peer(r).has_finished(call->sequence)) late.push_back(r);
        if (!late.empty())
          raise(CommError::Kind::kTimeout, call->what, late,
                call->what + ": " + list_ranks(late) + " did not finish within " + format_seconds(timeout_) + " s");
      }
      {
        MutexLock lock(mutex_);
        if (stop_) break;
      }
      futex_wait(own_->bell, bell, std::min(kSlice, deadline - now));
    }
    own_->awaits_finish_of.store(Control::kNobody, std::memory_order_seq_cst);
    check_error();
    if (submitted_.load(std::memory_order_seq_cst) != known) return;
  }
  own_->awaits_finish_of.store(Control::kNobody, std::memory_order_seq_cst);
}

int Group::first_without_finish(Sequence sequence) const {
  for (int i = 1; i < world_.world_size; ++i) {
    const int r = (world_.rank + i) % world_.world_size;
    if (!controls_[r]->has_finished(sequence)) return r;
  }
  return -1;
}

// Closes the calls that all peers have read; true if there was one. Those of one priority end in order.
bool Group::note_acknowledged() {
  bool any = false;
  {
    MutexLock lock(mutex_);
    bool ordinary_wait = false;
    for (auto it = to_acknowledge_.begin(); it != to_acknowledge_.end();) {
      Call& call = **it;
      if ((call.priority == 0 && ordinary_wait) || first_without_finish(call.sequence) >= 0) {
        ordinary_wait = ordinary_wait || call.priority == 0;
        if (ordinary_wait && urgent_unacknowledged_.load(std::memory_order_seq_cst) == 0) break;
        ++it;
        continue;
      }
      call.finished_at = now_ns();
      call.state.store(Call::kDone, std::memory_order_release);
      if (call.asynchronous) --asynchronous_open_;
      if (call.priority > 0) {
        urgent_unacknowledged_.fetch_sub(1, std::memory_order_seq_cst);
        urgent_closed_ = true;
      }
      it = to_acknowledge_.erase(it);
      any = true;
    }
  }
  if (any) changed_.notify_all();
  return any;
}

}  // namespace bellows
