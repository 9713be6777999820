#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bellows/base/clock.h"
#include "bellows/comm/bootstrap.h"
#include "bellows/elastic/membership.h"
#include "bellows/runtime/mfu.h"

namespace bellows {

/// What a rank tells the coordinator about a committed step (only rank 0's is shown; every rank's step counts as sign
/// of life and progress).
struct StepReport {
  std::uint64_t generation = 0;
  int rank = 0;
  std::int64_t step = 0;          ///< committed steps so far
  std::int64_t total_steps = 0;   ///< 0: unknown
  double loss = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu;
};

/// A change of the world as rank 0 saw it, once the first step after it is committed.
struct ChangeReport {
  std::uint64_t generation = 0;
  int from = 0;
  int to = 0;
  std::string reason;
  std::uint64_t bytes_moved = 0;
  double ms = 0;                  ///< from the coordinator's decision to the next committed step
};

/// What a process says about itself when it joins.
struct JoinInfo {
  std::string fingerprint;        ///< of model, data, seed, lanes ...: all members must agree, a stranger is refused
  int lanes = 0;                  ///< the largest world size that this job can have
};

/// A rank's side of the membership protocol. Thread-safe; never on a step's path: reports are queued and sent by the
/// heartbeat thread, and a dead coordinator only means that nothing changes until it is back.
class Member {
 public:
  virtual ~Member() = default;
  virtual const std::string& id() const = 0;

  /// Registers with the job. Throws UserError if refused (other fingerprint, bad token), with the coordinator's reason.
  virtual void join(const JoinInfo& info) = 0;
  /// Blocks until a membership with generation > `after` that this process is in (as member or leaving) exists.
  /// Nothing: the job is over, or this process was fenced off; then leave quietly.
  virtual std::optional<Membership> await_membership(std::uint64_t after, Deadline deadline) = 0;
  /// Blob exchange of the ranks of one generation, for connect().
  virtual Bootstrap& bootstrap() = 0;

  /// The newest generation that the coordinator has announced; read once per step.
  virtual std::uint64_t newest_generation() const = 0;
  /// True once someone asked for an orderly stop (ctl stop, SIGINT at the launcher).
  virtual bool stop_requested() const = 0;

  virtual void report(const StepReport& report) = 0;
  virtual void report(const MfuWindow& window) = 0;
  virtual void report(const ChangeReport& change) = 0;
  /// A collective failed. `lost` are ranks of that generation (may be empty if unknown). Returns at once.
  virtual void report_failure(std::uint64_t generation, const std::vector<int>& lost, const std::string& what) = 0;

  /// Called from another thread when the coordinator has declared generation `generation` dead (a member was lost):
  /// collectives under way must be aborted. Replaces an earlier callback; empty clears it.
  virtual void on_abort(std::function<void(std::uint64_t generation, const std::string& why)> callback) = 0;
  /// Says goodbye: the training is finished or this process was released. No RPC after it.
  virtual void leave(bool finished) = 0;
};

/// A fixed world without any coordinator: mpirun, plain start (world of one), threads. Generation 1 for ever.
std::unique_ptr<Member> make_fixed_member(const World& world, std::shared_ptr<Bootstrap> bootstrap);

/// Connected to a coordinator.
struct MemberOptions {
  std::string coordinator;        ///< host:port
  std::string token;
  std::string id;                 ///< empty: the coordinator gives one
  std::string host;               ///< empty: this machine's host name
  double heartbeat_s = 0.2;
};
std::unique_ptr<Member> make_coordinated_member(const MemberOptions& options);

/// From the environment that `bellows run` sets (BELLOWS_COORDINATOR, BELLOWS_TOKEN, BELLOWS_MEMBER, BELLOWS_HOST),
/// from mpirun's, or a world of one. Half-set variables are a UserError naming the missing one.
std::unique_ptr<Member> make_member_from_environment();

}  // namespace bellows
