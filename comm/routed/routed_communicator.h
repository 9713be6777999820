#pragma once
#include <memory>

#include "bellows/comm/communicator.h"
#include "transports/transport.h"

namespace bellows {

/// Collective: a communicator that works by messages along routes. `ranks` is what everybody said at connect.
std::unique_ptr<Communicator> connect_routed(const World& world, Bootstrap& bootstrap, const CommOptions& options,
                                             const std::vector<Introduction>& ranks, WireKind kind, const char* name,
                                             Deadline deadline);

}  // namespace bellows
