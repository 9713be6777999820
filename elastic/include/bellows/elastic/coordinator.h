#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bellows/base/clock.h"
#include "bellows/elastic/job.h"

namespace bellows {

struct CoordinatorOptions {
  std::string bind = "127.0.0.1";  ///< address to listen on; IPv6 addresses without brackets
  int port = 0;                    ///< 0: a free one
  std::string token;               ///< required in every call; not empty
};

/// Serves one job: ranks, agents and operators reach it over gRPC (docs/protocol.md). Its threads end with it.
/// All decisions are made by a state machine on plain values inside; this is the lock, the wire and the clock around
/// it.
class Coordinator {
 public:
  /// Throws UserError naming the address if it cannot listen there.
  Coordinator(const JobConfig& config, const CoordinatorOptions& options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// host:port that clients dial.
  const std::string& address() const;
  JobStatus status() const;
  /// Events after number `after`; waits for one until the deadline.
  std::vector<Event> events(std::uint64_t after, Deadline deadline) const;
  /// An orderly stop: ranks agree at a commit, write a checkpoint and leave.
  void stop(const std::string& why);
  /// The end at once.
  void kill(const std::string& why, int exit_code);
  /// How the job ended; nothing if it has not by the deadline.
  std::optional<Outcome> wait(Deadline deadline) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows
