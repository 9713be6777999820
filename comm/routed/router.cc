#include "routed/router.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "bellows/base/digest.h"
#include "futex.h"
#include "group.h"

namespace bellows {
namespace {

constexpr Nanos kSpin = 50'000;  // looking costs less than sleeping for so long
constexpr double kDrainSeconds = 5;
constexpr std::size_t kRecent = 256;  // calls that questions of peers are compared with

}  // namespace

Router::Router(const World& world, std::unique_ptr<Wire> wire, std::unique_ptr<Lifelines> lifelines,
               std::function<void(const SharedMemory&)> lend, double timeout_s, bool may_spin)
    : world_(world),
      scratch_([this, lend = std::move(lend)](const SharedMemory& memory) {
        wire_->remember(memory.bytes());
        if (lend) lend(memory);
      }),
      wire_(std::move(wire)),
      lifelines_(std::move(lifelines)),
      timeout_(from_seconds(timeout_s)),
      may_spin_(may_spin),
      sending_(world.world_size, 0),
      left_at_(world.world_size) {
  stats_.wait_by_peer.resize(world.world_size);
}

Router::~Router() { close(); }

std::string Router::suffix() const { return " (generation " + std::to_string(world_.generation) + ")"; }

// ---- The calling thread ----

std::shared_ptr<Exchange> Router::submit(std::shared_ptr<Exchange> exchange, bool asynchronous) {
  bool driven;
  {
    MutexLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    exchange->number = ++last_number_;
    ++stats_.calls;
    ++open_;
    inbox_.push_back(exchange);
    if (exchange->title.empty()) exchange->title = exchange->what;
    // Ranks that make different calls must not take each other's messages for their own.
    const std::uint64_t kind = exchange->signature ^ xxh64(std::as_bytes(std::span(exchange->title)));
    exchange->tag = static_cast<std::uint32_t>(kind >> 48) << 16 | (exchange->number & 0xffff);
    recent_.push_back({exchange->number, exchange->signature, exchange->title});
    if (recent_.size() > kRecent) recent_.pop_front();
    driven = driving_;
    if (asynchronous && !progress_.joinable()) {
      sigset_t all, before;  // signals are for the threads of the program, not for this one
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      progress_ = std::thread([this] { progress_loop(); });
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  if (driven)
    wire_->wake();
  else if (asynchronous)
    work_.notify_one();
  return exchange;
}

void Router::wait(const std::shared_ptr<Exchange>& exchange) {
  drive_until([&] { return exchange->state.load(std::memory_order_acquire) != Exchange::kUnderWay; });
  if (exchange->state.load(std::memory_order_acquire) == Exchange::kFailed) std::rethrow_exception(exchange->error);
}

void Router::exclusively(const std::function<void()>& action) {
  {
    MutexLock lock(mutex_);
    while (driving_) {
      wire_->wake();
      changed_.wait_for(mutex_, std::chrono::milliseconds(1));
    }
    driving_ = true;
  }
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  {
    MutexLock lock(mutex_);
    driving_ = false;
  }
  changed_.notify_all();
  work_.notify_one();
  if (error) std::rethrow_exception(error);
}

void Router::raise(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                   const std::string& message) {
  exclusively([&] { fail({kind, operation, ranks, message + suffix()}, true); });
  MutexLock lock(mutex_);
  std::rethrow_exception(failure_);
}

void Router::abort(const std::string& why) {
  bool driven;
  {
    MutexLock lock(mutex_);
    if (failure_ || closed_) return;
    abort_why_ = "aborted by rank " + std::to_string(world_.rank) + ": " + why;
    failing_ = true;
    driven = driving_;
    if (!driven) driving_ = true;
  }
  if (driven) {
    wire_->wake();  // the driver carries it out
    return;
  }
  step();
  {
    MutexLock lock(mutex_);
    driving_ = false;
  }
  changed_.notify_all();
}

void Router::close() {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  const bool unwinding = std::uncaught_exceptions() > 0;
  const Nanos patience = now_ns() + from_seconds(kDrainSeconds);
  bool idle = false;
  drive_until([&]() BELLOWS_REQUIRES(mutex_) {
    idle = failure_ || open_ == 0;
    return idle || unwinding || now_ns() > patience;
  });
  if (!idle) {
    exclusively([&] {
      try {
        take_up();
      } catch (const CommError& error) {
        return fail({error.kind(), error.operation(), error.ranks(), error.what()}, true);
      }
      if (active_.empty()) {  // the last one has just been finished
        idle = true;
        return;
      }
      const std::string what = active_.front()->what;
      fail({CommError::Kind::kPeerLost,
            what,
            {world_.rank},
            what + ": rank " + std::to_string(world_.rank) + " left the communicator in the middle" + suffix()},
           true);
    });
  }
  // What peers wait for leaves before the farewell does.
  exclusively([&] {
    while (idle && !wire_->flushed() && now_ns() < patience && !failing_)
      if (!wire_->progress()) sched_yield();
  });
  lifelines_->tell_farewell();
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  wire_->wake();
  if (progress_.joinable()) progress_.join();
}

CommStats Router::stats() const {
  MutexLock lock(mutex_);
  CommStats stats = stats_;
  stats.bytes_read_from_peers = bytes_from_peers_;
  return stats;
}

// ---- Driving ----

// Waits for `condition` (asked with the mutex held), driving whenever nobody else does.
template <class Condition>
void Router::drive_until(const Condition& condition) {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (driving_ && !condition()) changed_.wait_for(mutex_, std::chrono::milliseconds(20));
      if (condition()) return;
      driving_ = true;
    }
    step();
    bool more;
    {
      MutexLock lock(mutex_);
      driving_ = false;
      more = open_ > 0 && condition();
    }
    changed_.notify_all();
    if (more) work_.notify_one();  // what this caller leaves behind
  }
}

void Router::progress_loop() {
  pthread_setname_np(pthread_self(), "bellows-comm");
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stop_ && (driving_ || open_ == 0)) work_.wait(mutex_);
      if (stop_) return;
      driving_ = true;
    }
    step();
    {
      MutexLock lock(mutex_);
      driving_ = false;
    }
    changed_.notify_all();
  }
}

// One turn: as long as there is something to do, for a while; then a sleep.
void Router::step() noexcept {
  try {
    if (failure()) return;
    if (pass()) {
      idle_since_ = 0;
      return;
    }
    const Nanos now = now_ns();
    if (idle_since_ == 0) idle_since_ = now;
    if (may_spin_ ? now - idle_since_ < kSpin : now - idle_since_ < kSpin / 10) {
      may_spin_ ? cpu_relax() : static_cast<void>(sched_yield());
      return;
    }
    sleep();
  } catch (const CommError& error) {
    fail({error.kind(), error.operation(), error.ranks(), error.what()}, true);
  } catch (const std::exception& error) {
    const std::string what = current_call();
    fail({CommError::Kind::kAborted,
          what,
          {},
          "rank " + std::to_string(world_.rank) + " failed in " + what + ": " + error.what() + suffix()},
         true);
  }
}

}  // namespace bellows
