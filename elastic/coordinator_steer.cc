#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "coordinator_core.h"

// What follows from what has arrived: forming the first world, replacing a dead one, steering towards the wished size.

namespace bellows {
namespace {

constexpr double kLongestBackoff = 10;
constexpr int kFailedStartsBeforeGivingUp = 3;
constexpr double kLeaveGrace = 60;  // for a released process to end by itself

std::string plural(int n, const std::string& what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : what.back() == 's' ? "es" : "s");
}

}  // namespace

void CoordinatorCore::tick(Nanos now) {
  // If this process itself was held up (stopped, starved), silence of others means nothing: shift what was last heard.
  const Nanos gap = now - last_tick_;
  last_tick_ = now;
  if (seconds(gap) > 1) {
    for (auto& [id, record] : records_) {
      record.last_seen += gap;
      if (record.disconnected) *record.disconnected += gap;
    }
    for (auto& [name, agent] : agents_) agent.last_seen += gap;
  }
  find_silent_ranks(now);
  reconcile(now);
}

void CoordinatorCore::reconcile(Nanos now) {
  if (over()) return;
  if (current_.generation == 0) return form(now);
  if (broken_since_) return recover(now);
  steer(now);
}

void CoordinatorCore::find_silent_ranks(Nanos now) {
  if (over()) return;
  for (auto& [name, agent] : agents_) {
    if (agent.alive && seconds(now - agent.last_seen) > config_.heartbeat_limit_s) on_agent_gone(name, now);
  }
  std::vector<std::pair<std::string, std::string>> lost;
  for (auto& [id, record] : records_) {
    const bool joined =
        record.state == State::kWaiting || record.state == State::kActive || record.state == State::kLeaving;
    if (!joined) {
      const bool gone = record.state == State::kReleased || record.state == State::kFinished;
      if (gone && record.process_lives && seconds(now - record.last_seen) > kLeaveGrace && kill_.insert(id).second)
        changed();
      const bool late = record.state == State::kStarting && current_.generation > 0 &&
                        seconds(now - record.since) > config_.grow_timeout_s;
      if (late) lost.emplace_back(id, fmt::format("did not join within {:.3g} s", config_.grow_timeout_s));
      continue;
    }
    const bool close_watch = record.suspect || record.disconnected;
    const double limit =
        close_watch ? std::min(config_.suspect_s, config_.heartbeat_limit_s) : config_.heartbeat_limit_s;
    const Nanos since = std::max(record.last_seen, record.disconnected.value_or(0));
    if (seconds(now - since) > limit) {
      lost.emplace_back(
          id, fmt::format("was not heard of for {:.2f} s (limit {:.3g} s)", seconds(now - record.last_seen), limit));
    } else if (broken_since_ && record.state == State::kActive && !arrived(record) &&
               seconds(now - *broken_since_) > config_.regroup_timeout_s) {
      lost.emplace_back(id,
                        fmt::format("did not leave the dead generation within {:.3g} s", config_.regroup_timeout_s));
    }
  }
  for (const auto& [id, why] : lost) lose(id, why, 1, "", now);
}

// ---- ends

void CoordinatorCore::fail(const std::string& text, int exit_code, const std::string& last_lines, Nanos now) {
  if (over()) return;
  outcome_ = Outcome{exit_code == 0 ? 1 : exit_code, text, last_lines};
  event(now, "over", text);
}

void CoordinatorCore::finish(const std::string& text, Nanos now) {
  if (over()) return;
  outcome_ = Outcome{0, text, ""};
  event(now, "over", text);
}

void CoordinatorCore::finish_if_all_left(Nanos now) {
  if (over()) return;
  if (current_.generation == 0) {
    // Programs that end without ever joining: over once none is left that could still join.
    if (count(State::kFinished) < wanted_) return;
    return finish(fmt::format("all {} ended without joining", plural(wanted_, "process")), now);
  }
  const bool all = std::all_of(current_.members.begin(), current_.members.end(), [&](const MemberInfo& m) {
    const Record* record = find(m.id);
    return record && record->state == State::kFinished;
  });
  if (all) finish(stopping_ ? "stopped: " + *stopping_ : "training finished", now);
}

// ---- losses

void CoordinatorCore::lose(const std::string& id, const std::string& why, int exit_code, const std::string& last_lines,
                           Nanos now) {
  Record* record = find(id);
  if (!record || record->state == State::kLost || over()) return;
  const State was = record->state;
  const std::string text = describe(id) + " " + why;
  record->state = State::kLost;
  if (record->process_lives) kill_.insert(id);
  event(now, "lost", text);

  const bool had_part = current_.transition_world_of(id).has_value();
  const bool holds_state =
      was == State::kActive || was == State::kFinished || (was == State::kLeaving && !established_);
  if (had_part && holds_state) {
    if (finishing()) return fail(text, exit_code, last_lines, now);
    mark_dead(current_.generation, text);
    if (!established_ && previous_.transition_world_of(id)) mark_dead(previous_.generation, text);
    broken_why_ = lost_here_ == 0 ? text : broken_why_ + "; " + text;
    ++lost_here_;
    if (!broken_since_) broken_since_ = now;
    settle_at_ = now + from_seconds(config_.settle_s);
    count_failure(text, exit_code, last_lines, now);
  } else if (was == State::kStarting || was == State::kWaiting) {
    const bool job_goes_on = current_.generation > 0 && !broken_since_;
    if (job_goes_on) {
      start_failed(text, now);
    } else {
      count_failure(text, exit_code, last_lines, now);
    }
  }
  reconcile(now);
}

void CoordinatorCore::mark_dead(std::uint64_t generation, const std::string& why) {
  dead_.emplace(generation, why);
  while (dead_.size() > 16) dead_.erase(dead_.begin());
  changed();
}

void CoordinatorCore::count_failure(const std::string& what, int exit_code, const std::string& last_lines, Nanos now) {
  ++failures_;
  ++failures_in_a_row_;
  const double backoff = config_.restart_backoff_s * std::pow(2.0, std::min(failures_in_a_row_ - 1, 16));
  next_start_at_ = std::max(next_start_at_, now + from_seconds(std::min(backoff, kLongestBackoff)));
  if (failures_ <= config_.failure_budget) return;
  const std::string text = config_.failure_budget == 0
                               ? what
                               : fmt::format("the failure budget of {} is exhausted: {}", config_.failure_budget, what);
  fail(text, exit_code, last_lines, now);
}

/// A process that should have made the world larger has failed: the ranks that train are not its hostages.
void CoordinatorCore::start_failed(const std::string& what, Nanos now) {
  ++failed_starts_in_a_row_;
  const double backoff = config_.restart_backoff_s * std::pow(2.0, failed_starts_in_a_row_ - 1);
  next_start_at_ = std::max(next_start_at_, now + from_seconds(std::min(backoff, kLongestBackoff)));
  if (failed_starts_in_a_row_ < kFailedStartsBeforeGivingUp) return;
  wanted_ = std::max(config_.min_ranks, current_.world_size());
  note_ = fmt::format("gave up growing after {} failed starts, the last: {}", failed_starts_in_a_row_, what);
  event(now, "limit", note_, current_.world_size(), wanted_);
}

/// The current generation is dead: publish the next one as soon as it is clear who is in it.
void CoordinatorCore::recover(Nanos now) {
  if (now < settle_at_) return;
  std::vector<MemberInfo> survivors, leaving;
  bool everybody_back = true;
  for (const MemberInfo& member : current_.members) {
    const Record* record = find(member.id);
    if (!record || record->state != State::kActive) continue;
    if (record->suspect && !arrived(*record)) return;  // alive or not? time will tell, see find_silent_ranks
    everybody_back = everybody_back && arrived(*record);
    survivors.push_back(record->info);
  }
  // Nobody was lost, a collective failed all the same: the same members again, once all have come back from it.
  if (lost_here_ == 0 && !everybody_back) return;
  if (!established_) {  // a hand-over that did not happen: those who were leaving still hold their part
    for (const MemberInfo& member : current_.leaving) {
      const Record* record = find(member.id);
      if (record && record->state == State::kLeaving) leaving.push_back(record->info);
    }
  }
  const int needed = stopping_ ? 1 : config_.min_ranks;
  auto short_of = [&] { return needed - static_cast<int>(survivors.size()); };
  while (short_of() > 0 && !leaving.empty()) {
    survivors.push_back(leaving.front());
    leaving.erase(leaving.begin());
  }
  const std::vector<std::string> spares = waiting();
  if (short_of() > static_cast<int>(spares.size())) {
    if (!below_min_since_) {
      below_min_since_ = now;
      event(now, "limit",
            fmt::format("{} left, {} needed (--min): waiting for replacements",
                        plural(static_cast<int>(survivors.size()), "rank"), needed));
    }
    if (seconds(now - *below_min_since_) > config_.start_timeout_s)
      return fail(fmt::format("fewer than {} ranks for {:.3g} s: {}", needed, config_.start_timeout_s, broken_why_), 1,
                  "", now);
    if (stopping_) return fail("no rank is left to stop in order: " + broken_why_, 1, "", now);
    const int wished = std::max(needed, target());
    const int coming = static_cast<int>(spares.size()) + count(State::kStarting);
    order_starts(wished - static_cast<int>(survivors.size()) - coming, now);
    return;
  }
  for (int i = 0; short_of() > 0; ++i) survivors.push_back(find(spares[static_cast<std::size_t>(i)])->info);
  if (lost_here_ == 0) {
    count_failure(broken_why_, 1, "", now);
    if (over()) return;
  }
  publish(std::move(survivors), std::move(leaving), /*planned=*/false, broken_why_, now);
}

// ---- worlds

void CoordinatorCore::publish(std::vector<MemberInfo> members, std::vector<MemberInfo> leaving, bool planned,
                              std::string reason, Nanos now) {
  previous_ = std::move(current_);
  current_ = Membership{};
  current_.generation = previous_.generation + 1;
  current_.members = std::move(members);
  current_.leaving = std::move(leaving);
  current_.planned = planned;
  current_.reason = std::move(reason);
  current_.decided_unix_ms = now / 1'000'000 + unix_offset_ms_;
  for (const MemberInfo& member : current_.members) find(member.id)->state = State::kActive;
  for (const MemberInfo& member : current_.leaving) find(member.id)->state = State::kLeaving;
  for (auto& [id, record] : records_) record.suspect = false;
  if (!planned) wanted_why_ = "a lost rank is replaced";
  established_ = false;
  adopted_ = false;
  broken_since_.reset();
  broken_why_.clear();
  lost_here_ = 0;
  below_min_since_.reset();
  growing_since_.reset();
  std::erase_if(exchanges_, [&](const auto& entry) { return std::get<0>(entry.first) < previous_.generation; });
  policy_state_.windows.clear();
  event(now, previous_.generation == 0 ? "form" : "change",
        fmt::format("generation {}: {} -> {} ranks: {}", current_.generation, previous_.world_size(),
                    current_.world_size(), current_.reason),
        previous_.world_size(), current_.world_size());
}

void CoordinatorCore::form(Nanos now) {
  const std::vector<std::string> joined = waiting();
  if (static_cast<int>(joined.size()) >= wanted_) {
    std::vector<MemberInfo> members;
    for (int i = 0; i < wanted_; ++i) members.push_back(find(joined[static_cast<std::size_t>(i)])->info);
    return publish(std::move(members), {}, true, wanted_why_, now);
  }
  if (count(State::kFinished) == 0 && !expects_old_ranks(now))
    order_starts(wanted_ - static_cast<int>(joined.size()) - count(State::kStarting), now);
  if (seconds(now - started_) > config_.start_timeout_s)
    fail(fmt::format("only {} of {} joined within {:.3g} s (--start-timeout)", joined.size(), plural(wanted_, "rank"),
                     config_.start_timeout_s),
         1, "", now);
}

/// Agents run processes that this coordinator has not ordered: it follows a dead one, and they will tell it their
/// world.
bool CoordinatorCore::expects_old_ranks(Nanos now) const {
  if (seconds(now - started_) > config_.heartbeat_limit_s) return false;
  return std::any_of(agents_.begin(), agents_.end(), [&](const auto& entry) {
    const auto& running = entry.second.running;
    return std::any_of(running.begin(), running.end(), [&](const std::string& id) { return find(id) == nullptr; });
  });
}

void CoordinatorCore::steer(Nanos now) {
  if (stopping_ || finishing() || !established_) return;  // one change at a time
  const int size = current_.world_size();
  std::vector<MemberInfo> keep, leaving;
  for (const MemberInfo& member : current_.members)
    (draining_hosts_.contains(member.host) ? leaving : keep).push_back(member);
  const bool draining = !leaving.empty();
  while (static_cast<int>(keep.size()) > target()) {
    leaving.insert(leaving.begin(), keep.back());
    keep.pop_back();
  }
  if (!leaving.empty()) {
    trim_spares(std::max(0, target() - static_cast<int>(keep.size())));
    const std::string why = draining ? "an operator drains its host" : wanted_why_;
    return publish(std::move(keep), std::move(leaving), true, why, now);
  }
  if (target() > size) return grow(now);
  growing_since_.reset();
  trim_spares(0);
}

void CoordinatorCore::grow(Nanos now) {
  const int size = current_.world_size();
  const int lacking = target() - size;
  if (!growing_since_) growing_since_ = now;
  order_starts(lacking - static_cast<int>(waiting().size()) - count(State::kStarting), now);

  const std::vector<std::string> joined = waiting();
  const bool all = static_cast<int>(joined.size()) >= lacking;
  const bool more_may_come = count(State::kStarting) > 0 || !agent_with_free_slot().empty();
  const bool late = seconds(now - *growing_since_) > config_.grow_timeout_s;
  if (joined.empty() || (!all && more_may_come && !late)) return;
  if (!all)
    event(
        now, "limit",
        fmt::format("{} asked for, only {} came: the job goes on with those", plural(lacking, "rank"), joined.size()));
  std::vector<MemberInfo> members = current_.members;
  for (int i = 0; i < std::min<int>(lacking, static_cast<int>(joined.size())); ++i)
    members.push_back(find(joined[static_cast<std::size_t>(i)])->info);
  publish(std::move(members), {}, true, wanted_why_, now);
}

// ---- processes

int CoordinatorCore::used_slots(const std::string& agent) const {
  return static_cast<int>(std::count_if(records_.begin(), records_.end(), [&](const auto& entry) {
    return entry.second.agent == agent && entry.second.process_lives;
  }));
}

std::string CoordinatorCore::agent_with_free_slot() const {
  std::string best;
  int most = 0;
  for (const auto& [name, agent] : agents_) {
    const int free = agent.slots - used_slots(name);
    if (agent.alive && !agent.draining && free > most) {
      most = free;
      best = name;
    }
  }
  return best;
}

void CoordinatorCore::order_starts(int needed, Nanos now) {
  if (now < next_start_at_) return;
  for (; needed > 0; --needed) {
    const std::string agent = agent_with_free_slot();
    if (agent.empty()) return;
    const std::string id = config_.id_prefix + std::to_string(next_id_++);
    Record& record = create(id, agents_[agent].host, now);
    record.agent = agent;
    record.process_lives = true;
    event(now, "start", fmt::format("{} is started on {}", id, record.info.host));
  }
}

/// Sends processes home that were meant for a larger world, the newest first; those that nobody's agent runs may wait.
void CoordinatorCore::trim_spares(int keep) {
  std::vector<Record*> spares;
  for (auto& [id, record] : records_) {
    const bool spare = record.state == State::kWaiting || record.state == State::kStarting;
    if (spare && !record.agent.empty()) spares.push_back(&record);
  }
  std::sort(spares.begin(), spares.end(), [](const Record* a, const Record* b) { return a->order < b->order; });
  for (std::size_t i = static_cast<std::size_t>(keep); i < spares.size(); ++i) {
    if (spares[i]->state == State::kStarting) kill_.insert(spares[i]->info.id);
    spares[i]->state = State::kReleased;
    changed();
  }
}

}  // namespace bellows
