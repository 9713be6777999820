#pragma once
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator_core.h"

namespace bellows {

inline JobConfig job(int ranks, int min_ranks, int max_ranks, int budget = 10) {
  JobConfig config;
  config.name = "test";
  config.ranks = ranks;
  config.min_ranks = min_ranks;
  config.max_ranks = max_ranks;
  config.policy.name = "manual";
  config.failure_budget = budget;
  return config;
}

inline std::vector<std::string> ids(const std::vector<MemberInfo>& members) {
  std::vector<std::string> result;
  for (const MemberInfo& member : members) result.push_back(member.id);
  return result;
}

inline JoinMessage hello(const std::string& id, const std::string& host = "host", const std::string& fingerprint = "f",
                         int lanes = 16, std::optional<Membership> holds = {}) {
  JoinMessage message;
  message.id = id;
  message.host = host;
  message.pid = 1;
  message.info.fingerprint = fingerprint;
  message.info.lanes = lanes;
  message.holds = std::move(holds);
  return message;
}

/// A coordinator, one agent with well-behaved processes, and a clock set by hand. Every `pass` lets time go by in
/// heartbeat steps in which all living ranks beat, ask for their membership if they have none, and commit a step.
class CoordinatorTest : public testing::Test {
 protected:
  void begin(const JobConfig& config, int slots = 16) {
    core_.emplace(config, clock_.now(), 1'000'000);
    slots_ = slots;
    if (slots > 0) core_->on_agent({"agent", "host", slots, {}}, clock_.now());
  }

  /// What ordered processes do: they start and join.
  void start_ordered() {
    const AgentOrders orders = core_->orders_for("agent");
    for (const std::string& id : orders.start) {
      if (!started_.insert(id).second) continue;
      if (mute_starts_) continue;
      const JoinAnswer answer = core_->on_join(hello(id, "host", fingerprint_, lanes_), clock_.now());
      if (answer.refused.empty()) {
        alive_[id] = 0;
      } else {
        last_refusal_ = answer.refused;
        core_->on_exit({id, 2, 0, "error: " + answer.refused + "\n"}, clock_.now());
      }
    }
    for (const std::string& id : orders.kill) die(id, 0, SIGKILL_);
  }

  void pass(double secs = 0.2) {
    for (double done = 0; done < secs - 1e-9; done += 0.1) {
      clock_.advance(0.1);
      if (slots_ > 0) core_->on_agent({"agent", "host", slots_, {}}, clock_.now());
      start_ordered();
      for (auto& [id, generation] : alive_) {
        if (frozen_.contains(id)) continue;
        const Signals signals = core_->signals_for(id);
        const bool looks =
            generation == 0 || signals.newest_generation > generation || signals.dead_generation == generation;
        if (looks && !hung_.contains(id)) {
          if (const auto membership = core_->on_await(id, generation, clock_.now())) {
            generation = membership->generation;
            if (!membership->world_of(id)) released_.push_back(id);
          }
        }
        HeartbeatMessage beat{id, {}, {}, {}};
        if (generation > 0 && commits_) {
          StepReport step;
          step.generation = generation;
          step.step = ++step_;
          beat.step = step;
        }
        core_->on_heartbeat(beat, clock_.now());
      }
      for (const std::string& id : released_) {
        core_->on_leave(id, false, clock_.now());
        core_->on_exit({id, 0, 0, ""}, clock_.now());
        alive_.erase(id);
      }
      released_.clear();
      core_->tick(clock_.now());
    }
  }

  void die(const std::string& id, int code, int signal) {
    alive_.erase(id);
    core_->on_exit({id, code, signal, "last words\n"}, clock_.now());
  }
  std::string member(int rank) const { return core_->membership().members.at(static_cast<std::size_t>(rank)).id; }
  int size() const { return core_->membership().world_size(); }
  std::uint64_t generation() const { return core_->membership().generation; }
  std::string events_of(const std::string& kind) const {
    std::string text;
    for (const Event& e : core_->events(0)) {
      if (e.kind == kind) text += e.text + "\n";
    }
    return text;
  }
  void report_window(double mfu) {
    MfuWindow w;
    w.generation = generation();
    w.world_size = size();
    w.mfu = mfu;
    w.valid = true;
    core_->on_heartbeat({member(0), {}, {w}, {}}, clock_.now());
  }

  static constexpr int SIGKILL_ = 9;
  ManualClock clock_;
  std::optional<CoordinatorCore> core_;
  std::map<std::string, std::uint64_t> alive_;  // and the generation each holds
  std::set<std::string> started_, frozen_, hung_;
  std::vector<std::string> released_;
  std::string fingerprint_ = "f", last_refusal_;
  int lanes_ = 16, slots_ = 16;
  std::int64_t step_ = 0;
  bool mute_starts_ = false, commits_ = true;
};

}  // namespace bellows
