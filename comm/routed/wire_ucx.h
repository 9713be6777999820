#pragma once
#include <memory>
#include <string>

#include "bellows/base/world.h"
#include "routed/wire.h"

namespace bellows {

/// True if this build has UCX and its library can be opened; says nothing about devices, and costs little.
bool ucx_present();
/// Why UCX cannot be used in this process, in one line: the build lacks it, or it finds no device. Empty if it can.
std::string ucx_obstacle();

/// A wire over whatever UCX finds between two ranks: RDMA, TCP, shared memory. The user's UCX_* settings hold.
/// Throws std::runtime_error with the obstacle.
std::unique_ptr<Wire> make_ucx_wire(const World& world);
/// The same for ranks of other hosts only: never through shared memory, which two containers of one machine may have in
/// common without being able to watch each other's processes.
std::unique_ptr<Wire> make_ucx_wire_between_hosts(const World& world);

}  // namespace bellows
