// The router carrying exchanges out: waves, messages, tasks.
#include <algorithm>
#include <optional>

#include "routed/router.h"

namespace bellows {
namespace {

constexpr Nanos kListen = 500'000;               // between two looks at lifelines while there is much to do
constexpr std::size_t kSendingAtOnce = 4 << 20;  // usual bytes under way to one peer; what urgent ones queue behind
constexpr std::size_t kScratchAtOnce = 32 << 20;

int class_of(const Exchange& exchange) { return exchange.priority > 0 ? 1 : 0; }

/// Exchanges of one class in their order, as far as they have been looked at.
struct Line {
  bool first = true;
  bool wants_scratch = false;
};

}  // namespace

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
  if (has_news()) {
    listen();
    take_up();
  } else if (now_ns() - last_listen_ > kListen) {
    listen();
    check_deadlines();
  }
  bool moved = wire_->progress();
  std::array<Line, 2> lines;  // of exchanges, usual and urgent
  for (std::size_t i = 0; i < active_.size();) {
    Exchange& exchange = *active_[i];
    Line& line = lines[class_of(exchange)];
    moved |= advance(exchange);
    moved |= open_waves(exchange, line.wants_scratch);
    start_sends(exchange, line.first);
    line.first = false;
    line.wants_scratch |= exchange.open_waves_end < static_cast<int>(exchange.waves.size());
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

void Router::take_up() {
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
// An exchange whose predecessors in the line still want scratch gets none, or ranks could wait for each other.
bool Router::open_waves(Exchange& x, bool behind) {
  bool moved = false;
  const int kind = class_of(x);
  bool new_memory = false;
  while (x.open_waves_end < static_cast<int>(x.waves.size())) {
    const int w = x.open_waves_end;
    Exchange::Wave& wave = x.waves[w];
    if (scratch_in_use_[kind] > 0 && scratch_in_use_[kind] + wave.scratch_bytes > kScratchAtOnce) break;
    // The first touch of memory takes long; between two such, other things get their turn.
    if (new_memory) break;
    if (behind && wave.scratch_bytes > 0) break;
    wave.opened = true;
    ++x.open_waves_end;
    moved = true;
    if (wave.scratch_bytes > 0) {
      wave.scratch = scratch_.take(wave.scratch_bytes, &new_memory);
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

// Later calls share a limit for each peer; the first in the line has one of its own, since its peers may take in
// nothing of the later ones before they are through with it.
void Router::start_sends(Exchange& x, bool first) {
  const bool usual = class_of(x) == 0;
  for (std::size_t i = 0; i < x.ready_sends.size();) {
    Exchange::Send& s = x.sends[x.ready_sends[i]];
    const std::size_t under_way = first ? x.sending[s.peer] : sending_[s.peer];
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
    scratch_.give(wave.scratch);
    wave.scratch = nullptr;
  }
}

void Router::finish(std::size_t index) {
  const std::shared_ptr<Exchange> exchange = active_[index];
  active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  exchange->tasks.clear();  // they hold the arguments
  {
    MutexLock lock(mutex_);
    finished_at_ = exchange->finished_at = now_ns();
    exchange->state.store(Exchange::kDone, std::memory_order_release);
    --open_;
  }
  changed_.notify_all();
}

}  // namespace bellows
