#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/elastic/job.h"

namespace bellows {

/// An operator's side: what `bellows ctl` does. Every call fails with a sentence if the coordinator does not answer,
/// does not accept the token, or refuses.
class JobClient {
 public:
  JobClient(const std::string& coordinator, const std::string& token);
  ~JobClient();

  Result<JobStatus> status();
  /// The value is a remark, mostly empty.
  Result<std::string> scale(int ranks);
  Result<std::string> drain(const std::string& host);
  Result<std::string> stop(const std::string& why);
  /// Waits up to `wait_s` for events after number `after`.
  Result<std::vector<Event>> events(std::uint64_t after, double wait_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What an agent has to bring about. Repeating is harmless: member ids are never reused.
struct AgentOrders {
  std::string version;             ///< of these orders
  std::vector<std::string> start;  ///< members whose process must run
  std::vector<std::string> kill;   ///< members whose process must go, at once
  std::string front;               ///< rank 0, if its process is here: its output goes to the person
  bool over = false;               ///< the job has ended
  bool failed = false;             ///< with `over`: what still runs is killed
};

/// How a rank's process ended.
struct ProcessExit {
  std::string member;
  int code = 0;  ///< if signal is 0
  int signal = 0;
  std::string last_lines;  ///< of its output
};

/// An agent's side of the protocol.
class AgentClient {
 public:
  AgentClient(const std::string& coordinator, const std::string& token, const std::string& agent,
              const std::string& host, int slots);
  ~AgentClient();

  /// Returns as soon as the orders differ from `version`, after about two seconds in any case.
  Result<AgentOrders> poll(const std::string& version, const std::vector<std::string>& running);
  Result<bool> report(const ProcessExit& exit);
  /// The last poll was answered, but the token was not accepted.
  bool denied() const;
  /// Ends calls under way.
  void cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows
