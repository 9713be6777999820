#include "gpu/gpu_communicator.h"
#include "routed/wire_mpi.h"
#include "routed/wire_ucx.h"
#include "transports/transport.h"

namespace bellows {

// One row per transport, the most direct first: the shared test suite runs every row.
const std::vector<TransportEntry>& transport_table() {
  static const std::vector<TransportEntry> table = {
      {"inproc", [] { return std::string(); }, "ranks as threads of one process", inproc_unfit, make_inproc_reach},
      {"shm", shm_obstacle, "processes of one host, through shared memory", shm_unfit, make_shm_reach},
      {"shm+ucx", mixed_obstacle, "hosts: shared memory inside them, UCX between them", mixed_unfit, nullptr,
       WireKind::kMixed},
      {"ucx", ucx_obstacle, "any processes, each pair by what UCX finds", ucx_unfit, nullptr, WireKind::kUcx},
      {"mpi", mpi_obstacle, "ranks that mpirun started, by its messages", mpi_unfit, nullptr, WireKind::kMpi},
      {"cuda-ipc", cuda_ipc_obstacle, "windows on the GPUs of one host, which may be shared", cuda_ipc_unfit, nullptr,
       WireKind::kShm, true},
      {"nccl", nccl_obstacle, "windows on GPUs, one for each rank", nccl_unfit, nullptr, WireKind::kShm, true},
  };
  return table;
}

std::vector<TransportInfo> transports() {
  std::vector<TransportInfo> infos;
  for (const TransportEntry& entry : transport_table()) {
    const std::string obstacle = entry.obstacle();
    infos.push_back({entry.name, obstacle.empty(), obstacle.empty() ? entry.note : obstacle});
  }
  return infos;
}

}  // namespace bellows
