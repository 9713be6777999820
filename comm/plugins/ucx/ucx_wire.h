#pragma once
#include <memory>

#include "bellows/base/world.h"
#include "routed/wire.h"

namespace bellows {

/// A worker of the process's UCP context for one generation. Throws std::runtime_error.
std::unique_ptr<Wire> make_wire_over_ucx(const World& world, bool between_hosts);

}  // namespace bellows
