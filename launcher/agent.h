#pragma once
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "bellows/base/mutex.h"
#include "bellows/elastic/job_client.h"
#include "child.h"

namespace bellows {

struct AgentOptions {
  std::string coordinator;  ///< host:port
  std::string token;
  std::string host;                                ///< empty: this machine's name
  int slots = 1;                                   ///< processes that may run here at once
  std::vector<std::string> command;                ///< what a rank runs
  std::map<std::string, std::string> environment;  ///< on top of this process' own
  std::set<std::string> without;                   ///< variables that are this process' business only
  std::string log_dir;                             ///< one file per rank process; empty: none
  std::size_t log_limit = 64 << 20;
  std::vector<CpuSet> processors;  ///< by slot: those of the process that runs there; empty: any
  bool bind_strict = false;        ///< see ChildOptions
  /// Lines of the front rank (rank 0, or the first process before there are ranks).
  Child::LineSink forward;
};

/// Runs the rank processes of one host as the coordinator orders, tells it at once when one ends, and leaves none
/// behind. Three threads: the caller's starts, watches and reaps; one polls for orders; one delivers exits.
class Agent {
 public:
  explicit Agent(AgentOptions options);
  ~Agent();

  /// Until the job is over and every process here has ended. Processes live no longer than the calling thread.
  /// Throws UserError if the coordinator cannot be reached while nothing runs here, or refuses this agent.
  void run();
  /// From any thread: end every process at once and return.
  void kill();

 private:
  void poll_orders();
  void deliver_exits();
  void carry_out(const AgentOrders& orders);
  void start(const std::string& member);
  void watch_children(int timeout_ms);
  std::size_t free_slot() const;
  std::vector<std::string> running();
  void wake();

  const AgentOptions options_;
  AgentClient client_;
  int wake_fd_;
  std::map<std::string, std::unique_ptr<Child>> children_;  // of the running thread only
  std::map<std::string, std::size_t> slots_;                // of children_, as long as they live
  std::set<std::string> started_;
  std::string front_;

  Mutex mutex_;
  CondVar changed_;
  AgentOrders orders_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<std::string> running_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<ProcessExit> exits_ BELLOWS_GUARDED_BY(mutex_);
  std::string unreachable_ BELLOWS_GUARDED_BY(mutex_);
  Nanos reached_at_ BELLOWS_GUARDED_BY(mutex_);
  bool closing_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::atomic<bool> kill_ = false;
  std::thread poller_;
  std::thread courier_;
};

}  // namespace bellows
