#include "bellows/elastic/job_client.h"

#include <atomic>

#include "rpc.h"
#include "wire.h"

namespace bellows {
namespace {

constexpr double kPatience = 15;  // for an answer; nobody listening is known at once
constexpr int kAgentPollMs = 2'000;

std::string reason(const CallResult& result, const std::string& address) {
  if (result.kind == CallResult::Kind::kUnreachable)
    return "no coordinator answers at " + address + " (" + result.what + ")";
  return "the coordinator at " + address + " refuses: " + result.what;
}

}  // namespace

struct JobClient::Impl {
  std::string address;
  RpcClient rpc;

  template <class Request>
  Result<std::string> order(const Request& request) {
    v1::OperatorReply reply;
    const CallResult result = rpc.call(request, &reply, kPatience);
    if (!result.ok()) return Result<std::string>::failure(reason(result, address));
    if (!reply.refused().empty()) return Result<std::string>::failure(reply.refused());
    return reply.note();
  }
};

JobClient::JobClient(const std::string& coordinator, const std::string& token)
    : impl_(new Impl{coordinator, {coordinator, token, RpcClient::Patience::kFailFast}}) {}
JobClient::~JobClient() = default;

Result<JobStatus> JobClient::status() {
  v1::StatusReply reply;
  const CallResult result = impl_->rpc.call(v1::StatusRequest(), &reply, kPatience);
  if (!result.ok()) return Result<JobStatus>::failure(reason(result, impl_->address));
  return from_wire(reply);
}

Result<std::string> JobClient::scale(int ranks) {
  v1::ScaleRequest request;
  request.set_ranks(ranks);
  return impl_->order(request);
}
Result<std::string> JobClient::drain(const std::string& host) {
  v1::DrainRequest request;
  request.set_host(host);
  return impl_->order(request);
}
Result<std::string> JobClient::stop(const std::string& why) {
  v1::StopRequest request;
  request.set_why(why);
  return impl_->order(request);
}

Result<std::vector<Event>> JobClient::events(std::uint64_t after, double wait_s) {
  v1::EventsRequest request;
  request.set_after(after);
  request.set_wait_ms(static_cast<int>(wait_s * 1000));
  v1::EventsReply reply;
  const CallResult result = impl_->rpc.call(request, &reply, wait_s + kPatience);
  if (!result.ok()) return Result<std::vector<Event>>::failure(reason(result, impl_->address));
  std::vector<Event> events;
  for (const auto& event : reply.events()) events.push_back(from_wire(event));
  return events;
}

struct AgentClient::Impl {
  std::string address;
  std::string agent;
  std::string host;
  int slots;
  RpcClient rpc;
  std::atomic<bool> denied = false;
};

AgentClient::AgentClient(const std::string& coordinator, const std::string& token, const std::string& agent,
                         const std::string& host, int slots)
    : impl_(new Impl{coordinator, agent, host, slots, {coordinator, token, RpcClient::Patience::kPatient}, false}) {}
AgentClient::~AgentClient() = default;

Result<AgentOrders> AgentClient::poll(const std::string& version, const std::vector<std::string>& running) {
  v1::AgentPollRequest request;
  request.set_agent(impl_->agent);
  request.set_host(impl_->host);
  request.set_slots(impl_->slots);
  request.set_version(version);
  for (const std::string& id : running) request.add_running(id);
  request.set_wait_ms(kAgentPollMs);
  v1::AgentPollReply reply;
  const CallResult result = impl_->rpc.call(request, &reply, 1e-3 * kAgentPollMs + kPatience);
  impl_->denied = result.kind == CallResult::Kind::kDenied;
  if (!result.ok()) return Result<AgentOrders>::failure(reason(result, impl_->address));
  AgentOrders orders;
  orders.version = reply.version();
  orders.start = {reply.start().begin(), reply.start().end()};
  orders.kill = {reply.kill().begin(), reply.kill().end()};
  orders.front = reply.front();
  orders.over = reply.over();
  orders.failed = reply.failed();
  return orders;
}

Result<bool> AgentClient::report(const ProcessExit& exit) {
  v1::ChildExit request;
  request.set_agent(impl_->agent);
  request.set_id(exit.member);
  request.set_code(exit.code);
  request.set_signal(exit.signal);
  request.set_last_lines(exit.last_lines);
  v1::Empty reply;
  const CallResult result = impl_->rpc.call(request, &reply, kPatience);
  if (!result.ok()) return Result<bool>::failure(reason(result, impl_->address));
  return true;
}

bool AgentClient::denied() const { return impl_->denied; }
void AgentClient::cancel() { impl_->rpc.cancel(); }

}  // namespace bellows
