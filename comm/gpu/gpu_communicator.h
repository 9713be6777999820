#pragma once
#include <memory>
#include <string>
#include <vector>

#include "bellows/comm/communicator.h"
#include "gpu/gpu_calls.h"
#include "transports/transport.h"

namespace bellows {

/// What a GPU transport stands on; tests put their own in.
struct GpuHost {
  const GpuCalls* calls = nullptr;
  const NcclCalls* nccl = nullptr;  ///< null: cuda-ipc
  std::vector<Device*> devices;     ///< rank r of the host takes device r, modulo their number
};

/// Collective: a communicator for windows on devices, beside one between the hosts' processors that carries everything
/// else and notices failures. Collectives on device windows run one after the other, in the order of the calls; their
/// priority is not looked at. What they read must have been written (its stream synchronised) before the call.
std::unique_ptr<Communicator> connect_gpu(const World& world, Bootstrap& bootstrap, const CommOptions& options,
                                          const GpuHost& host, const char* name, Deadline deadline);

std::string nccl_obstacle();
std::string cuda_ipc_obstacle();
std::string nccl_unfit(const std::vector<Introduction>& ranks);
std::string cuda_ipc_unfit(const std::vector<Introduction>& ranks);
/// The devices of this process, and NCCL if `name` is "nccl". Throws UserError with the obstacle.
GpuHost open_gpu_host(const std::string& name, const World& world);

}  // namespace bellows
