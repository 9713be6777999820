#pragma once
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bellows/base/error.h"
#include "bellows/base/mutex.h"
#include "bellows/base/world.h"
#include "bellows/comm/communicator.h"
#include "control.h"
#include "transports/transport.h"

namespace bellows {

/// One collective call of this rank. Filled by the calling thread, then carried out by whoever drives the group.
struct Call {
  CallKind kind = CallKind::kBarrier;
  std::string what;
  std::uint64_t signature = 0;         ///< of everything that must agree; kind and `what` are mixed in by the group
  std::uint64_t bytes = 0;             ///< for messages
  std::uint64_t total = 0;             ///< Announcement::total
  bool more = false;                   ///< Announcement::more
  std::uint32_t staging_half = 0;      ///< where this call's staged data stands
  std::span<const std::byte> payload;  ///< at most Control::kPayloadBytes; copied at once
  bool eager = false;                  ///< brings all in the payload: done as soon as this rank has read the others'
  bool reads_windows = false;
  bool writes_windows = false;  ///< of peers
  int priority = 0;             ///< calls of a higher one overtake; all ranks say the same
  int only_from = -1;           ///< a rank if nobody else's arrival matters
  Nanos timeout = 0;            ///< 0: the group's

  std::function<void()> own_part;            ///< before any peer is waited for
  std::function<void(int rank)> on_arrival;  ///< as each peer's memory becomes readable
  std::function<void()> on_all_arrived;

  // From here on the group's own.
  enum State : int { kQueued, kRead, kDone, kFailed };
  Sequence sequence = 0;
  bool asynchronous = false;
  std::atomic<int> state{kQueued};
  Nanos finished_at = 0;
  std::exception_ptr error;
};

/// The ranks of one generation on one host, seen from one of them: numbers calls, announces them, waits for peers,
/// notices their death, latches the first error. What a call does with the peers' memory is the call's own business.
///
/// Calls are carried out in order by one driver at a time: the progress thread, or a caller who waits and finds nobody
/// driving. Calls of a higher priority overtake as soon as all ranks have announced them, also in the middle of another
/// call (between two stretches of it). A call has two ends: `read` (this rank has read what it needs) and `done` (all
/// peers have read ours).
class Group {
 public:
  Group(const World& world, std::unique_ptr<Reach> reach, Segment own, double timeout_s, bool may_spin);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const World& world() const { return world_; }
  Reach& reach() { return *reach_; }

  /// Announces the call to all peers and queues it. From the calling thread only.
  std::shared_ptr<Call> submit(std::shared_ptr<Call> call, bool asynchronous);
  /// Submits and waits until this rank has read what it needs.
  void run(const std::shared_ptr<Call>& call);
  void wait_read(const std::shared_ptr<Call>& call);
  void wait_done(const std::shared_ptr<Call>& call);

  /// Up to how much a rank brings along with the announcement instead of being read: alike on every rank. It saves
  /// waiting for peers to have read, which costs most where they have no core of their own, and crosses between cores
  /// twice.
  std::size_t eager_bytes() const { return yields_ ? Control::kPayloadBytes : kEagerBytes; }
  /// A staging half that no peer reads any more, to be filled and named in the next call.
  std::uint32_t take_staging();
  Control& own() { return *own_; }
  Control& peer(int rank) { return *controls_[rank]; }
  /// What `rank` announced and sent along with a call that has arrived.
  const Announcement& announcement(int rank, const Call& call) { return peer(rank).announcement(call.sequence); }
  std::span<const std::byte> payload(int rank, const Call& call);

  /// For calls under way, between stretches of work of some 10 microseconds: throws if the group has failed meanwhile,
  /// and carries out more urgent calls.
  void between_stretches();
  void check_error();
  /// Tells all peers, then throws the first error of the generation, which may be another one.
  [[noreturn]] void raise(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                          const std::string& message);
  void abort(const std::string& why);
  /// Makes `error` the first of the generation, if there is none yet.
  void report(const CommError& error);
  /// Leaves the generation: finishes what is under way if peers go on, fails it if not, stops the progress thread.
  void close();

  void count_bytes_from_peers(std::uint64_t bytes) { bytes_from_peers_ += bytes; }
  CommStats stats() const;

 private:
  class InsideGuard;

  void announce(Call& call);
  void wait_acknowledged(Sequence sequence);
  template <class Condition>
  void drive_until(const Condition& condition);
  template <class Condition>
  void wait_urgent(const Call& call, const Condition& condition);
  void step(int above) noexcept;
  bool all_posted(const Call& call);
  std::shared_ptr<Call> next_ready(int priority) BELLOWS_REQUIRES(mutex_);
  std::shared_ptr<Call> next_to_read(int above);
  void serve_urgent();
  void read(const std::shared_ptr<Call>& call);
  template <class Condition>
  bool look(const Condition& condition) const;
  template <class Body>
  void busy(const Call& call, const Body& body);
  void verify(const Call& call, int rank);
  void await_arrival(const Call& call, const std::vector<int>& missing, Nanos deadline);
  void await_acknowledgement();
  struct Unacknowledged {
    std::shared_ptr<Call> call;
    bool asynchronous = false;  ///< somebody may wait for calls to be acknowledged
  };
  Unacknowledged first_unacknowledged();
  bool note_acknowledged();
  int first_without_finish(Sequence sequence) const;
  void check_left(const Call* call, const std::vector<int>& missing, Sequence unacknowledged);
  void check_alive(const std::string& operation);
  std::string current_operation() BELLOWS_EXCLUDES(mutex_);
  void record_error(CommError::Kind kind, const std::string& operation, const std::vector<int>& ranks,
                    const std::string& message);
  [[noreturn]] void throw_recorded();
  void fail_all(std::exception_ptr error);
  void await_outside(int rank);
  void ring(Control& control);
  void breathe() const;
  void progress_loop();
  bool has_work() const BELLOWS_REQUIRES(mutex_) { return !to_read_.empty() || asynchronous_open_ > 0; }
  std::string suffix() const;

  const World world_;
  const std::unique_ptr<Reach> reach_;
  const Segment segment_;
  Control* const own_;
  std::vector<Control*> controls_;
  const Nanos timeout_;
  const Nanos spin_;   // how long to look before sleeping
  const bool yields_;  // looking gives the processor away each time

  // The calling thread's.
  Sequence last_sequence_ = 0;
  std::uint32_t next_payload_ = 0;
  std::array<Sequence, Control::kPayloadSlots> payload_used_{};
  std::uint32_t next_half_ = 0;
  std::array<Sequence, 2> half_used_{};
  Sequence acknowledged_through_ = 0;  // all calls up to this one are acknowledged by all
  bool closed_ = false;

  // The driver's.
  Nanos last_life_check_ = 0;
  static constexpr std::size_t kEagerBytes = 512;
  static constexpr int kIdle = std::numeric_limits<int>::min();
  int serving_ = kIdle;  // priority of the call that is being carried out
  bool urgent_closed_ = false;
  Nanos busy_ns_ = 0;       // not yet in stats_
  Nanos overtaken_ns_ = 0;  // spent on urgent calls in the middle of others

  std::atomic<Sequence> submitted_{0};
  // Calls with a priority, so that everybody else need not look for them. Changed with the mutex held.
  std::atomic<int> urgent_queued_{0};
  std::atomic<int> urgent_unacknowledged_{0};
  std::atomic<std::uint64_t> bytes_from_peers_{0};

  mutable Mutex mutex_;
  CondVar changed_;  // a call has moved on, or nobody drives
  CondVar work_;     // for the progress thread alone: there may be something for it
  bool driving_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool attentive_ BELLOWS_GUARDED_BY(mutex_) = false;  // the progress thread looks by itself every now and then
  bool stop_ BELLOWS_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Call>> to_read_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Call>> to_acknowledge_ BELLOWS_GUARDED_BY(mutex_);
  int asynchronous_open_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::exception_ptr failure_ BELLOWS_GUARDED_BY(mutex_);
  CommStats stats_ BELLOWS_GUARDED_BY(mutex_);
  std::thread progress_;
};

/// "rank 3" or "ranks 1, 2".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace bellows
