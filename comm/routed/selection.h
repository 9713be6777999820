#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "routed/routes.h"

namespace bellows {

/// Which algorithm carries a collective. A function of what every rank knows, so that all choose alike.
class Selection {
 public:
  /// "auto", or the name of an algorithm that is then always taken. Throws UserError for an unknown one.
  explicit Selection(const std::string& wanted);
  /// `bytes`: of the whole vector. Throws UserError if a forced algorithm cannot serve these places.
  Algorithm choose(std::size_t bytes, const Places& places) const;

 private:
  std::optional<Algorithm> forced_;
};

}  // namespace bellows
