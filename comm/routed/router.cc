#include "routed/router.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "bellows/base/digest.h"
#include "futex.h"
#include "group.h"

namespace bellows {
namespace {

constexpr Nanos kSpin = 50'000;       // looking costs less than sleeping for so long
constexpr Nanos kSlice = 20'000'000;  // between two looks at deadlines
constexpr Nanos kListen = 500'000;    // between two looks at lifelines while there is much to do
constexpr Nanos kAsk = 50'000'000;    // of waiting before peers are asked what they are doing
constexpr Nanos kLossGrace = 15'000'000;
constexpr Nanos kTroubleGrace = 300'000'000;
constexpr Nanos kFarewellGrace = 1'000'000'000;  // for messages that a farewell has overtaken
constexpr std::size_t kSendingAtOnce = 4 << 20;  // usual bytes under way to one peer; what urgent ones queue behind
constexpr std::size_t kScratchAtOnce = 32 << 20;
constexpr std::size_t kLeastScratch = 64 << 10;
constexpr std::size_t kRecent = 256;
constexpr double kDrainSeconds = 5;

int class_of(const Exchange& exchange) { return exchange.priority > 0 ? 1 : 0; }

std::string format_seconds(Nanos ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds(ns));
  return text;
}

}  // namespace

Router::Router(const World& world, std::unique_ptr<Wire> wire, std::unique_ptr<Lifelines> lifelines,
               std::function<void(const SharedMemory&)> lend, double timeout_s, bool may_spin)
    : world_(world),
      wire_(std::move(wire)),
      lifelines_(std::move(lifelines)),
      lend_(std::move(lend)),
      timeout_(from_seconds(timeout_s)),
      may_spin_(may_spin),
      sending_(world.world_size, 0),
      left_(world.world_size, false),
      left_at_(world.world_size, 0) {
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
    exchange->asynchronous = asynchronous;
    exchange->submitted_at = now_ns();
    ++stats_.calls;
    ++open_;
    inbox_.push_back(exchange);
    if (exchange->title.empty()) exchange->title = exchange->what;
    // Ranks that make different calls must not take each other's messages for their own.
    const std::uint64_t kind = exchange->signature ^ xxh64(std::as_bytes(std::span(exchange->title)));
    exchange->tag = static_cast<std::uint32_t>(kind >> 48) << 16 | (exchange->number & 0xffff);
    recent_.push_back({exchange->number, {exchange->number, exchange->signature, exchange->title}});
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
  action();
  {
    MutexLock lock(mutex_);
    driving_ = false;
  }
  changed_.notify_all();
  work_.notify_one();
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
      adopt();
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
    {
      MutexLock lock(mutex_);
      if (failure_) {
        for (auto& exchange : inbox_) {
          exchange->error = failure_;
          exchange->state.store(Exchange::kFailed, std::memory_order_release);
          --open_;
        }
        inbox_.clear();
        return;
      }
    }
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
    const std::string what = active_.empty() ? "communicator" : active_.front()->what;
    fail({CommError::Kind::kAborted,
          what,
          {},
          "rank " + std::to_string(world_.rank) + " failed in " + what + ": " + error.what() + suffix()},
         true);
  }
}

bool Router::pass() {
  if (failing_.exchange(false)) {
    std::string why;
    {
      MutexLock lock(mutex_);
      why = abort_why_;
    }
    fail({CommError::Kind::kAborted, "abort", {}, why + suffix()}, true);
    return true;
  }
  // What peers have told is heard before a new call is taken up: it may be the end of this generation.
  if (has_news() || now_ns() - last_listen_ > kListen) listen();
  adopt();
  bool moved = wire_->progress();
  for (std::size_t i = 0; i < active_.size();) {
    Exchange& exchange = *active_[i];
    moved |= advance(exchange);
    moved |= open_waves(exchange);
    start_sends(exchange);
    if (exchange.finished_waves == static_cast<int>(exchange.waves.size())) {
      finish(i);
      moved = true;
    } else {
      ++i;
    }
  }
  return run_one_task() || moved;
}

bool Router::has_news() {
  MutexLock lock(mutex_);
  return !inbox_.empty();
}

void Router::adopt() {
  std::deque<std::shared_ptr<Exchange>> fresh;
  {
    MutexLock lock(mutex_);
    fresh.swap(inbox_);
  }
  for (auto& exchange : fresh) {
    exchange->moved_at = now_ns();
    exchange->tasks_left = static_cast<int>(exchange->tasks.size());
    exchange->sending.assign(world_.world_size, 0);
    for (Exchange::Wave& wave : exchange->waves)
      wave.open_parts = static_cast<int>(wave.receives.size() + wave.tasks.size() + wave.sends.size());
    const auto place = std::upper_bound(active_.begin(), active_.end(), exchange, [](const auto& a, const auto& b) {
      return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
    });
    if (const auto asked = questions_.find(exchange->number); asked != questions_.end()) {
      const auto list = std::move(asked->second);
      questions_.erase(asked);
      for (const auto& [rank, question] : list) compare(rank, question);
    }
    active_.insert(place, std::move(exchange));
  }
}

// Waves open in order, alike on every rank; so what is received first is what the peers send first.
bool Router::open_waves(Exchange& x) {
  bool moved = false;
  const int kind = class_of(x);
  bool new_memory = false;
  while (x.open_waves_end < static_cast<int>(x.waves.size())) {
    const int w = x.open_waves_end;
    Exchange::Wave& wave = x.waves[w];
    if (scratch_in_use_[kind] > 0 && scratch_in_use_[kind] + wave.scratch_bytes > kScratchAtOnce) break;
    // The first touch of memory takes long; between two such, other things get their turn.
    if (new_memory) break;
    // An earlier exchange of its class that still waits for scratch goes first, or ranks could wait for each other.
    const bool behind = std::any_of(active_.begin(), active_.end(), [&](const auto& other) {
      return class_of(*other) == kind && other->open_waves_end < static_cast<int>(other->waves.size()) &&
             (other->priority != x.priority ? other->priority > x.priority : other->number < x.number);
    });
    if (behind && wave.scratch_bytes > 0) break;
    wave.opened = true;
    ++x.open_waves_end;
    moved = true;
    if (wave.scratch_bytes > 0) {
      const std::size_t before = scratch_.size();
      wave.scratch = take_scratch(wave.scratch_bytes);
      new_memory = scratch_.size() > before;
      scratch_taken_[wave.scratch].second = kind;
      scratch_in_use_[kind] += wave.scratch_bytes;
    }
    if (wave.open_parts == 0) {
      ++wave.open_parts;
      part_over(x, w);
    }
    for (const int i : wave.receives) {
      Exchange::Receive& r = x.receives[i];
      std::byte* const place = r.place ? r.place : wave.scratch + r.scratch;
      wire_->receive(r.peer, {x.tag, r.key}, {place, r.bytes}, r.transfer);
      x.pending_receives.push_back(i);
    }
    for (const int i : wave.tasks)
      if (x.tasks[i].waits_for == 0) x.ready_tasks.push_back(i);
    for (const int i : wave.sends)
      if (x.sends[i].waits_for == 0) x.ready_sends.push_back(i);
  }
  return moved;
}

bool Router::advance(Exchange& x) {
  bool moved = false;
  for (std::size_t i = 0; i < x.pending_receives.size();) {
    Exchange::Receive& r = x.receives[x.pending_receives[i]];
    if (r.transfer.state == Transfer::kFailed) note_trouble(x, "from", r.peer, r.transfer);
    if (r.transfer.state != Transfer::kDone) {
      ++i;
      continue;
    }
    moved = true;
    bytes_from_peers_ += r.bytes;
    for (const int t : r.tasks)
      if (--x.tasks[t].waits_for == 0 && x.waves[x.tasks[t].wave].opened) x.ready_tasks.push_back(t);
    if (r.tasks.empty()) {
      wire_->release(r.peer, r.transfer);
      part_over(x, r.wave);
    }
    x.pending_receives[i] = x.pending_receives.back();
    x.pending_receives.pop_back();
  }
  for (std::size_t i = 0; i < x.pending_sends.size();) {
    Exchange::Send& s = x.sends[x.pending_sends[i]];
    if (s.transfer.state == Transfer::kFailed) note_trouble(x, "to", s.peer, s.transfer);
    if (s.transfer.state != Transfer::kDone) {
      ++i;
      continue;
    }
    moved = true;
    if (class_of(x) == 0) sending_[s.peer] -= s.bytes;
    x.sending[s.peer] -= s.bytes;
    part_over(x, s.wave);
    x.pending_sends[i] = x.pending_sends.back();
    x.pending_sends.pop_back();
  }
  return moved;
}

// A size that does not fit comes from ranks that made different calls, a broken connection from a peer that is gone:
// answers and lifelines tell which.
void Router::note_trouble(Exchange& x, const char* direction, int peer, const Transfer& transfer) {
  if (!x.trouble.empty()) return;
  x.trouble = std::string("a message ") + direction + " rank " + std::to_string(peer) + ": " + transfer.error;
  x.trouble_at = now_ns();
  x.trouble_peer = peer;
  ask(x);
}

// Later calls share a limit for each peer; the oldest has one of its own, since its peers may take in nothing of the
// later ones before they are through with it.
void Router::start_sends(Exchange& x) {
  const bool usual = class_of(x) == 0;
  const bool oldest = std::none_of(active_.begin(), active_.end(), [&](const auto& other) {
    return class_of(*other) == class_of(x) && other->number < x.number;
  });
  for (std::size_t i = 0; i < x.ready_sends.size();) {
    Exchange::Send& s = x.sends[x.ready_sends[i]];
    const std::size_t under_way = oldest ? x.sending[s.peer] : sending_[s.peer];
    if (usual && under_way > 0 && under_way + s.bytes > kSendingAtOnce) {
      ++i;
      continue;
    }
    if (usual) sending_[s.peer] += s.bytes;
    x.sending[s.peer] += s.bytes;
    const std::byte* const data = s.data ? s.data : x.waves[s.wave].scratch + s.scratch;
    wire_->send(s.peer, {x.tag, s.key}, {data, s.bytes}, s.transfer);
    x.pending_sends.push_back(x.ready_sends[i]);
    x.ready_sends.erase(x.ready_sends.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// Tasks of one priority run in the order of their calls: a call may add to what the one before it has left (carries).
bool Router::run_one_task() {
  std::optional<int> behind;  // tasks of this priority must wait
  for (auto& exchange : active_) {
    Exchange& x = *exchange;
    if (behind == x.priority) continue;
    if (x.ready_tasks.empty()) {
      if (x.tasks_left > 0) behind = x.priority;
      continue;
    }
    const int index = x.ready_tasks.front();
    x.ready_tasks.erase(x.ready_tasks.begin());
    Exchange::Task& task = x.tasks[index];
    const Nanos began = now_ns();
    task.run();
    const Nanos spent = now_ns() - began;
    {
      MutexLock lock(mutex_);
      stats_.busy_ns += spent;
    }
    for (const int t : task.tasks)
      if (--x.tasks[t].waits_for == 0) x.ready_tasks.push_back(t);
    for (const int s : task.sends)
      if (--x.sends[s].waits_for == 0) x.ready_sends.push_back(s);
    // A message is given back once the last task that reads it has run.
    for (const int i : x.waves[task.wave].receives) {
      Exchange::Receive& r = x.receives[i];
      if (r.transfer.state != Transfer::kDone) continue;
      const auto mine = std::find(r.tasks.begin(), r.tasks.end(), index);
      if (mine == r.tasks.end()) continue;
      r.tasks.erase(mine);
      if (!r.tasks.empty()) continue;
      wire_->release(r.peer, r.transfer);
      part_over(x, r.wave);
    }
    --x.tasks_left;
    part_over(x, task.wave);
    return true;
  }
  return false;
}

void Router::part_over(Exchange& x, int w) {
  Exchange::Wave& wave = x.waves[w];
  x.moved_at = now_ns();
  if (--wave.open_parts > 0) return;
  ++x.finished_waves;
  if (wave.scratch) {
    scratch_in_use_[class_of(x)] -= wave.scratch_bytes;
    give_scratch(wave.scratch);
    wave.scratch = nullptr;
  }
}

void Router::finish(std::size_t index) {
  const std::shared_ptr<Exchange> exchange = active_[index];
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  exchange->tasks.clear();  // they hold the arguments
  {
    MutexLock lock(mutex_);
    exchange->finished_at = now_ns();
    exchange->state.store(Exchange::kDone, std::memory_order_release);
    --open_;
  }
  changed_.notify_all();
}

// ---- Waiting ----

std::vector<int> Router::awaited(const Exchange& exchange) const {
  std::vector<int> ranks;
  for (const int i : exchange.pending_receives) ranks.push_back(exchange.receives[i].peer);
  if (ranks.empty())
    for (const int i : exchange.pending_sends) ranks.push_back(exchange.sends[i].peer);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Router::sleep() {
  listen();
  check_deadlines();
  const Nanos began = now_ns();
  const int fd = lifelines_->fd();
  if (!failing_) wire_->wait(loss_ ? kLossGrace : kSlice, {&fd, 1});
  const Nanos slept = now_ns() - began;
  if (active_.empty()) return;
  std::vector<int> ranks = not_here(*active_.front(), awaited(*active_.front()));
  MutexLock lock(mutex_);
  stats_.peer_wait_ns += slept;
  for (const int r : ranks) stats_.wait_by_peer[r] += slept / static_cast<Nanos>(ranks.size());
}

/// What the caller is in, for messages.
std::string Router::current_call() {
  if (!active_.empty()) return active_.front()->what;
  MutexLock lock(mutex_);
  return inbox_.empty() ? "communicator" : inbox_.front()->what;
}

void Router::listen() {
  last_listen_ = now_ns();
  std::optional<Failure> first;
  Lifelines::Events events;
  // The end of a lifeline may overtake the last messages of its rank: they are given a moment.
  events.lost = [&](int rank, const std::string& how) {
    if (!loss_) loss_ = {rank, now_ns(), how};
  };
  events.left = [&](int rank) {
    left_[rank] = true;
    left_at_[rank] = now_ns();
  };
  bool told = false;
  events.failed = [&](const Failure& failure) {
    if (first) return;
    first = failure;
    told = true;
  };
  std::vector<std::pair<int, Lifelines::Question>> questions;
  events.asked = [&](int rank, const Lifelines::Question& question) { questions.push_back({rank, question}); };
  events.here = [&](int rank, std::uint32_t call) {
    for (const auto& exchange : active_)
      if (exchange->number == call && exchange->asked) exchange->here[rank] = true;
  };
  lifelines_->poll(events);
  if (!first && loss_ && now_ns() - loss_->at > kLossGrace) {
    const std::string what = current_call();
    first = Failure{CommError::Kind::kPeerLost,
                    what,
                    {loss_->rank},
                    what + ": rank " + std::to_string(loss_->rank) + " is gone: " + loss_->how + suffix()};
  }
  if (first) return fail(*first, !told);
  for (const auto& [rank, question] : questions) compare(rank, question);
}

void Router::throw_left(const Exchange& exchange, int rank) const {
  throw CommError(CommError::Kind::kPeerLost, exchange.what, {rank}, world_.generation,
                  list_ranks({rank}) + " left the communicator during " + exchange.what + suffix());
}

void Router::check_deadlines() {
  const Nanos now = now_ns();
  for (const auto& exchange : active_) {
    if (!exchange->trouble.empty() && now - exchange->trouble_at > kTroubleGrace) {
      if (left_[exchange->trouble_peer]) throw_left(*exchange, exchange->trouble_peer);
      throw std::runtime_error(exchange->trouble);
    }
    const std::vector<int> ranks = awaited(*exchange);
    if (ranks.empty()) continue;
    for (const int r : ranks)
      if (left_[r] && now - left_at_[r] > kFarewellGrace) throw_left(*exchange, r);
    if (!exchange->asked && now - exchange->moved_at > kAsk) ask(*exchange);
    const Nanos limit = exchange->timeout > 0 ? exchange->timeout : timeout_;
    if (now - exchange->moved_at > limit) {
      const std::vector<int> late = not_here(*exchange, ranks);
      throw CommError(CommError::Kind::kTimeout, exchange->what, late, world_.generation,
                      exchange->what + ": " + list_ranks(late) + " did not arrive within " + format_seconds(limit) +
                          " s" + suffix());
    }
  }
}

// Ranks that make different calls wait for each other in vain, and whom a rank waits for may itself wait for a third.
// So whoever waits for long tells everybody in what; those who are in the same call answer.
void Router::ask(Exchange& exchange) {
  if (exchange.asked) return;
  exchange.asked = true;
  exchange.here.resize(world_.world_size);
  exchange.here[world_.rank] = true;
  for (int r = 0; r < world_.world_size; ++r)
    if (r != world_.rank) lifelines_->ask(r, {exchange.number, exchange.signature, exchange.title});
}

/// The ranks that have not come to this call, as far as is known; `awaited` if all have.
std::vector<int> Router::not_here(const Exchange& exchange, const std::vector<int>& awaited) const {
  std::vector<int> ranks;
  if (exchange.asked)
    for (int r = 0; r < world_.world_size; ++r)
      if (!exchange.here[r]) ranks.push_back(r);
  return ranks.empty() ? awaited : ranks;
}

void Router::compare(int rank, const Lifelines::Question& theirs) {
  std::optional<Lifelines::Question> mine;
  {
    MutexLock lock(mutex_);
    for (const auto& [number, call] : recent_)
      if (number == theirs.call) mine = call;
  }
  if (!mine) {
    questions_[theirs.call].push_back({rank, theirs});
    return;
  }
  if (mine->signature == theirs.signature && mine->what == theirs.what) {
    lifelines_->answer(rank, theirs.call);
    return;
  }
  const std::string detail = mine->what == theirs.what ? " with other arguments" : "";
  throw CommError(CommError::Kind::kAborted, mine->what, {std::min(rank, world_.rank), std::max(rank, world_.rank)},
                  world_.generation,
                  "mismatched collectives: as call " + std::to_string(theirs.call) + " " + list_ranks({world_.rank}) +
                      " called " + mine->what + ", " + list_ranks({rank}) + " called " + theirs.what + detail +
                      suffix());
}

// ---- Failing ----

void Router::fail(Failure failure, bool tell) {
  {
    MutexLock lock(mutex_);
    if (failure_) return;
  }
  if (tell) lifelines_->tell_failure(failure);
  wire_->cancel_all();  // before anybody learns that memory is free again
  MutexLock lock(mutex_);
  failure_ = std::make_exception_ptr(
      CommError(failure.kind, failure.operation, failure.ranks, world_.generation, failure.message));
  for (auto& exchange : inbox_) active_.push_back(exchange);
  inbox_.clear();
  for (auto& exchange : active_) {
    exchange->error = failure_;
    exchange->finished_at = now_ns();
    exchange->state.store(Exchange::kFailed, std::memory_order_release);
  }
  active_.clear();
  open_ = 0;
  changed_.notify_all();
}

// ---- Scratch ----

std::byte* Router::take_scratch(std::size_t bytes) {
  std::size_t size = kLeastScratch;
  while (size < bytes) size *= 2;
  auto it = free_scratch_.lower_bound(size);
  std::size_t index;
  if (it != free_scratch_.end() && it->first <= 4 * size) {
    index = it->second;
    free_scratch_.erase(it);
  } else {
    index = scratch_.size();
    scratch_.emplace_back(size);
    wire_->remember(scratch_.back().bytes());
    if (lend_) lend_(scratch_.back());
  }
  scratch_taken_[scratch_[index].data()] = {index, 0};
  return scratch_[index].data();
}

void Router::give_scratch(std::byte* memory) {
  const auto it = scratch_taken_.find(memory);
  free_scratch_.emplace(scratch_[it->second.first].size(), it->second.first);
  scratch_taken_.erase(it);
}

}  // namespace bellows
