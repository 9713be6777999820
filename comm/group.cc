#include "group.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bellows/base/check.h"
#include "bellows/base/digest.h"
#include "bellows/base/memory.h"
#include "futex.h"

namespace bellows {
namespace {

constexpr Nanos kSpin = 50'000;                  // a futex wake costs up to 60 us on a virtual machine
constexpr Nanos kSlice = 20'000'000;             // between two looks at peers' lives
constexpr Nanos kLook = 1'000'000;               // between two looks of a progress thread that was busy just now
constexpr int kLooks = 20;                       // before it sleeps until it is woken
constexpr std::uint64_t kPromptBytes = 1 << 20;  // calls worth waking it for
constexpr double kDrainSeconds = 5;              // for calls still under way when a communicator is dropped

void copy_text(char* to, std::size_t size, const std::string& text) {
  const std::size_t n = std::min(size - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

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

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

// Marks this rank as one that reads peers' windows. An owner that leaves sets `left` first and then waits for readers;
// a reader sets `reading` first and then looks at `left`: one of the two sees the other.
class Group::ReadingGuard {
 public:
  ReadingGuard(Group& group, const Call& call) : own_(group.own()) {
    own_.reading.store(1, std::memory_order_seq_cst);
    try {
      group.check_error();
      for (int r = 0; r < group.world().world_size; ++r)
        if (r != group.world().rank && group.peer(r).left.load(std::memory_order_seq_cst))
          group.raise(CommError::Kind::kPeerLost, call.what, {r},
                      list_ranks({r}) + " left the communicator during " + call.what);
    } catch (...) {
      own_.reading.store(0, std::memory_order_seq_cst);
      throw;
    }
  }
  ~ReadingGuard() { own_.reading.store(0, std::memory_order_seq_cst); }
  ReadingGuard(const ReadingGuard&) = delete;

 private:
  Control& own_;
};

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

// ---- The calling thread ----

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
  copy_text(entry.what, sizeof entry.what, call.what);
  entry.posted_at = now_ns();
  call.sequence = sequence;
  last_sequence_ = sequence;
  own_->posted.store(sequence, std::memory_order_seq_cst);
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank &&
        peer(r).awaits_post_of.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(world_.rank))
      ring(peer(r));
}

std::shared_ptr<Call> Group::submit(std::shared_ptr<Call> call, bool asynchronous) {
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
    if (!driven && (call->bytes >= kPromptBytes || !attentive)) work_.notify_one();
  }
  if (driven) ring(*own_);  // the driver may be waiting for acknowledgements only
  return call;
}

void Group::run(const std::shared_ptr<Call>& call) { wait_read(submit(call, false)); }

void Group::wait_read(const std::shared_ptr<Call>& call) {
  drive_until([&] { return call->state.load(std::memory_order_acquire) != Call::kQueued; });
  if (call->state.load(std::memory_order_acquire) == Call::kFailed) std::rethrow_exception(call->error);
}

void Group::wait_done(const std::shared_ptr<Call>& call) {
  drive_until([&] { return call->state.load(std::memory_order_acquire) >= Call::kDone; });
  if (call->state.load(std::memory_order_acquire) == Call::kFailed) std::rethrow_exception(call->error);
}

void Group::wait_acknowledged(Sequence sequence) {
  // Older ones are by the size of the ring; so the counters may wrap while a slot lies unused.
  if (last_sequence_ - sequence > Control::kRing) return;
  const auto acknowledged = [&] { return first_without_finish(sequence) < 0; };
  if (acknowledged()) return;
  bool failed = false;
  drive_until([&]() BELLOWS_REQUIRES(mutex_) {
    failed = failure_ != nullptr;
    return failed || acknowledged();
  });
  if (failed) {
    MutexLock lock(mutex_);
    std::rethrow_exception(failure_);
  }
}

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

// ---- Driving ----

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
    step();
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
    step();
    {
      MutexLock lock(mutex_);
      driving_ = false;
    }
    changed_.notify_all();
  }
}

void Group::step() noexcept {
  try {
    check_error();
    if (Call* call = next_to_read())
      read(*call);
    else
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

Call* Group::next_to_read() {
  MutexLock lock(mutex_);
  return to_read_.empty() ? nullptr : to_read_.front().get();
}

template <class Body>
void Group::busy(const Call& call, const Body& body) {
  const Nanos began = now_ns();
  if (call.reads_windows && reach_->shares_address_space()) {
    const ReadingGuard guard(*this, call);
    body();
  } else {
    body();
  }
  const Nanos spent = now_ns() - began;
  MutexLock lock(mutex_);
  stats_.busy_ns += spent;
}

void Group::read(Call& call) {
  if (call.own_part) busy(call, call.own_part);
  // Starting behind itself, each rank reads from another peer than the others do at that time.
  std::vector<int> missing;
  for (int i = 1; i < world_.world_size; ++i) {
    const int r = (world_.rank + i) % world_.world_size;
    if (call.only_from < 0 || call.only_from == r) missing.push_back(r);
  }
  const Nanos deadline = now_ns() + (call.timeout > 0 ? call.timeout : timeout_);
  Nanos waited = 0, last_posted = 0;
  int last = -1;
  while (!missing.empty()) {
    const std::size_t before = missing.size();
    for (std::size_t i = 0; i < missing.size();) {
      const int r = missing[i];
      if (!reached(peer(r).posted.load(std::memory_order_seq_cst), call.sequence)) {
        ++i;
        continue;
      }
      verify(call, r);
      if (const Nanos at = announcement(r, call).posted_at; last < 0 || at > last_posted) last = r, last_posted = at;
      if (call.on_arrival) busy(call, [&] { call.on_arrival(r); });
      missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (missing.empty() || missing.size() < before) continue;
    const Nanos began = now_ns();
    await_arrival(call, missing, deadline);
    waited += now_ns() - began;
  }
  if (call.on_all_arrived) busy(call, call.on_all_arrived);

  own_->finished.store(call.sequence, std::memory_order_seq_cst);
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank &&
        peer(r).awaits_finish_of.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(world_.rank))
      ring(peer(r));
  {
    MutexLock lock(mutex_);
    call.finished_at = now_ns();
    call.state.store(Call::kRead, std::memory_order_release);
    to_acknowledge_.push_back(to_read_.front());
    to_read_.pop_front();
    if (waited > 0 && last >= 0) {
      stats_.peer_wait_ns += waited;
      stats_.wait_by_peer[last] += waited;
    }
  }
  changed_.notify_all();
  note_acknowledged();
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

// Returns when the first of `missing` has arrived, or an earlier call has been acknowledged.
void Group::await_arrival(const Call& call, const std::vector<int>& missing, Nanos deadline) {
  const int first = missing.front();
  const Nanos began = now_ns();
  while (true) {
    Sequence unacknowledged = 0;
    bool open;
    {
      MutexLock lock(mutex_);
      open = asynchronous_open_ > 0 && !to_acknowledge_.empty();
      if (open) unacknowledged = to_acknowledge_.front()->sequence;
    }
    const int finisher = open ? first_without_finish(unacknowledged) : -1;
    if (open && finisher < 0) {
      note_acknowledged();
      continue;
    }
    const auto arrived = [&] { return reached(peer(first).posted.load(std::memory_order_seq_cst), call.sequence); };
    const auto finished = [&] {
      return finisher >= 0 && reached(peer(finisher).finished.load(std::memory_order_seq_cst), unacknowledged);
    };
    while (!arrived() && !finished() && now_ns() - began < spin_) breathe();
    // From here on peers ring. Whoever comes between these stores and the look at the counters has rung already.
    own_->awaits_post_of.store(static_cast<std::uint32_t>(first), std::memory_order_seq_cst);
    own_->awaits_finish_of.store(static_cast<std::uint32_t>(finisher), std::memory_order_seq_cst);
    const std::uint32_t bell = own_->bell.load(std::memory_order_seq_cst);
    if (!arrived() && !finished()) {
      check_error();
      check_left(&call, missing, unacknowledged);
      const Nanos now = now_ns();
      if (now - last_life_check_ >= kSlice) check_alive(call.what);
      if (now >= deadline) {
        std::vector<int> late(missing);
        std::erase_if(late, [&](int r) { return reached(peer(r).posted.load(), call.sequence); });
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
    if (arrived()) return;
    if (finished()) note_acknowledged();
  }
}

// Returns when the oldest call that this rank has read is acknowledged by all, or there is something new to do.
void Group::await_acknowledgement() {
  std::shared_ptr<Call> call;
  {
    MutexLock lock(mutex_);
    if (to_acknowledge_.empty() || !to_read_.empty() || stop_) return;
    call = to_acknowledge_.front();
  }
  const Sequence known = submitted_.load(std::memory_order_seq_cst);
  const Nanos began = now_ns(), deadline = began + timeout_;
  while (true) {
    if (note_acknowledged()) return;
    const int finisher = first_without_finish(call->sequence);
    if (finisher < 0) continue;
    const auto over = [&] {
      return reached(peer(finisher).finished.load(std::memory_order_seq_cst), call->sequence) ||
             submitted_.load(std::memory_order_seq_cst) != known;
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
          if (r != world_.rank && !reached(peer(r).finished.load(), call->sequence)) late.push_back(r);
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
    if (!reached(controls_[r]->finished.load(std::memory_order_seq_cst), sequence)) return r;
  }
  return -1;
}

// Closes the calls that all peers have read; true if there was one.
bool Group::note_acknowledged() {
  bool any = false;
  {
    MutexLock lock(mutex_);
    while (!to_acknowledge_.empty() && first_without_finish(to_acknowledge_.front()->sequence) < 0) {
      Call& call = *to_acknowledge_.front();
      call.finished_at = now_ns();
      call.state.store(Call::kDone, std::memory_order_release);
      if (call.asynchronous) --asynchronous_open_;
      to_acknowledge_.pop_front();
      any = true;
    }
  }
  if (any) changed_.notify_all();
  return any;
}

// ---- Failures ----

void Group::check_error() {
  if (own_->error.state.load(std::memory_order_acquire) != ErrorRecord::kNone) throw_recorded();
}

// A peer that has dropped its communicator without what we wait for will never bring it.
void Group::check_left(const Call* call, const std::vector<int>& missing, Sequence unacknowledged) {
  std::vector<int> gone;
  if (call)
    for (const int r : missing)
      if (peer(r).left.load(std::memory_order_seq_cst) && !reached(peer(r).posted.load(), call->sequence))
        gone.push_back(r);
  if (unacknowledged != 0)
    for (int r = 0; r < world_.world_size; ++r)
      if (r != world_.rank && peer(r).left.load(std::memory_order_seq_cst) &&
          !reached(peer(r).finished.load(), unacknowledged) && std::find(gone.begin(), gone.end(), r) == gone.end())
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
      copy_text(error.operation, sizeof error.operation, operation);
      copy_text(error.message, sizeof error.message, message + suffix());
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
  }
  changed_.notify_all();
}

void Group::ring(Control& control) {
  control.bell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(control.bell);
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
  if (reach_->shares_address_space())
    for (int r = 0; r < world_.world_size; ++r)
      while (r != world_.rank && peer(r).reading.load(std::memory_order_seq_cst))
        std::this_thread::sleep_for(std::chrono::microseconds(50));
}

CommStats Group::stats() const {
  MutexLock lock(mutex_);
  CommStats stats = stats_;
  stats.bytes_read_from_peers = bytes_from_peers_;
  return stats;
}

}  // namespace bellows
