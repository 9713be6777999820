#pragma once
#include <memory>
#include <string>

#include "bellows.pb.h"
#include "bellows/base/clock.h"

namespace bellows {

inline constexpr const char* kTokenKey = "bellows-token";
inline constexpr int kLargestMessage = 4 * 1024 * 1024;  // bytes; blobs and reports are a few hundred

/// Sends the RPC library's own log lines to ours, at level debug.
void quiet_rpc_library();

/// How a call went.
struct CallResult {
  enum class Kind { kOk, kUnreachable, kDenied, kCancelled, kFailed };
  Kind kind = Kind::kOk;
  std::string what;
  bool ok() const { return kind == Kind::kOk; }
};

/// The client side of the wire: blocking calls with a deadline from any thread. Reconnects by itself.
class RpcClient {
 public:
  /// While nobody answers, a patient client's calls wait for the connection until their deadline; others fail at once.
  enum class Patience { kFailFast, kPatient };
  RpcClient(const std::string& address, const std::string& token, Patience patience);
  ~RpcClient();
  RpcClient(const RpcClient&) = delete;
  RpcClient& operator=(const RpcClient&) = delete;

  CallResult call(const v1::JoinRequest& request, v1::JoinReply* reply, double timeout_s);
  CallResult call(const v1::AwaitRequest& request, v1::AwaitReply* reply, double timeout_s);
  CallResult call(const v1::ExchangeRequest& request, v1::ExchangeReply* reply, double timeout_s);
  CallResult call(const v1::HeartbeatRequest& request, v1::Signals* reply, double timeout_s);
  CallResult call(const v1::WatchRequest& request, v1::Signals* reply, double timeout_s);
  CallResult call(const v1::FailureReport& request, v1::Signals* reply, double timeout_s);
  CallResult call(const v1::LeaveRequest& request, v1::Empty* reply, double timeout_s);
  CallResult call(const v1::AgentPollRequest& request, v1::AgentPollReply* reply, double timeout_s);
  CallResult call(const v1::ChildExit& request, v1::Empty* reply, double timeout_s);
  CallResult call(const v1::StatusRequest& request, v1::StatusReply* reply, double timeout_s);
  CallResult call(const v1::ScaleRequest& request, v1::OperatorReply* reply, double timeout_s);
  CallResult call(const v1::DrainRequest& request, v1::OperatorReply* reply, double timeout_s);
  CallResult call(const v1::StopRequest& request, v1::OperatorReply* reply, double timeout_s);
  CallResult call(const v1::EventsRequest& request, v1::EventsReply* reply, double timeout_s);

  /// Ends the calls under way; later ones are answered kCancelled at once.
  void cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bellows
