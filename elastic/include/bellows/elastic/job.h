#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/elastic/member.h"
#include "bellows/elastic/membership.h"
#include "bellows/elastic/policy.h"

namespace bellows {

/// What a job may do and how patient it is. Times in seconds.
struct JobConfig {
  std::string name;  ///< for people; also in the job's file that `bellows ctl` finds
  int ranks = 1;     ///< wished at the start
  int min_ranks = 1;
  int max_ranks = 1;
  PolicyConfig policy;
  int failure_budget = 0;          ///< lost ranks that the job survives; 0: the first one ends it
  double start_timeout_s = 300;    ///< for the first membership
  double grow_timeout_s = 120;     ///< for new processes to join; then the job goes on with those that came
  double heartbeat_limit_s = 5;    ///< silence after which a rank is lost
  double suspect_s = 1.5;          ///< the same for a rank that its peers reported or whose connection broke
  double regroup_timeout_s = 60;   ///< for ranks to leave a dead generation; then they are lost
  double restart_backoff_s = 0.2;  ///< before a lost rank is replaced; doubles with every failure in a row
  double settle_s = 0.02;          ///< losses this close together make one change
  std::string id_prefix = "m";     ///< of member ids; distinct for every life of a coordinator, ids are never reused
};

/// Something that happened, in a sentence for people and with the numbers that belong to it.
struct Event {
  std::uint64_t seq = 0;
  std::int64_t unix_ms = 0;
  /// form | change | world | decision | finding | join | refused | failure | lost | start | limit | operator | agent |
  /// over
  std::string kind;
  std::string text;
  std::uint64_t generation = 0;
  int from = 0;
  int to = 0;
  std::uint64_t bytes_moved = 0;  ///< kind "world"
  double ms = 0;                  ///< kind "world": from the decision to the next committed step
};

struct MemberStatus {
  MemberInfo info;
  std::string state;  ///< starting | waiting | training | leaving | finished | released | lost
  int rank = -1;
  double seen_seconds_ago = 0;
  std::string agent;
  StepReport step;
};
struct AgentStatus {
  std::string id;
  std::string host;
  int slots = 0;
  int used = 0;
  bool alive = false;
  bool draining = false;
};

/// How a job ended.
struct Outcome {
  int exit_code = 0;  ///< what the launcher returns: 0, the first failing rank's, or 128 + its signal
  std::string text;
  std::string last_lines;  ///< of the first failing rank, if its agent had any
};

/// A snapshot for `bellows ctl status` and the progress display.
struct JobStatus {
  std::string job;
  std::string phase;  ///< forming | training | changing | recovering | stopping | over
  std::uint64_t generation = 0;
  int world_size = 0;
  int wanted = 0;
  int min_ranks = 0;
  int max_ranks = 0;
  std::string policy;
  double threshold = 0;
  int failures = 0;
  int failure_budget = 0;
  bool settled = false;  ///< nothing is under way: the world is as it is going to be for now
  std::string note;      ///< why the world is not as wanted, if it is not
  bool stopping = false;
  StepReport step;                  ///< rank 0's newest
  std::optional<MfuWindow> window;  ///< the newest
  std::string last_decision;
  std::vector<MemberStatus> members;
  std::vector<AgentStatus> agents;
  std::optional<Outcome> outcome;
  std::uint64_t last_event = 0;
};

}  // namespace bellows
