#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/elastic/job.h"
#include "bellows/elastic/job_client.h"

namespace bellows {

/// What the coordinator tells a rank whenever the two talk.
struct Signals {
  std::uint64_t newest_generation = 0;
  std::uint64_t dead_generation = 0;  ///< the generation this rank holds, if it was declared dead; else 0
  std::string dead_why;
  bool stop = false;
  bool fenced = false;   ///< declared lost: it must not touch anything any more
  bool over = false;     ///< the job has ended, or this rank was released
  bool unknown = false;  ///< never heard of: join again, saying what you hold
  bool operator==(const Signals&) const = default;
};

struct JoinMessage {
  std::string id;  ///< empty: the coordinator gives one
  std::string host;
  std::int64_t pid = 0;
  JoinInfo info;
  std::optional<Membership> holds;  ///< of a rank that outlived an earlier coordinator
};
struct JoinAnswer {
  std::string id;
  std::string refused;  ///< why; empty: welcome
  bool fenced = false;
};
struct HeartbeatMessage {
  std::string id;
  std::optional<StepReport> step;
  std::vector<MfuWindow> windows;
  std::vector<ChangeReport> changes;
};
struct ExchangeMessage {
  std::string id;
  std::uint64_t generation = 0;
  std::string tag;
  int rank = 0;
  int world_size = 0;
  std::string blob;
};
struct ExchangeAnswer {
  std::vector<std::string> blobs;  ///< world_size of them, or none while ranks are missing
  std::vector<int> missing;
  std::string aborted;  ///< why this generation is not to be connected any more
};
struct AgentMessage {
  std::string agent;
  std::string host;
  int slots = 0;
  std::vector<std::string> running;
};

/// The coordinator as a state machine on plain values: messages and the time go in, memberships, signals and orders
/// come out. It starts no thread, reads no clock and sends nothing, so a test plays any interleaving by hand.
///
/// Life of a membership: published -> fetched by its ranks -> established (a step was committed in it). One planned
/// change at a time: the next one is published only when the last is established. A lost member makes the generation
/// dead, whatever stage it was in, and the next one is published without it.
/// Not thread-safe; the server around it holds a lock.
class CoordinatorCore {
 public:
  CoordinatorCore(JobConfig config, Nanos now, std::int64_t unix_ms);

  // Ranks.
  JoinAnswer on_join(const JoinMessage& message, Nanos now);
  Signals on_heartbeat(const HeartbeatMessage& message, Nanos now);
  void on_failure(const std::string& id, std::uint64_t generation, const std::vector<int>& ranks,
                  const std::string& what, Nanos now);
  void on_leave(const std::string& id, bool finished, Nanos now);
  /// The rank's connection broke: it is watched more closely until it is heard of again.
  void on_disconnect(const std::string& id, Nanos now);
  /// The membership after `after` that `id` is in, once there is one. Asking says that the rank has left `after`.
  std::optional<Membership> on_await(const std::string& id, std::uint64_t after, Nanos now);
  ExchangeAnswer on_exchange(const ExchangeMessage& message, Nanos now);
  Signals signals_for(const std::string& id) const;

  // Agents.
  void on_agent(const AgentMessage& message, Nanos now);
  void on_agent_gone(const std::string& agent, Nanos now);
  void on_exit(const ProcessExit& message, Nanos now);
  AgentOrders orders_for(const std::string& agent) const;

  // Operators. They return why they refuse, or nothing.
  std::string on_scale(int ranks, Nanos now);
  std::string on_drain(const std::string& host, Nanos now);
  void on_stop(const std::string& why, Nanos now);
  /// Ends the job at once, whatever it is doing.
  void on_kill(const std::string& why, int exit_code, Nanos now);

  /// Everything that only time brings about; called often.
  void tick(Nanos now);

  const std::optional<Outcome>& outcome() const { return outcome_; }
  const Membership& membership() const { return current_; }
  JobStatus status(Nanos now) const;
  std::vector<Event> events(std::uint64_t after) const;
  /// Grows whenever something that somebody may be waiting for has changed.
  std::uint64_t version() const { return version_; }

 private:
  enum class State { kStarting, kWaiting, kActive, kLeaving, kFinished, kReleased, kLost };
  struct Record {
    MemberInfo info;
    State state = State::kStarting;
    std::string agent;           // that runs its process; empty: started by somebody else
    bool process_lives = false;  // as far as that agent said
    Nanos since = 0;             // of being ordered or having joined
    Nanos last_seen = 0;
    std::optional<Nanos> disconnected;  // not heard of since its connection broke
    bool suspect = false;               // named by a peer in the current generation
    std::uint64_t fetched = 0;          // newest generation it was given
    Nanos last_await = -1;              // when it last stood waiting for a membership
    std::uint64_t order = 0;            // of appearance
    StepReport step;
  };
  struct Agent {
    std::string host;
    int slots = 0;
    bool alive = false;
    bool draining = false;
    Nanos last_seen = 0;
    std::set<std::string> running;
  };

  Record* find(const std::string& id);
  const Record* find(const std::string& id) const;
  bool over() const { return outcome_.has_value(); }
  bool is_current(const std::string& id) const;
  bool finishing() const;
  bool arrived(const Record& record) const;
  std::string describe(const std::string& id) const;
  std::vector<std::string> waiting() const;
  int count(State state) const;
  int largest() const;
  int target() const;

  void event(Nanos now, const std::string& kind, const std::string& text, int from = 0, int to = 0);
  void changed() { ++version_; }
  void heard(Record& record, Nanos now);
  void adopt(const Membership& membership, Nanos now);
  void fail(const std::string& text, int exit_code, const std::string& last_lines, Nanos now);
  void finish(const std::string& text, Nanos now);
  /// A rank that is gone without having said goodbye.
  void lose(const std::string& id, const std::string& why, int exit_code, const std::string& last_lines, Nanos now);
  void mark_dead(std::uint64_t generation, const std::string& why);
  void count_failure(const std::string& what, int exit_code, const std::string& last_lines, Nanos now);
  void publish(std::vector<MemberInfo> members, std::vector<MemberInfo> leaving, bool planned, std::string reason,
               Nanos now);
  Record& create(const std::string& id, const std::string& host, Nanos now);
  std::string refusal(const JoinMessage& message) const;
  std::string exchange_refusal(const ExchangeMessage& message) const;
  void on_step(const std::string& id, const StepReport& report);
  void on_window(const MfuWindow& window, Nanos now);

  void reconcile(Nanos now);
  void find_silent_ranks(Nanos now);
  void form(Nanos now);
  bool expects_old_ranks(Nanos now) const;
  void recover(Nanos now);
  void steer(Nanos now);
  void grow(Nanos now);
  void order_starts(int needed, Nanos now);
  void trim_spares(int keep);
  void start_failed(const std::string& what, Nanos now);
  std::string agent_with_free_slot() const;  // empty: none
  int used_slots(const std::string& agent) const;
  void finish_if_all_left(Nanos now);

  const JobConfig config_;
  const std::int64_t unix_offset_ms_;
  std::map<std::string, Record> records_;
  std::map<std::string, Agent> agents_;
  std::set<std::string> kill_;  // members whose process, if any, has to go
  std::uint64_t next_id_ = 1;

  Membership current_;  // generation 0: none yet
  Membership previous_;
  bool established_ = false;
  bool adopted_ = false;                       // learnt from ranks that outlived an earlier coordinator
  std::map<std::uint64_t, std::string> dead_;  // generation -> why
  std::optional<Nanos> broken_since_;          // the current generation is dead and has no successor yet
  std::string broken_why_;
  Nanos settle_at_ = 0;
  int lost_here_ = 0;  // members of the current generation that were lost

  int wanted_ = 1;
  std::string wanted_why_;
  std::string note_;
  std::optional<Nanos> growing_since_;
  Nanos next_start_at_ = 0;
  int failures_ = 0;
  int failures_in_a_row_ = 0;
  int failed_starts_in_a_row_ = 0;
  Nanos started_;
  Nanos last_tick_;
  std::optional<Nanos> below_min_since_;
  std::set<std::string> draining_hosts_;

  std::string fingerprint_;
  int lanes_ = 0;  // 0: not known yet
  PolicyState policy_state_;
  std::optional<MfuWindow> last_window_;
  std::string last_decision_;
  std::string last_finding_;
  StepReport last_step_;

  std::optional<std::string> stopping_;
  std::optional<Outcome> outcome_;

  struct Exchange {
    std::vector<std::optional<std::string>> blobs;
    int arrived = 0;
  };
  std::map<std::tuple<std::uint64_t, std::string, int>, Exchange> exchanges_;  // by generation, tag and size

  std::vector<Event> events_;
  std::uint64_t version_ = 1;
};

}  // namespace bellows
