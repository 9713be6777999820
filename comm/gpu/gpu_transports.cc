#include "bellows/base/cuda_plugin.h"
#include "bellows/base/error.h"
#include "gpu/gpu_communicator.h"

namespace bellows {
namespace {

std::string obstacle_of(bool with_nccl) {
  std::string why;
  const GpuCalls* calls = gpu_calls(&why);
  if (!calls) return why;
  why = calls->obstacle();
  if (why.empty() && with_nccl) calls->nccl(&why);
  return why;
}

bool by_name(const std::vector<Introduction>& ranks, const std::string& name) {
  return ranks[0].wanted.substr(0, ranks[0].wanted.find(' ')) == name;
}

constexpr const char* kNotAutomatic = "moves the memory of GPUs and is taken by name only";

}  // namespace

const GpuCalls* gpu_calls(std::string* why) {
  if (!cuda_plugin()) {
    *why = cuda_plugin().error();
    return nullptr;
  }
  const auto entry = reinterpret_cast<GpuCallsEntry>(cuda_symbol(kGpuCallsSymbol));
  return entry();
}

std::string nccl_obstacle() { return obstacle_of(true); }
std::string cuda_ipc_obstacle() { return obstacle_of(false); }

std::string nccl_unfit(const std::vector<Introduction>& ranks) {
  return by_name(ranks, "nccl") ? nccl_obstacle() : kNotAutomatic;
}

std::string cuda_ipc_unfit(const std::vector<Introduction>& ranks) {
  if (!by_name(ranks, "cuda-ipc")) return kNotAutomatic;
  for (const Introduction& rank : ranks)
    if (rank.machine != ranks[0].machine)
      return "it joins GPUs of one host, and rank 0 is on " + ranks[0].host + ", another on " + rank.host;
  return cuda_ipc_obstacle();
}

GpuHost open_gpu_host(const std::string& name, const World& world) {
  std::string why;
  GpuHost host;
  host.calls = gpu_calls(&why);
  if (!host.calls) throw UserError(why);
  if (name == "nccl" && !(host.nccl = host.calls->nccl(&why))) throw UserError(why);
  if (!cuda_devices()) throw UserError(cuda_devices().error());
  host.devices = cuda_devices().value();
  if (host.nccl && static_cast<std::size_t>(world.local_size) > host.devices.size())
    throw UserError("transport 'nccl' needs a GPU for each of the " + std::to_string(world.local_size) +
                    " ranks of a host, and here are " + std::to_string(host.devices.size()) +
                    "; ranks can share one with transport cuda-ipc");
  return host;
}

}  // namespace bellows
