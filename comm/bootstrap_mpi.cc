#include "bellows/comm/bootstrap.h"

namespace bellows {

std::unique_ptr<Bootstrap> make_mpi_bootstrap(World*, std::string* why) {
  if (why) *why = "this build has no MPI";
  return nullptr;
}

}  // namespace bellows
