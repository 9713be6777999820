#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "bellows/comm/costs.h"
#include "routed/routes.h"

namespace bellows {

/// Which algorithm carries a collective. A function of what every rank knows (places, sizes, the costs of rank 0), so
/// that all choose alike.
class Selection {
 public:
  /// "auto", or the name of an algorithm that is then always taken. Throws UserError for an unknown one.
  explicit Selection(const std::string& wanted, const CollectiveCosts& costs = {}, double ranks_per_core = 1);
  /// `bytes`: of the whole vector; all sizes up to the same power of two are served alike. Throws UserError if a forced
  /// algorithm cannot serve these places, which are the same in every call.
  Algorithm choose(CostedCall call, std::size_t bytes, const Places& places) const;

 private:
  std::optional<Algorithm> forced_;
  CollectiveCosts costs_;
  double ranks_per_core_;
  mutable std::map<std::pair<CostedCall, std::size_t>, Algorithm> known_;
};

}  // namespace bellows
