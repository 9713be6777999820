#include "bellows/runtime/time_accounts.h"

#include <algorithm>

namespace bellows {

std::string_view name_of(Account account) {
  switch (account) {
    case Account::kCompute: return "compute";
    case Account::kExposedCollective: return "exposed_collective";
    case Account::kStragglerWait: return "straggler_wait";
    case Account::kDataWait: return "data_wait";
    case Account::kOptimizer: return "optimizer";
    case Account::kTransfer: return "transfer";
    case Account::kCheckpoint: return "checkpoint";
    case Account::kReconfiguration: return "reconfiguration";
    case Account::kIdle: return "idle";
    case Account::kCount: break;
  }
  return "?";
}

void TimeAccounts::reassign(Account from, Account to, Nanos ns) {
  ns = std::clamp<Nanos>(ns, 0, sums_[static_cast<int>(from)]);
  sums_[static_cast<int>(from)] -= ns;
  sums_[static_cast<int>(to)] += ns;
}

}  // namespace bellows
