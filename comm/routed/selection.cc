#include "routed/selection.h"

#include "bellows/base/error.h"

namespace bellows {

Selection::Selection(const std::string& wanted) {
  if (wanted != "auto") forced_ = algorithm_by_name(wanted);
}

Algorithm Selection::choose(std::size_t bytes, const Places& places) const {
  if (forced_) {
    if (const std::string why = unfit(*forced_, places); !why.empty())
      throw UserError("algorithm '" + std::string(name_of(*forced_)) + "' cannot be used: " + why);
    return *forced_;
  }
  (void)bytes;
  // Between hosts a byte costs most: each is sent once per host, not once per rank.
  return places.hosts() > 1 && places.hosts() < places.world_size() ? Algorithm::kHierarchical : Algorithm::kDirect;
}

}  // namespace bellows
