#include <arpa/inet.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <set>

#include "bellows.grpc.pb.h"
#include "bellows/base/log.h"
#include "bellows/base/mutex.h"
#include "rpc.h"

namespace bellows {
namespace {

/// Numeric addresses are taken as they are: no name service is asked.
std::string target_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  unsigned char buffer[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), buffer) == 1) return "ipv4:" + address;
  if (inet_pton(AF_INET6, host.c_str(), buffer) == 1) return "ipv6:" + address;
  return "dns:///" + address;
}

}  // namespace

void quiet_rpc_library() {
  // What goes wrong comes back as a status and is told in our own words.
  gpr_set_log_function([](gpr_log_func_args* args) { log::debug("grpc: {}", args->message); });
}

struct RpcClient::Impl {
  Impl(const std::string& address, std::string secret, bool waits) : token(std::move(secret)), patient(waits) {
    quiet_rpc_library();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // in truth the limit of one attempt
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetMaxReceiveMessageSize(kLargestMessage);
    stub = v1::Coordination::NewStub(
        grpc::CreateCustomChannel(target_of(address), grpc::InsecureChannelCredentials(), arguments));
  }

  template <class Request, class Reply>
  CallResult call(grpc::Status (v1::Coordination::Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                  const Request& request, Reply* reply, double timeout_s) {
    grpc::ClientContext context;
    context.AddMetadata(kTokenKey, token);
    // A connection makes progress only while a call waits for it.
    context.set_wait_for_ready(patient);
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::nanoseconds(from_seconds(std::max(timeout_s, 0.0))));
    {
      MutexLock lock(mutex);
      if (cancelled) return {CallResult::Kind::kCancelled, "cancelled"};
      under_way.insert(&context);
    }
    const grpc::Status status = (stub.get()->*method)(&context, request, reply);
    MutexLock lock(mutex);
    under_way.erase(&context);
    if (status.ok()) return {};
    if (cancelled) return {CallResult::Kind::kCancelled, "cancelled"};
    switch (status.error_code()) {
      case grpc::StatusCode::UNAUTHENTICATED:
        return {CallResult::Kind::kDenied, status.error_message()};
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return {CallResult::Kind::kUnreachable, status.error_message()};
      default:
        return {CallResult::Kind::kFailed, status.error_message()};
    }
  }

  const std::string token;
  const bool patient;
  std::unique_ptr<v1::Coordination::Stub> stub;
  Mutex mutex;
  std::set<grpc::ClientContext*> under_way BELLOWS_GUARDED_BY(mutex);
  bool cancelled BELLOWS_GUARDED_BY(mutex) = false;
};

RpcClient::RpcClient(const std::string& address, const std::string& token, Patience patience)
    : impl_(std::make_unique<Impl>(address, token, patience == Patience::kPatient)) {}
RpcClient::~RpcClient() = default;

void RpcClient::cancel() {
  MutexLock lock(impl_->mutex);
  impl_->cancelled = true;
  for (grpc::ClientContext* context : impl_->under_way) context->TryCancel();
}

using Stub = v1::Coordination::Stub;
CallResult RpcClient::call(const v1::JoinRequest& q, v1::JoinReply* a, double t) {
  return impl_->call(&Stub::Join, q, a, t);
}
CallResult RpcClient::call(const v1::AwaitRequest& q, v1::AwaitReply* a, double t) {
  return impl_->call(&Stub::Await, q, a, t);
}
CallResult RpcClient::call(const v1::ExchangeRequest& q, v1::ExchangeReply* a, double t) {
  return impl_->call(&Stub::Exchange, q, a, t);
}
CallResult RpcClient::call(const v1::HeartbeatRequest& q, v1::Signals* a, double t) {
  return impl_->call(&Stub::Heartbeat, q, a, t);
}
CallResult RpcClient::call(const v1::WatchRequest& q, v1::Signals* a, double t) {
  return impl_->call(&Stub::Watch, q, a, t);
}
CallResult RpcClient::call(const v1::FailureReport& q, v1::Signals* a, double t) {
  return impl_->call(&Stub::ReportFailure, q, a, t);
}
CallResult RpcClient::call(const v1::LeaveRequest& q, v1::Empty* a, double t) {
  return impl_->call(&Stub::Leave, q, a, t);
}
CallResult RpcClient::call(const v1::AgentPollRequest& q, v1::AgentPollReply* a, double t) {
  return impl_->call(&Stub::AgentPoll, q, a, t);
}
CallResult RpcClient::call(const v1::ChildExit& q, v1::Empty* a, double t) {
  return impl_->call(&Stub::ReportExit, q, a, t);
}
CallResult RpcClient::call(const v1::StatusRequest& q, v1::StatusReply* a, double t) {
  return impl_->call(&Stub::Status, q, a, t);
}
CallResult RpcClient::call(const v1::ScaleRequest& q, v1::OperatorReply* a, double t) {
  return impl_->call(&Stub::Scale, q, a, t);
}
CallResult RpcClient::call(const v1::DrainRequest& q, v1::OperatorReply* a, double t) {
  return impl_->call(&Stub::Drain, q, a, t);
}
CallResult RpcClient::call(const v1::StopRequest& q, v1::OperatorReply* a, double t) {
  return impl_->call(&Stub::Stop, q, a, t);
}
CallResult RpcClient::call(const v1::EventsRequest& q, v1::EventsReply* a, double t) {
  return impl_->call(&Stub::Events, q, a, t);
}

}  // namespace bellows
