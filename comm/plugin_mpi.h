#pragma once
#include "plugins/mpi/mpi_plugin.h"

namespace bellows {

/// The MPI plugin if make_mpi_bootstrap() has opened and started it in this process, else null.
const BellowsMpiPlugin* started_mpi();

}  // namespace bellows
