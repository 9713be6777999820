#include "coordinator_core.h"

#include <spdlog/fmt/fmt.h>
#include <string.h>

#include <algorithm>

// What arrives: every handler records, asks reconcile() what follows, and returns.

namespace bellows {
namespace {

constexpr std::size_t kKeptEvents = 4096;
constexpr std::size_t kKeptWindows = 256;

std::string exit_text(const ProcessExit& message) {
  if (message.signal != 0)
    return fmt::format("was killed by signal {} ({})", message.signal, ::strsignal(message.signal));
  return fmt::format("exited with code {}", message.code);
}

int exit_code_of(const ProcessExit& message) { return message.signal != 0 ? 128 + message.signal : message.code; }

}  // namespace

CoordinatorCore::CoordinatorCore(JobConfig config, Nanos now, std::int64_t unix_ms)
    : config_(std::move(config)),
      unix_offset_ms_(unix_ms - now / 1'000'000),
      wanted_(config_.ranks),
      wanted_why_(fmt::format("start with {} rank{}", config_.ranks, config_.ranks == 1 ? "" : "s")),
      started_(now),
      last_tick_(now) {}

// ---- small questions

CoordinatorCore::Record* CoordinatorCore::find(const std::string& id) {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}
const CoordinatorCore::Record* CoordinatorCore::find(const std::string& id) const {
  const auto it = records_.find(id);
  return it == records_.end() ? nullptr : &it->second;
}

bool CoordinatorCore::is_current(const std::string& id) const { return current_.world_of(id).has_value(); }

bool CoordinatorCore::finishing() const {
  return std::any_of(current_.members.begin(), current_.members.end(), [&](const MemberInfo& m) {
    const Record* record = find(m.id);
    return record && record->state == State::kFinished;
  });
}

/// The rank's main thread has come back from the dead generation and waits for the next one.
bool CoordinatorCore::arrived(const Record& record) const {
  return broken_since_ && record.last_await >= *broken_since_ && record.last_seen > *broken_since_;
}

std::string CoordinatorCore::describe(const std::string& id) const {
  const Record* record = find(id);
  const auto world = current_.world_of(id);
  const std::string who = world ? fmt::format("rank {} ({}", world->rank, id) : fmt::format("process ({}", id);
  if (!record) return who + ")";
  const std::string host = record->info.host.empty() ? "" : " on " + record->info.host;
  return record->info.pid > 0 ? fmt::format("{}{}, pid {})", who, host, record->info.pid) : who + host + ")";
}

/// Those who have joined and could be taken in, in order of appearance: so m1 is rank 0 whoever was fastest.
std::vector<std::string> CoordinatorCore::waiting() const {
  std::vector<const Record*> found;
  for (const auto& [id, record] : records_) {
    if (record.state == State::kWaiting && !draining_hosts_.contains(record.info.host)) found.push_back(&record);
  }
  std::sort(found.begin(), found.end(), [](const Record* a, const Record* b) { return a->order < b->order; });
  std::vector<std::string> ids;
  for (const Record* record : found) ids.push_back(record->info.id);
  return ids;
}

int CoordinatorCore::count(State state) const {
  return static_cast<int>(
      std::count_if(records_.begin(), records_.end(), [&](const auto& entry) { return entry.second.state == state; }));
}

int CoordinatorCore::largest() const { return lanes_ > 0 ? std::min(config_.max_ranks, lanes_) : config_.max_ranks; }
int CoordinatorCore::target() const {
  return std::clamp(wanted_, config_.min_ranks, std::max(config_.min_ranks, largest()));
}

void CoordinatorCore::event(Nanos now, const std::string& kind, const std::string& text, int from, int to) {
  Event e;
  e.seq = events_.empty() ? 1 : events_.back().seq + 1;
  e.unix_ms = now / 1'000'000 + unix_offset_ms_;
  e.kind = kind;
  e.text = text;
  e.generation = current_.generation;
  e.from = from;
  e.to = to;
  events_.push_back(std::move(e));
  if (events_.size() > kKeptEvents) events_.erase(events_.begin(), events_.begin() + kKeptEvents / 4);
  changed();
}

void CoordinatorCore::heard(Record& record, Nanos now) {
  record.last_seen = now;
  record.disconnected.reset();
}

CoordinatorCore::Record& CoordinatorCore::create(const std::string& id, const std::string& host, Nanos now) {
  Record record;
  record.info.id = id;
  record.info.host = host;
  record.since = record.last_seen = now;
  record.order = records_.size();
  for (const auto& [name, agent] : agents_) {
    if (!agent.running.contains(id)) continue;
    record.agent = name;
    record.process_lives = true;
  }
  return records_[id] = std::move(record);
}

// ---- ranks

std::string CoordinatorCore::refusal(const JoinMessage& message) const {
  if (over()) return "the job is over";
  const bool first = current_.generation == 0 && waiting().empty();
  if (!first && message.info.fingerprint != fingerprint_)
    return fmt::format("this process trains something else than the job: its fingerprint is \"{}\", the job's \"{}\"",
                       message.info.fingerprint, fingerprint_);
  const int lanes = message.info.lanes;
  const int needed = current_.generation == 0 ? wanted_ : config_.min_ranks;
  if (lanes > 0 && needed > lanes)
    return fmt::format(
        "more ranks than lanes: {} ranks are asked for, but there are only {} lanes; raise --lanes or "
        "start fewer ranks",
        needed, lanes);
  return "";
}

JoinAnswer CoordinatorCore::on_join(const JoinMessage& message, Nanos now) {
  JoinAnswer answer;
  answer.id = message.id;
  Record* record = message.id.empty() ? nullptr : find(message.id);
  const bool gone = record && (record->state == State::kLost || record->state == State::kReleased ||
                               record->state == State::kFinished);
  if (gone) {
    answer.fenced = true;
    answer.refused = "this process was declared lost or has left; its id is never used again";
    return answer;
  }
  if (message.holds && message.holds->generation > 0) {
    const bool newer = message.holds->generation > current_.generation;
    if (newer && (current_.generation == 0 || adopted_)) {
      fingerprint_ = message.info.fingerprint;
      lanes_ = message.info.lanes;
      adopt(*message.holds, now);
    }
    record = find(message.id);
    if (!record || !current_.transition_world_of(message.id)) {
      answer.fenced = true;
      answer.refused = fmt::format("the job has gone on without this process (generation {}, it holds {})",
                                   current_.generation, message.holds->generation);
      return answer;
    }
  }
  answer.refused = refusal(message);
  if (!answer.refused.empty()) {
    event(now, "refused",
          fmt::format("{} on {}, pid {}: {}", message.id.empty() ? "a process" : message.id, message.host, message.pid,
                      answer.refused));
    return answer;
  }
  if (!record) {
    if (answer.id.empty()) answer.id = config_.id_prefix + std::to_string(next_id_++);
    record = &create(answer.id, message.host, now);
  }
  heard(*record, now);
  record->info.host = message.host;
  record->info.pid = message.pid;
  if (record->state == State::kStarting) {
    if (current_.generation == 0 && waiting().empty()) fingerprint_ = message.info.fingerprint;
    lanes_ = lanes_ == 0 || current_.generation == 0 ? message.info.lanes : lanes_;
    record->state = State::kWaiting;
    record->since = now;
    event(now, "join", describe(answer.id) + " has joined");
  }
  if (message.holds) record->fetched = std::max(record->fetched, message.holds->generation);
  reconcile(now);
  return answer;
}

/// Takes over a world that an earlier coordinator made. Its members have the heartbeat limit to come back.
void CoordinatorCore::adopt(const Membership& membership, Nanos now) {
  current_ = membership;
  adopted_ = true;
  established_ = true;
  wanted_ = membership.world_size();
  wanted_why_ = "the world that was found";
  for (const auto* group : {&membership.members, &membership.leaving}) {
    for (const MemberInfo& info : *group) {
      Record& record = find(info.id) ? *find(info.id) : create(info.id, info.host, now);
      record.info = info;
      record.state = group == &membership.members ? State::kActive : State::kLeaving;
      record.last_seen = now;
    }
  }
  event(now, "form",
        fmt::format("took over generation {} with {} ranks from an earlier coordinator", membership.generation,
                    membership.world_size()));
}

Signals CoordinatorCore::on_heartbeat(const HeartbeatMessage& message, Nanos now) {
  Record* record = find(message.id);
  if (record) {
    heard(*record, now);
    if (message.step) on_step(message.id, *message.step);
    const bool rank_zero = !current_.members.empty() && current_.members.front().id == message.id;
    for (const ChangeReport& change : message.changes) {
      if (!rank_zero) continue;
      event(now, "world", change.reason, change.from, change.to);
      events_.back().generation = change.generation;
      events_.back().bytes_moved = change.bytes_moved;
      events_.back().ms = change.ms;
    }
    for (const MfuWindow& window : message.windows) {
      if (rank_zero) on_window(window, now);
    }
    reconcile(now);
  }
  return signals_for(message.id);
}

void CoordinatorCore::on_step(const std::string& id, const StepReport& report) {
  find(id)->step = report;
  if (!is_current(id)) return;
  if (current_.members.front().id == id) last_step_ = report;
  if (report.generation == current_.generation && !broken_since_ && !established_) {
    established_ = true;
    failures_in_a_row_ = 0;
    failed_starts_in_a_row_ = 0;
    std::erase_if(exchanges_, [&](const auto& entry) { return std::get<0>(entry.first) < current_.generation; });
    changed();
  }
}

void CoordinatorCore::on_window(const MfuWindow& window, Nanos now) {
  last_window_ = window;
  const bool of_now = window.generation == current_.generation && established_ && !broken_since_;
  if (!of_now || stopping_ || finishing() || over()) return;
  policy_state_.world_size = current_.world_size();
  policy_state_.windows.push_back(window);
  if (policy_state_.windows.size() > kKeptWindows) policy_state_.windows.erase(policy_state_.windows.begin() + 1);

  PolicyConfig policy = config_.policy;
  policy.min_ranks = config_.min_ranks;
  policy.max_ranks = largest();
  const Decision decision = decide(policy_state_, now, policy);
  last_decision_ = decision.reason;
  event(now, "decision", decision.reason, current_.world_size(), decision.target.value_or(current_.world_size()));
  if (!decision.finding.empty() && decision.finding != last_finding_) event(now, "finding", decision.finding);
  last_finding_ = decision.finding;
  if (!decision.target) return;
  wanted_ = *decision.target;
  wanted_why_ = policy.name + ": " + decision.reason;
  policy_state_.windows.clear();
}

void CoordinatorCore::on_failure(const std::string& id, std::uint64_t generation, const std::vector<int>& ranks,
                                 const std::string& what, Nanos now) {
  Record* reporter = find(id);
  if (!reporter || over()) return;
  heard(*reporter, now);
  const bool of_current = generation == current_.generation && current_.transition_world_of(id).has_value();
  const bool of_previous = generation == previous_.generation && !established_;
  if (!of_current && !of_previous) return;  // old news

  const Membership& world = of_current ? current_ : previous_;
  std::vector<MemberInfo> order = world.members;
  order.insert(order.end(), world.leaving.begin(), world.leaving.end());
  if (of_current && !broken_since_) {
    broken_since_ = now;
    settle_at_ = now + from_seconds(config_.settle_s);
    broken_why_ = fmt::format("{} reported: {}", describe(id), what);
    event(now, "failure", broken_why_);
    mark_dead(generation, broken_why_);
  }
  for (const int rank : ranks) {
    if (rank < 0 || rank >= static_cast<int>(order.size())) continue;
    Record* named = find(order[static_cast<std::size_t>(rank)].id);
    if (!named) continue;
    if (named->state == State::kFinished) lose(named->info.id, "ended while its peers went on", 1, "", now);
    if (named->state == State::kActive || named->state == State::kLeaving) named->suspect = true;
  }
  reconcile(now);
}

void CoordinatorCore::on_disconnect(const std::string& id, Nanos now) {
  Record* record = find(id);
  if (record && !record->disconnected) record->disconnected = now;
}

void CoordinatorCore::on_leave(const std::string& id, bool finished, Nanos now) {
  Record* record = find(id);
  if (!record) return;
  heard(*record, now);
  if (record->state == State::kActive && finished) {
    record->state = State::kFinished;
    changed();
    finish_if_all_left(now);
  } else if (record->state == State::kActive) {
    lose(id, "left before the end", 1, "", now);
  } else if (record->state == State::kLeaving || record->state == State::kWaiting ||
             record->state == State::kStarting) {
    record->state = State::kReleased;
    changed();
  }
  reconcile(now);
}

std::optional<Membership> CoordinatorCore::on_await(const std::string& id, std::uint64_t after, Nanos now) {
  Record* record = find(id);
  if (!record || over()) return std::nullopt;
  record->last_await = now;
  if (broken_since_ || current_.generation <= after || !current_.transition_world_of(id)) return std::nullopt;
  record->fetched = current_.generation;
  return current_;
}

/// Why this exchange cannot come about; empty if it can. The generation before a planned change goes on until the
/// change is established: its ranks may still be on their way to the commit where they agree to it.
std::string CoordinatorCore::exchange_refusal(const ExchangeMessage& message) const {
  if (over()) return "the job is over";
  const bool of_current = message.generation == current_.generation;
  const bool of_previous = message.generation == previous_.generation && !established_;
  if (message.generation < current_.generation && !of_previous)
    return fmt::format("generation {} was succeeded by {}", message.generation, current_.generation);
  if (const auto dead = dead_.find(message.generation); dead != dead_.end()) return dead->second;
  if (message.generation > current_.generation) return "";
  const auto world = (of_current ? current_ : previous_).transition_world_of(message.id);
  if (!world) return fmt::format("{} is not in generation {}", message.id, message.generation);
  if (message.world_size > world->world_size || message.rank < 0 || message.rank >= message.world_size)
    return fmt::format("rank {} of {} is not in generation {}, which has {} ranks", message.rank, message.world_size,
                       message.generation, world->world_size);
  return "";
}

ExchangeAnswer CoordinatorCore::on_exchange(const ExchangeMessage& message, Nanos /*now*/) {
  ExchangeAnswer answer;
  answer.aborted = exchange_refusal(message);
  if (!answer.aborted.empty()) return answer;
  // A coordinator that was started anew does not know the generation yet: its ranks are about to tell it.
  if (message.generation > current_.generation) return answer;

  Exchange& exchange = exchanges_[{message.generation, message.tag, message.world_size}];
  exchange.blobs.resize(static_cast<std::size_t>(message.world_size));
  auto& slot = exchange.blobs[static_cast<std::size_t>(message.rank)];
  if (!slot && ++exchange.arrived == message.world_size) changed();
  slot = message.blob;
  for (int r = 0; r < message.world_size; ++r) {
    if (!exchange.blobs[static_cast<std::size_t>(r)]) answer.missing.push_back(r);
  }
  if (answer.missing.empty()) {
    for (const auto& blob : exchange.blobs) answer.blobs.push_back(*blob);
  }
  return answer;
}

Signals CoordinatorCore::signals_for(const std::string& id) const {
  Signals signals;
  const Record* record = find(id);
  signals.over = over();
  if (!record) {
    signals.unknown = !over();
    return signals;
  }
  signals.newest_generation = current_.generation;
  if (const auto dead = dead_.find(record->fetched); dead != dead_.end() && record->fetched > 0) {
    signals.dead_generation = dead->first;
    signals.dead_why = dead->second;
  }
  signals.stop = stopping_.has_value();
  signals.fenced = record->state == State::kLost;
  signals.over = over() || record->state == State::kReleased || record->state == State::kFinished;
  return signals;
}

// ---- agents

void CoordinatorCore::on_agent(const AgentMessage& message, Nanos now) {
  Agent& agent = agents_[message.agent];
  agent.last_seen = now;
  agent.running = {message.running.begin(), message.running.end()};
  for (const std::string& id : message.running) {
    Record* record = find(id);
    if (record && record->agent.empty()) {
      record->agent = message.agent;
      record->process_lives = true;
    }
  }
  if (agent.alive && agent.slots == message.slots) return;
  agent.host = message.host;
  agent.slots = message.slots;
  agent.alive = true;
  agent.draining = draining_hosts_.contains(message.host);
  event(now, "agent", fmt::format("agent {} on {} offers {} slots", message.agent, message.host, message.slots));
  reconcile(now);
}

void CoordinatorCore::on_agent_gone(const std::string& name, Nanos now) {
  const auto it = agents_.find(name);
  if (it == agents_.end() || !it->second.alive) return;
  it->second.alive = false;
  if (!over()) event(now, "agent", fmt::format("agent {} on {} is gone", name, it->second.host));
  for (auto& [id, record] : records_) {
    if (record.agent != name) continue;
    if (record.state == State::kStarting) {
      record.state = State::kLost;  // no fault of its own, so it costs nothing: another one is ordered elsewhere
      kill_.insert(id);
    } else if (!record.disconnected) {
      record.disconnected = now;  // its process dies with the agent: watch it closely
    }
  }
  reconcile(now);
}

void CoordinatorCore::on_exit(const ProcessExit& message, Nanos now) {
  Record* record = find(message.member);
  if (!record) return;
  record->process_lives = false;
  kill_.erase(message.member);
  changed();
  if (over()) return;
  const bool clean = message.signal == 0 && message.code == 0;
  const std::string why = exit_text(message);
  const std::string text = describe(message.member) + " " + why;
  const int code = exit_code_of(message);
  const bool forming = current_.generation == 0;
  switch (record->state) {
    case State::kStarting:
    case State::kWaiting:
      if (forming && clean) {
        record->state = State::kFinished;
        finish_if_all_left(now);
      } else if (forming && message.signal == 0) {
        fail(text, code, message.last_lines, now);
      } else if (!forming && message.signal == 0 && message.code == 2) {
        // A person must mend it, and trying again would not help; the ranks that train are fine.
        record->state = State::kLost;
        wanted_ = std::max(config_.min_ranks, current_.world_size());
        note_ = "a new process refused to start: " + message.last_lines;
        event(now, "lost", text + "; the world stays as it is", current_.world_size(), current_.world_size());
      } else {
        lose(message.member, why, code, message.last_lines, now);
      }
      break;
    case State::kActive:
      if (clean) {
        on_leave(message.member, true, now);
      } else if (message.signal == 0 && message.code == 2) {
        fail(text, code, message.last_lines, now);
      } else {
        lose(message.member, why, code, message.last_lines, now);
      }
      break;
    case State::kLeaving:
      if (clean) {
        record->state = State::kReleased;
      } else {
        lose(message.member, why, code, message.last_lines, now);
      }
      break;
    case State::kFinished:
      if (!clean) fail(text + " after its training had ended", code, message.last_lines, now);
      break;
    case State::kReleased:
    case State::kLost:
      break;
  }
  reconcile(now);
}

AgentOrders CoordinatorCore::orders_for(const std::string& agent) const {
  AgentOrders orders;
  std::string first_started;
  std::uint64_t first_order = ~std::uint64_t{0};
  for (const auto& [id, record] : records_) {
    if (record.agent != agent) continue;
    if (record.state == State::kStarting) orders.start.push_back(id);
    if (record.process_lives && kill_.contains(id)) orders.kill.push_back(id);
    if (record.state != State::kLost && record.order < first_order) {
      first_order = record.order;
      first_started = id;
    }
  }
  if (!current_.members.empty()) {
    const Record* front = find(current_.members.front().id);
    if (front && front->agent == agent) orders.front = front->info.id;
  } else {
    orders.front = first_started;
  }
  orders.over = over();
  orders.failed = outcome_ && (outcome_->exit_code != 0 || current_.generation == 0);
  orders.version = fmt::format("{}start {} kill {} front {} over {}{}", config_.id_prefix, fmt::join(orders.start, ","),
                               fmt::join(orders.kill, ","), orders.front, orders.over, orders.failed);
  return orders;
}

// ---- operators

std::string CoordinatorCore::on_scale(int ranks, Nanos now) {
  if (over()) return "the job is over";
  if (stopping_) return "the job is stopping";
  if (ranks < config_.min_ranks || ranks > config_.max_ranks)
    return config_.min_ranks == config_.max_ranks
               ? fmt::format("this job has a fixed size of {}: start it with --min and --max to change it",
                             config_.max_ranks)
               : fmt::format("{} ranks are outside what this job allows: --min {} --max {}", ranks, config_.min_ranks,
                             config_.max_ranks);
  if (ranks > largest()) return fmt::format("more ranks than lanes: {} asked for, the job has {} lanes", ranks, lanes_);
  wanted_ = ranks;
  wanted_why_ = fmt::format("operator asked for {} rank{}", ranks, ranks == 1 ? "" : "s");
  note_.clear();
  growing_since_.reset();
  failed_starts_in_a_row_ = 0;
  policy_state_.windows.clear();
  event(now, "operator", wanted_why_, current_.world_size(), ranks);
  reconcile(now);
  return "";
}

std::string CoordinatorCore::on_drain(const std::string& host, Nanos now) {
  if (over()) return "the job is over";
  std::set<std::string> hosts;
  int staying = 0;
  for (const auto& [name, agent] : agents_) hosts.insert(agent.host);
  for (const MemberInfo& member : current_.members) {
    hosts.insert(member.host);
    if (member.host != host && !draining_hosts_.contains(member.host)) ++staying;
  }
  if (!hosts.contains(host))
    return fmt::format("no host \"{}\" in this job; there are: {}", host, fmt::join(hosts, ", "));
  if (staying < config_.min_ranks)
    return fmt::format("draining {} would leave {} ranks, the job needs {} (--min)", host, staying, config_.min_ranks);
  draining_hosts_.insert(host);
  for (auto& [name, agent] : agents_) agent.draining = agent.draining || agent.host == host;
  event(now, "operator", fmt::format("operator drains {}", host));
  reconcile(now);
  return "";
}

void CoordinatorCore::on_stop(const std::string& why, Nanos now) {
  if (over() || stopping_) return;
  stopping_ = why;
  event(now, "operator", "stop requested: " + why);
  if (current_.generation == 0) return finish("stopped before the first step: " + why, now);
  trim_spares(0);
  reconcile(now);
}

void CoordinatorCore::on_kill(const std::string& why, int exit_code, Nanos now) {
  if (!over()) fail(why, exit_code, "", now);
}

// ---- telling

std::vector<Event> CoordinatorCore::events(std::uint64_t after) const {
  const auto first = std::find_if(events_.begin(), events_.end(), [&](const Event& e) { return e.seq > after; });
  return {first, events_.end()};
}

JobStatus CoordinatorCore::status(Nanos now) const {
  static constexpr const char* kNames[] = {"starting", "waiting",  "training", "leaving",
                                           "finished", "released", "lost"};
  JobStatus s;
  s.job = config_.name;
  s.generation = current_.generation;
  s.world_size = current_.world_size();
  s.wanted = target();
  s.min_ranks = config_.min_ranks;
  s.max_ranks = largest();
  s.policy = config_.policy.name;
  s.threshold = config_.policy.threshold;
  s.failures = failures_;
  s.failure_budget = config_.failure_budget;
  s.stopping = stopping_.has_value();
  s.step = last_step_;
  s.window = last_window_;
  s.last_decision = last_decision_;
  s.outcome = outcome_;
  s.last_event = events_.empty() ? 0 : events_.back().seq;

  const bool coming = count(State::kStarting) + static_cast<int>(waiting().size()) > 0;
  const bool orderable = !agent_with_free_slot().empty();
  const bool steady = current_.generation > 0 && established_ && !broken_since_;
  const bool short_of_ranks = s.world_size < s.wanted;
  s.settled = steady && (s.world_size == s.wanted || (short_of_ranks && !coming && !orderable));
  s.note = note_;
  if (steady && short_of_ranks && !coming && !orderable && note_.empty())
    s.note = fmt::format("{} ranks are wanted, {} train: no agent has a free slot", s.wanted, s.world_size);
  if (over()) {
    s.phase = "over";
  } else if (current_.generation == 0) {
    s.phase = "forming";
  } else if (broken_since_) {
    s.phase = "recovering";
  } else if (stopping_) {
    s.phase = "stopping";
  } else {
    s.phase = s.settled ? "training" : "changing";
  }

  std::vector<const Record*> order;
  for (const auto& [id, record] : records_) order.push_back(&record);
  std::sort(order.begin(), order.end(), [](const Record* a, const Record* b) { return a->order < b->order; });
  for (const Record* record : order) {
    const auto world = current_.world_of(record->info.id);
    MemberStatus m;
    m.info = record->info;
    m.state = kNames[static_cast<int>(record->state)];
    m.rank = world ? world->rank : -1;
    m.seen_seconds_ago = seconds(now - record->last_seen);
    m.agent = record->agent;
    m.step = record->step;
    s.members.push_back(std::move(m));
  }
  for (const auto& [name, agent] : agents_)
    s.agents.push_back({name, agent.host, agent.slots, used_slots(name), agent.alive, agent.draining});
  return s;
}

}  // namespace bellows
