#pragma once
#include <memory>
#include <string>

#include "bellows/base/world.h"
#include "routed/wire.h"

namespace bellows {

/// Why MPI cannot carry messages in this process, in one line; empty if it can: the process was started by mpirun, and
/// make_mpi_bootstrap() has started MPI.
std::string mpi_obstacle();

/// A wire of point-to-point messages, for sites where MPI is the only sanctioned way. It has no way to sleep until a
/// message comes, so waiting is a look every so often (up to 200 us); and it lives no longer than MPI lets it: what
/// becomes of the others when a rank dies is for MPI to say. Throws std::runtime_error with the obstacle.
std::unique_ptr<Wire> make_mpi_wire(const World& world);

}  // namespace bellows
