#include "routed/selection.h"

#include <bit>

#include "bellows/base/error.h"
#include "routed/cost_model.h"

namespace bellows {

Selection::Selection(const std::string& wanted, const CollectiveCosts& costs, double ranks_per_core)
    : costs_(costs), ranks_per_core_(ranks_per_core) {
  if (wanted != "auto") forced_ = algorithm_by_name(wanted);
}

Algorithm Selection::choose(CostedCall call, std::size_t bytes, const Places& places) const {
  if (forced_) {
    if (const std::string why = unfit(*forced_, places); !why.empty())
      throw UserError("algorithm '" + std::string(name_of(*forced_)) + "' cannot be used: " + why);
    return *forced_;
  }
  const std::size_t size_class = std::bit_ceil(bytes);
  const auto [it, fresh] = known_.try_emplace({call, size_class}, Algorithm::kDirect);
  if (fresh) it->second = cheapest(call, places, size_class, costs_, ranks_per_core_);
  return it->second;
}

}  // namespace bellows
