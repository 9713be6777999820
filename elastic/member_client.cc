#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "bellows/base/error.h"
#include "bellows/base/log.h"
#include "bellows/base/mutex.h"
#include "bellows/elastic/member.h"
#include "rpc.h"
#include "wire.h"

namespace bellows {
namespace {

constexpr double kJoinPatience = 30;  // for a coordinator that is not up yet
constexpr double kLeavePatience = 3;
constexpr int kPollMs = 2'000;    // how long the coordinator may hold a long poll
constexpr double kPollSlack = 2;  // on top of it before the call counts as lost
constexpr std::size_t kKeptReports = 256;

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

void sleep_s(double secs) { std::this_thread::sleep_for(std::chrono::duration<double>(secs)); }

/// Two threads serve the trainer's one: the beat sends what was queued, the watch hears at once what has changed.
class CoordinatedMember final : public Member, private Bootstrap {
 public:
  explicit CoordinatedMember(const MemberOptions& options)
      : options_(options),
        host_(options.host.empty() ? host_name() : options.host),
        id_(options.id),
        rpc_(options.coordinator, options.token, RpcClient::Patience::kPatient) {}

  ~CoordinatedMember() override { stop_threads(); }

  const std::string& id() const override { return id_; }
  Bootstrap& bootstrap() override { return *this; }
  std::uint64_t newest_generation() const override { return newest_.load(std::memory_order_acquire); }
  bool stop_requested() const override { return stop_.load(std::memory_order_acquire); }

  void join(const JoinInfo& info) override {
    info_ = info;
    const Deadline patience = Deadline::after(kJoinPatience);
    while (true) {
      const CallResult result = send_join();
      if (result.ok()) break;
      if (result.kind != CallResult::Kind::kUnreachable)
        throw UserError(
            fmt::format("the coordinator at {} refuses this process: {}", options_.coordinator, result.what));
      if (patience.passed())
        throw UserError(fmt::format("no coordinator answers at {} ({})", options_.coordinator, result.what));
      sleep_s(0.1);
    }
    beat_ = std::thread([this] { beat(); });
    watch_ = std::thread([this] { watch(); });
  }

  std::optional<Membership> await_membership(std::uint64_t after, Deadline deadline) override {
    while (true) {
      if (fenced_ || over_) return std::nullopt;
      v1::AwaitRequest request;
      request.set_id(id_);
      request.set_after(after);
      request.set_wait_ms(poll_ms(deadline));
      v1::AwaitReply reply;
      const CallResult result = rpc_.call(request, &reply, 1e-3 * request.wait_ms() + kPollSlack);
      if (result.kind == CallResult::Kind::kCancelled) return std::nullopt;
      if (result.ok()) {
        if (reply.membership().generation() > after)
          return take(from_wire(reply.membership()), from_wire(reply.signals()));
        apply(from_wire(reply.signals()));
        if (reply.signals().unknown()) join_again();
      } else {
        sleep_s(0.1);
      }
      if (deadline.passed())
        throw CommError(CommError::Kind::kTimeout, "await_membership", {}, after,
                        fmt::format("no membership after generation {} in time{}", after,
                                    result.ok() ? "" : ": no coordinator answers at " + options_.coordinator));
    }
  }

  void report(const StepReport& report) override {
    MutexLock lock(mutex_);
    const bool first_of_generation = report.generation != reported_generation_;
    reported_generation_ = report.generation;
    step_ = report;
    if (first_of_generation) wake();  // the coordinator waits for it before it changes the world again
  }
  void report(const MfuWindow& window) override {
    MutexLock lock(mutex_);
    if (windows_.size() < kKeptReports) windows_.push_back(window);
    wake();
  }
  void report(const ChangeReport& change) override {
    MutexLock lock(mutex_);
    if (changes_.size() < kKeptReports) changes_.push_back(change);
    wake();
  }
  void report_failure(std::uint64_t generation, const std::vector<int>& lost, const std::string& what) override {
    MutexLock lock(mutex_);
    v1::FailureReport& report = failures_.emplace_back();
    report.set_generation(generation);
    for (const int rank : lost) report.add_ranks(rank);
    report.set_what(what);
    while (failures_.size() > kKeptReports) failures_.pop_front();
    wake();
  }

  void on_abort(std::function<void(std::uint64_t, const std::string&)> callback) override {
    MutexLock callbacks(callback_mutex_);
    callback_ = std::move(callback);
    std::uint64_t dead;
    std::string why;
    {
      MutexLock lock(mutex_);
      dead = signals_.dead_generation;
      why = signals_.dead_why;
      if (dead == 0 || dead != held_.generation) return;
    }
    if (callback_) callback_(dead, why);  // it happened before anybody listened
  }

  void leave(bool finished) override {
    {
      MutexLock lock(mutex_);
      if (leaving_) return;
      leaving_ = true;
      wake();
    }
    if (beat_.joinable()) beat_.join();  // it sends what is still queued
    const Deadline patience = Deadline::after(kLeavePatience);
    v1::LeaveRequest request;
    request.set_id(id_);
    request.set_finished(finished);
    v1::Empty reply;
    while (!rpc_.call(request, &reply, 1).ok() && !patience.passed()) sleep_s(0.1);
    stop_threads();
  }

 private:
  static int poll_ms(Deadline deadline) {
    return static_cast<int>(std::clamp<Nanos>(deadline.remaining() / 1'000'000, 1, kPollMs));
  }

  // ---- connecting

  std::vector<std::string> exchange(const World& world, const std::string& tag, const std::string& blob,
                                    Deadline deadline) override {
    const std::string what = "exchange " + tag;
    while (true) {
      v1::ExchangeRequest request;
      request.set_id(id_);
      request.set_generation(world.generation);
      request.set_tag(tag);
      request.set_rank(world.rank);
      request.set_world_size(world.world_size);
      request.set_blob(blob);
      request.set_wait_ms(poll_ms(deadline));
      v1::ExchangeReply reply;
      const CallResult result = rpc_.call(request, &reply, 1e-3 * request.wait_ms() + kPollSlack);
      if (result.kind == CallResult::Kind::kCancelled)
        throw CommError(CommError::Kind::kAborted, what, {}, world.generation, what + ": this process has left");
      if (!reply.aborted().empty())
        throw CommError(CommError::Kind::kAborted, what, {}, world.generation, what + ": " + reply.aborted());
      if (result.ok() && reply.blobs_size() == world.world_size) return {reply.blobs().begin(), reply.blobs().end()};
      if (deadline.passed()) {
        const std::vector<int> missing(reply.missing().begin(), reply.missing().end());
        throw CommError(CommError::Kind::kTimeout, what, missing, world.generation,
                        result.ok() ? fmt::format("{}: ranks {} did not come in time", what, fmt::join(missing, ", "))
                                    : fmt::format("{}: no coordinator answers at {}", what, options_.coordinator));
      }
      if (!result.ok()) sleep_s(0.1);
    }
  }

  // ---- talking to the coordinator

  /// kDenied with the reason if refused.
  CallResult send_join() {
    v1::JoinRequest request;
    request.set_id(id_);
    request.set_host(host_);
    request.set_pid(::getpid());
    request.set_fingerprint(info_.fingerprint);
    request.set_lanes(info_.lanes);
    {
      MutexLock lock(mutex_);
      if (held_.generation > 0) to_wire(held_, request.mutable_holds());
    }
    v1::JoinReply reply;
    const CallResult result = rpc_.call(request, &reply, 5);
    if (!result.ok()) return result;
    if (reply.fenced()) fenced_ = true;
    if (!reply.refused().empty()) return {CallResult::Kind::kDenied, reply.refused()};
    if (id_.empty()) id_ = reply.id();
    apply(from_wire(reply.signals()));
    return {};
  }

  /// The coordinator does not know this process: it was started anew. Says what this process holds.
  void join_again() {
    MutexLock once(rejoin_mutex_);
    {
      MutexLock lock(mutex_);
      if (!signals_.unknown) return;  // another thread has done it
    }
    const CallResult result = send_join();
    if (result.ok()) {
      log::info("joined the coordinator at {} again", options_.coordinator);
    } else if (result.kind == CallResult::Kind::kDenied) {
      log::warn("the coordinator at {} has gone on without this process: {}", options_.coordinator, result.what);
      fenced_ = true;
    }
  }

  Membership take(Membership membership, const Signals& signals) {
    {
      MutexLock lock(mutex_);
      held_ = membership;
    }
    apply(signals);
    return membership;
  }

  void apply(const Signals& signals) {
    bool aborted = false;
    {
      MutexLock lock(mutex_);
      aborted = signals.dead_generation != 0 && signals.dead_generation > aborted_;
      if (aborted) aborted_ = signals.dead_generation;
      signals_ = signals;
    }
    if (!signals.unknown) {
      // Answers may overtake each other, generations only grow.
      std::uint64_t newest = newest_.load(std::memory_order_relaxed);
      while (newest < signals.newest_generation &&
             !newest_.compare_exchange_weak(newest, signals.newest_generation, std::memory_order_release)) {
      }
    }
    if (signals.stop) stop_.store(true, std::memory_order_release);
    if (signals.fenced) fenced_ = true;
    if (signals.over) over_ = true;
    if (!aborted) return;
    MutexLock callbacks(callback_mutex_);
    if (callback_) callback_(signals.dead_generation, signals.dead_why);
  }

  void beat() {
    MutexLock lock(mutex_);
    bool last_round = false;
    while (!last_round) {
      if (!woken_ && !leaving_ && !closing_)
        wake_.wait_for(mutex_, std::chrono::duration<double>(options_.heartbeat_s));
      woken_ = false;
      last_round = leaving_ || closing_;
      if (closing_) return;
      const bool unknown = signals_.unknown;
      mutex_.unlock();
      if (unknown) join_again();
      const bool reached = send_reports();
      mutex_.lock();
      // What could not be sent stays queued; there is no hurry to fail again.
      if (!reached && !last_round) wake_.wait_for(mutex_, std::chrono::duration<double>(0.2));
    }
  }

  bool send_reports() {
    std::deque<v1::FailureReport> failures;
    v1::HeartbeatRequest request;
    request.set_id(id_);
    {
      MutexLock lock(mutex_);
      failures.swap(failures_);
      if (step_) to_wire(*step_, request.mutable_step());
      for (const MfuWindow& window : windows_) to_wire(window, request.add_windows());
      for (const ChangeReport& change : changes_) to_wire(change, request.add_changes());
    }
    v1::Signals reply;
    while (!failures.empty()) {
      failures.front().set_id(id_);
      const CallResult result = rpc_.call(failures.front(), &reply, 2);
      if (!result.ok() && !undeliverable(result)) {
        MutexLock lock(mutex_);
        failures_.insert(failures_.begin(), failures.begin(), failures.end());
        return false;
      }
      failures.pop_front();
    }
    const CallResult result = rpc_.call(request, &reply, 2);
    if (!result.ok() && !undeliverable(result)) return false;
    {
      MutexLock lock(mutex_);
      if (!reply.unknown()) {
        windows_.erase(windows_.begin(), windows_.begin() + request.windows_size());
        changes_.erase(changes_.begin(), changes_.begin() + request.changes_size());
      }
    }
    if (result.ok()) apply(from_wire(reply));
    return true;
  }

  /// The message itself is at fault: sending it again would only hold up those behind it.
  bool undeliverable(const CallResult& result) {
    if (result.kind != CallResult::Kind::kFailed) return false;
    log::warn("the coordinator at {} cannot read a report, it is dropped: {}", options_.coordinator, result.what);
    return true;
  }

  void watch() {
    while (true) {
      v1::WatchRequest request;
      request.set_id(id_);
      request.set_wait_ms(kPollMs);
      {
        MutexLock lock(mutex_);
        if (closing_) return;
        to_wire(signals_, request.mutable_known());
      }
      v1::Signals reply;
      const CallResult result = rpc_.call(request, &reply, 1e-3 * kPollMs + kPollSlack);
      if (result.kind == CallResult::Kind::kCancelled) return;
      if (!result.ok()) {
        sleep_s(0.1);
        continue;
      }
      apply(from_wire(reply));
      if (reply.unknown()) sleep_s(0.05);  // the beat joins again
    }
  }

  void wake() BELLOWS_REQUIRES(mutex_) {
    woken_ = true;
    wake_.notify_all();
  }

  void stop_threads() {
    {
      MutexLock lock(mutex_);
      closing_ = true;
      wake();
    }
    rpc_.cancel();
    if (beat_.joinable()) beat_.join();
    if (watch_.joinable()) watch_.join();
  }

  const MemberOptions options_;
  const std::string host_;
  std::string id_;  // const once joined
  JoinInfo info_;
  RpcClient rpc_;
  std::atomic<std::uint64_t> newest_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> fenced_ = false;
  std::atomic<bool> over_ = false;

  Mutex rejoin_mutex_;
  Mutex callback_mutex_;  // held during the callback, so clearing it waits for one under way
  std::function<void(std::uint64_t, const std::string&)> callback_ BELLOWS_GUARDED_BY(callback_mutex_);

  Mutex mutex_;
  CondVar wake_;
  bool woken_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool leaving_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool closing_ BELLOWS_GUARDED_BY(mutex_) = false;
  Signals signals_ BELLOWS_GUARDED_BY(mutex_);
  Membership held_ BELLOWS_GUARDED_BY(mutex_);
  std::uint64_t aborted_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::uint64_t reported_generation_ BELLOWS_GUARDED_BY(mutex_) = 0;
  std::optional<StepReport> step_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<MfuWindow> windows_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<ChangeReport> changes_ BELLOWS_GUARDED_BY(mutex_);
  std::deque<v1::FailureReport> failures_ BELLOWS_GUARDED_BY(mutex_);

  std::thread beat_;
  std::thread watch_;
};

}  // namespace

std::unique_ptr<Member> make_coordinated_member(const MemberOptions& options) {
  return std::make_unique<CoordinatedMember>(options);
}

}  // namespace bellows
