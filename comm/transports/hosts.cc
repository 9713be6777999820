#include "routed/wire_ucx.h"
#include "transports/transport.h"

namespace bellows {

std::string ucx_unfit(const std::vector<Introduction>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].wires.find("ucx") == std::string::npos)
      return "rank " + std::to_string(r) + " on " + ranks[r].host + " has no UCX in its build";
  return "";
}

std::string mpi_unfit(const std::vector<Introduction>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].wires.find("mpi") == std::string::npos)
      return "rank " + std::to_string(r) + " on " + ranks[r].host + " was not started by mpirun";
  return "";
}

std::string mixed_obstacle() {
  const std::string shm = shm_obstacle();
  return shm.empty() ? ucx_obstacle() : shm;
}

std::string mixed_unfit(const std::vector<Introduction>& ranks) {
  const std::string shm = shm_obstacle();
  return shm.empty() ? ucx_unfit(ranks) : shm;
}

}  // namespace bellows
