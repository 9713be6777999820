#pragma once
#include <functional>
#include <string>

#include "bellows/comm/communicator.h"
#include "bellows/runtime/time_accounts.h"

namespace bellows {

/// Waits on collectives and charges the time to the right account: what a late peer cost is straggler wait, the rest is
/// exposed transfer.
class Waiter {
 public:
  explicit Waiter(TimeAccounts& accounts) : accounts_(accounts) {}
  void use(Communicator* comm) { comm_ = comm; }

  void wait(const Work& work) {
    if (work.done()) return work.wait();   // still throws a latched error
    charged([&] { work.wait(); });
  }
  /// Runs a blocking collective.
  template <class Call>
  void charged(const Call& call) {
    const AccountScope scope(accounts_, Account::kExposedCollective);
    const Nanos before = comm_->stats().peer_wait_ns;
    const Nanos began = now_ns();
    call();
    const Nanos waited = now_ns() - began;
    accounts_.switch_to(Account::kExposedCollective);
    accounts_.reassign(Account::kExposedCollective, Account::kStragglerWait,
                       std::min(waited, comm_->stats().peer_wait_ns - before));
  }

 private:
  TimeAccounts& accounts_;
  Communicator* comm_ = nullptr;
};

}  // namespace bellows
