#include "bellows/elastic/coordinator.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "bellows.grpc.pb.h"
#include "bellows/base/error.h"
#include "bellows/base/log.h"
#include "bellows/base/mutex.h"
#include "coordinator_core.h"
#include "rpc.h"
#include "wire.h"

namespace bellows {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr auto kSlice = std::chrono::milliseconds(100);  // how soon a long poll notices that its caller is gone
constexpr int kLongestPollMs = 30'000;

std::int64_t unix_ms_now() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

/// Compares in a time that does not depend on where the first difference is.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

/// How a long poll ended.
enum class Poll {
  kAnswered,  // the answer is there, or the time is up
  kGone,      // the caller has hung up
  kClosing,   // this coordinator goes away
};

/// At most one line a second per kind of bad caller; the rest are counted.
class RateLimitedLog {
 public:
  void warn(const std::string& kind, const std::string& text) {
    MutexLock lock(mutex_);
    Entry& entry = entries_[kind];
    const Nanos now = now_ns();
    if (entry.last != 0 && seconds(now - entry.last) < 1) {
      ++entry.held_back;
      return;
    }
    log::warn("{}{}", text, entry.held_back > 0 ? fmt::format(" ({} more like it)", entry.held_back) : "");
    entry = {now, 0};
  }

 private:
  struct Entry {
    Nanos last = 0;
    int held_back = 0;
  };
  Mutex mutex_;
  std::map<std::string, Entry> entries_ BELLOWS_GUARDED_BY(mutex_);
};

std::string bracketed(const std::string& host) {
  return host.find(':') != std::string::npos && host.front() != '[' ? "[" + host + "]" : host;
}

}  // namespace

struct Coordinator::Impl final : v1::Coordination::Service {
  Impl(const JobConfig& config, const CoordinatorOptions& options)
      : token(options.token), core(config, now_ns(), unix_ms_now()) {
    BELLOWS_CHECK(!token.empty());
    quiet_rpc_library();
    const std::string host = bracketed(options.bind);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(fmt::format("{}:{}", host, options.port), grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kLargestMessage);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a busy port is an error, not a second listener
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 * 1024);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);  // ranks and agents always have a poll open
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 64);      // of one connection
    server = builder.BuildAndStart();
    if (!server || port == 0)
      throw UserError(
          fmt::format("cannot listen on {}:{}: the port is taken or the address is not this machine's "
                      "(--port 0 takes a free one)",
                      host, options.port));
    const bool any = options.bind == "0.0.0.0" || options.bind == "::";
    address = fmt::format("{}:{}", any ? "127.0.0.1" : host, port);
    ticker = std::thread([this] { tick(); });
  }

  ~Impl() override {
    {
      MutexLock lock(mutex);
      closing = true;
      changed.notify_all();
    }
    ticker.join();
    server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    server->Wait();
  }

  void tick() {
    MutexLock lock(mutex);
    while (!closing) {
      const std::uint64_t before = core.version();
      core.tick(now_ns());
      if (core.version() != before) changed.notify_all();
      tick_wait.wait_for(mutex, kTick);
    }
  }

  /// Runs `change` on the core with the lock held and wakes those who wait for what it changed.
  template <class Function>
  auto with_core(Function change) {
    MutexLock lock(mutex);
    const std::uint64_t before = core.version();
    struct Wake {
      Impl& self;
      std::uint64_t before;
      ~Wake() {
        if (self.core.version() != before) self.changed.notify_all();
      }
    } wake{*this, before};
    return change(core);
  }

  /// Long poll: asks `ready` with the lock held, again after every change, until it says yes or `wait_ms` have passed.
  template <class Ready>
  Poll poll(const grpc::ServerContext& context, int wait_ms, Ready ready) {
    const Deadline deadline = Deadline::after(1e-3 * std::clamp(wait_ms, 0, kLongestPollMs));
    MutexLock lock(mutex);
    std::uint64_t seen = 0;
    while (true) {
      if (core.version() != seen) {
        const std::uint64_t before = core.version();
        const bool yes = ready(core);
        seen = core.version();
        if (seen != before) changed.notify_all();
        if (yes) return Poll::kAnswered;
      }
      if (deadline.passed()) return Poll::kAnswered;
      if (closing) return Poll::kClosing;
      if (context.IsCancelled()) return Poll::kGone;
      const auto left = std::chrono::nanoseconds(std::max<Nanos>(deadline.remaining(), 0));
      changed.wait_for(mutex, std::min<std::chrono::nanoseconds>(left, kSlice));
    }
  }

  /// What a poll that brought no answer is answered with: an error, so that the caller comes again a little later.
  static grpc::Status status_of(Poll poll) {
    return poll == Poll::kAnswered ? grpc::Status::OK
                                   : grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator goes away");
  }

  grpc::Status admit(const grpc::ServerContext& context, const char* call) {
    const auto& metadata = context.client_metadata();
    const auto it = metadata.find(kTokenKey);
    const bool missing = it == metadata.end();
    if (!missing && same_secret({it->second.data(), it->second.size()}, token)) return grpc::Status::OK;
    bad_callers.warn("token",
                     fmt::format("refused {} from {}: {} token", call, context.peer(), missing ? "no" : "wrong"));
    return {grpc::StatusCode::UNAUTHENTICATED,
            missing ? "this job asks for its token (BELLOWS_TOKEN or --token)" : "wrong token for this job"};
  }

  // ---- ranks

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request, v1::JoinReply* reply) override {
    if (const auto status = admit(*context, "Join"); !status.ok()) return status;
    JoinMessage message{request->id(), request->host(), request->pid(), {request->fingerprint(), request->lanes()}, {}};
    if (request->has_holds()) message.holds = from_wire(request->holds());
    with_core([&](CoordinatorCore& c) {
      const JoinAnswer answer = c.on_join(message, now_ns());
      reply->set_id(answer.id);
      reply->set_refused(answer.refused);
      reply->set_fenced(answer.fenced);
      if (answer.refused.empty()) to_wire(c.signals_for(answer.id), reply->mutable_signals());
    });
    return grpc::Status::OK;
  }

  grpc::Status Await(grpc::ServerContext* context, const v1::AwaitRequest* request, v1::AwaitReply* reply) override {
    if (const auto status = admit(*context, "Await"); !status.ok()) return status;
    return status_of(poll(*context, request->wait_ms(), [&](CoordinatorCore& c) {
      const auto membership = c.on_await(request->id(), request->after(), now_ns());
      const Signals signals = c.signals_for(request->id());
      to_wire(signals, reply->mutable_signals());
      if (membership) to_wire(*membership, reply->mutable_membership());
      return membership.has_value() || signals.fenced || signals.over || signals.unknown;
    }));
  }

  grpc::Status Exchange(grpc::ServerContext* context, const v1::ExchangeRequest* request,
                        v1::ExchangeReply* reply) override {
    if (const auto status = admit(*context, "Exchange"); !status.ok()) return status;
    const ExchangeMessage message{request->id(),   request->generation(), request->tag(),
                                  request->rank(), request->world_size(), request->blob()};
    ExchangeAnswer answer;
    const Poll end = poll(*context, request->wait_ms(), [&](CoordinatorCore& c) {
      answer = c.on_exchange(message, now_ns());
      return !answer.blobs.empty() || !answer.aborted.empty();
    });
    for (std::string& blob : answer.blobs) reply->add_blobs(std::move(blob));
    for (const int rank : answer.missing) reply->add_missing(rank);
    reply->set_aborted(answer.aborted);
    return status_of(end);
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::Signals* reply) override {
    if (const auto status = admit(*context, "Heartbeat"); !status.ok()) return status;
    HeartbeatMessage message;
    message.id = request->id();
    if (request->has_step()) message.step = from_wire(request->step());
    for (const auto& window : request->windows()) message.windows.push_back(from_wire(window));
    for (const auto& change : request->changes()) message.changes.push_back(from_wire(change));
    to_wire(with_core([&](CoordinatorCore& c) { return c.on_heartbeat(message, now_ns()); }), reply);
    return grpc::Status::OK;
  }

  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request, v1::Signals* reply) override {
    if (const auto status = admit(*context, "Watch"); !status.ok()) return status;
    const Signals known = from_wire(request->known());
    const Poll end = poll(*context, request->wait_ms(), [&](CoordinatorCore& c) {
      const Signals signals = c.signals_for(request->id());
      reply->Clear();
      to_wire(signals, reply);
      return signals != known;
    });
    if (end == Poll::kGone) with_core([&](CoordinatorCore& c) { c.on_disconnect(request->id(), now_ns()); });
    return status_of(end);
  }

  grpc::Status ReportFailure(grpc::ServerContext* context, const v1::FailureReport* request,
                             v1::Signals* reply) override {
    if (const auto status = admit(*context, "ReportFailure"); !status.ok()) return status;
    const std::vector<int> ranks(request->ranks().begin(), request->ranks().end());
    with_core([&](CoordinatorCore& c) {
      c.on_failure(request->id(), request->generation(), ranks, request->what(), now_ns());
      to_wire(c.signals_for(request->id()), reply);
    });
    return grpc::Status::OK;
  }

  grpc::Status Leave(grpc::ServerContext* context, const v1::LeaveRequest* request, v1::Empty*) override {
    if (const auto status = admit(*context, "Leave"); !status.ok()) return status;
    with_core([&](CoordinatorCore& c) { c.on_leave(request->id(), request->finished(), now_ns()); });
    return grpc::Status::OK;
  }

  // ---- agents

  grpc::Status AgentPoll(grpc::ServerContext* context, const v1::AgentPollRequest* request,
                         v1::AgentPollReply* reply) override {
    if (const auto status = admit(*context, "AgentPoll"); !status.ok()) return status;
    const AgentMessage message{
        request->agent(), request->host(), request->slots(), {request->running().begin(), request->running().end()}};
    with_core([&](CoordinatorCore& c) { c.on_agent(message, now_ns()); });
    AgentOrders orders;
    const Poll end = poll(*context, request->wait_ms(), [&](CoordinatorCore& c) {
      orders = c.orders_for(request->agent());
      return orders.version != request->version();
    });
    if (end == Poll::kGone) with_core([&](CoordinatorCore& c) { c.on_agent_gone(request->agent(), now_ns()); });
    reply->set_version(orders.version);
    for (const std::string& id : orders.start) reply->add_start(id);
    for (const std::string& id : orders.kill) reply->add_kill(id);
    reply->set_front(orders.front);
    reply->set_over(orders.over);
    reply->set_failed(orders.failed);
    return status_of(end);
  }

  grpc::Status ReportExit(grpc::ServerContext* context, const v1::ChildExit* request, v1::Empty*) override {
    if (const auto status = admit(*context, "ReportExit"); !status.ok()) return status;
    const ProcessExit message{request->id(), request->code(), request->signal(), request->last_lines()};
    with_core([&](CoordinatorCore& c) { c.on_exit(message, now_ns()); });
    return grpc::Status::OK;
  }

  // ---- operators

  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*, v1::StatusReply* reply) override {
    if (const auto status = admit(*context, "Status"); !status.ok()) return status;
    to_wire(with_core([&](CoordinatorCore& c) { return c.status(now_ns()); }), reply);
    return grpc::Status::OK;
  }
  grpc::Status Scale(grpc::ServerContext* context, const v1::ScaleRequest* request, v1::OperatorReply* reply) override {
    if (const auto status = admit(*context, "Scale"); !status.ok()) return status;
    reply->set_refused(with_core([&](CoordinatorCore& c) { return c.on_scale(request->ranks(), now_ns()); }));
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request, v1::OperatorReply* reply) override {
    if (const auto status = admit(*context, "Drain"); !status.ok()) return status;
    reply->set_refused(with_core([&](CoordinatorCore& c) { return c.on_drain(request->host(), now_ns()); }));
    return grpc::Status::OK;
  }
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request, v1::OperatorReply*) override {
    if (const auto status = admit(*context, "Stop"); !status.ok()) return status;
    with_core([&](CoordinatorCore& c) { c.on_stop(request->why(), now_ns()); });
    return grpc::Status::OK;
  }
  grpc::Status Events(grpc::ServerContext* context, const v1::EventsRequest* request, v1::EventsReply* reply) override {
    if (const auto status = admit(*context, "Events"); !status.ok()) return status;
    std::vector<Event> events;
    const Poll end = poll(*context, request->wait_ms(), [&](CoordinatorCore& c) {
      events = c.events(request->after());
      return !events.empty();
    });
    for (const Event& event : events) to_wire(event, reply->add_events());
    return status_of(end);
  }

  const std::string token;
  std::string address;
  RateLimitedLog bad_callers;

  mutable Mutex mutex;
  CondVar changed;
  CondVar tick_wait;
  CoordinatorCore core BELLOWS_GUARDED_BY(mutex);
  bool closing BELLOWS_GUARDED_BY(mutex) = false;
  std::unique_ptr<grpc::Server> server;
  std::thread ticker;
};

Coordinator::Coordinator(const JobConfig& config, const CoordinatorOptions& options)
    : impl_(std::make_unique<Impl>(config, options)) {}
Coordinator::~Coordinator() = default;

const std::string& Coordinator::address() const { return impl_->address; }

JobStatus Coordinator::status() const {
  return impl_->with_core([](CoordinatorCore& core) { return core.status(now_ns()); });
}

std::vector<Event> Coordinator::events(std::uint64_t after, Deadline deadline) const {
  MutexLock lock(impl_->mutex);
  while (true) {
    std::vector<Event> events = impl_->core.events(after);
    if (!events.empty() || deadline.passed()) return events;
    impl_->changed.wait_for(impl_->mutex, std::chrono::nanoseconds(deadline.remaining()));
  }
}

void Coordinator::stop(const std::string& why) {
  impl_->with_core([&](CoordinatorCore& core) { core.on_stop(why, now_ns()); });
}
void Coordinator::kill(const std::string& why, int exit_code) {
  impl_->with_core([&](CoordinatorCore& core) { core.on_kill(why, exit_code, now_ns()); });
}

std::optional<Outcome> Coordinator::wait(Deadline deadline) const {
  MutexLock lock(impl_->mutex);
  while (!impl_->core.outcome() && !deadline.passed())
    impl_->changed.wait_for(impl_->mutex, std::chrono::nanoseconds(deadline.remaining()));
  return impl_->core.outcome();
}

}  // namespace bellows
