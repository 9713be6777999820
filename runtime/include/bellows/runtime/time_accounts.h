#pragma once
#include <array>
#include <string_view>

#include "bellows/base/clock.h"

namespace bellows {

/// Every nanosecond of a step on a rank belongs to exactly one of these.
enum class Account {
  kCompute,
  kExposedCollective,   ///< waiting for a transfer that compute did not hide
  kStragglerWait,       ///< waiting for a peer that was late
  kDataWait,
  kOptimizer,
  kTransfer,            ///< between memory tiers
  kCheckpoint,
  kReconfiguration,
  kIdle,                ///< nothing to do: no lane in this round, evaluation, reports
  kCount
};
constexpr int kAccounts = static_cast<int>(Account::kCount);
std::string_view name_of(Account account);   ///< "compute", "exposed_collective", ...

/// A clock that always runs on exactly one account, so the accounts of a stretch of time add up to it by construction.
/// One per rank; used from the rank's main thread.
class TimeAccounts {
 public:
  using Sums = std::array<Nanos, kAccounts>;

  TimeAccounts() : since_(now_ns()) {}
  /// Charges the time since the last switch to the running account and runs `account` from now on.
  Account switch_to(Account account) {
    const Nanos now = now_ns();
    sums_[static_cast<int>(running_)] += now - since_;
    since_ = now;
    const Account before = running_;
    running_ = account;
    return before;
  }
  /// Moves `ns` that were charged to `from` over to `to` (never more than is there).
  void reassign(Account from, Account to, Nanos ns);
  /// Sums up to now.
  Sums read() {
    switch_to(running_);
    return sums_;
  }

 private:
  Sums sums_{};
  Account running_ = Account::kIdle;
  Nanos since_;
};

/// Runs an account for the length of a scope.
class AccountScope {
 public:
  AccountScope(TimeAccounts& accounts, Account account) : accounts_(accounts), before_(accounts.switch_to(account)) {}
  ~AccountScope() { accounts_.switch_to(before_); }
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  TimeAccounts& accounts_;
  Account before_;
};

}  // namespace bellows
