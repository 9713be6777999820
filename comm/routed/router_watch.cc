// The router waiting: for whom, how long, what peers tell meanwhile, and how a generation fails.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "group.h"
#include "routed/router.h"

namespace bellows {
namespace {

constexpr Nanos kSlice = 20'000'000;             // between two looks at deadlines
constexpr Nanos kAsk = 50'000'000;               // of waiting before peers are asked what they are doing
constexpr Nanos kLossGrace = 15'000'000;         // for messages that the end of a lifeline has overtaken
constexpr Nanos kFarewellGrace = 1'000'000'000;  // the same for a farewell
constexpr Nanos kTroubleGrace = 300'000'000;     // for others to tell better why a message has failed

std::string format_seconds(Nanos ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", seconds(ns));
  return text;
}

}  // namespace

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
  events.left = [&](int rank) { left_at_[rank] = now_ns(); };
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

// A size that does not fit comes from ranks that made different calls, a broken connection from a peer that is gone:
// answers and lifelines tell which.
void Router::note_trouble(Exchange& x, const char* direction, int peer, const Transfer& transfer) {
  if (!x.trouble.empty()) return;
  x.trouble = std::string("a message ") + direction + " rank " + std::to_string(peer) + ": " + transfer.error;
  x.trouble_at = now_ns();
  x.trouble_peer = peer;
  ask(x);
}

void Router::throw_left(const Exchange& exchange, int rank) const {
  throw CommError(CommError::Kind::kPeerLost, exchange.what, {rank}, world_.generation,
                  list_ranks({rank}) + " left the communicator during " + exchange.what + suffix());
}

// A call has time from when anything before it in the order of calls has moved: until then it may not be its turn.
void Router::check_deadlines() {
  const Nanos now = now_ns();
  Nanos moved_at = finished_at_;
  bool front = true;
  for (const auto& exchange : active_) {
    if (!exchange->trouble.empty() && now - exchange->trouble_at > kTroubleGrace) {
      if (left_at_[exchange->trouble_peer]) throw_left(*exchange, exchange->trouble_peer);
      throw std::runtime_error(exchange->trouble);
    }
    moved_at = std::max(moved_at, exchange->moved_at);
    const std::vector<int> ranks = awaited(*exchange);
    if (ranks.empty()) continue;
    for (const int r : ranks)
      if (left_at_[r] && now - *left_at_[r] > kFarewellGrace) throw_left(*exchange, r);
    if (front && now - moved_at > kAsk) ask(*exchange);
    front = false;
    const Nanos limit = exchange->timeout > 0 ? exchange->timeout : timeout_;
    if (now - moved_at > limit) {
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
  bool to_come;
  {
    MutexLock lock(mutex_);
    to_come = static_cast<std::int32_t>(theirs.call - last_number_) > 0;
    for (const Lifelines::Question& call : recent_)
      if (call.call == theirs.call) mine = call;
  }
  if (to_come) {
    questions_[theirs.call].push_back({rank, theirs});
    return;
  }
  // One that is no longer remembered was over long ago.
  if (!mine || (mine->signature == theirs.signature && mine->what == theirs.what)) {
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

}  // namespace bellows
